# Two commands: `make demo` and `make test`. Everything goes into .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench clean

demo: .venv/demo
	$(BIN)/fedcal run --data digits --model cnn --clients 10 --beta 0.3 --rounds 30 --cal-fraction 0.2 --out runs/demo --overwrite

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/dev
	$(BIN)/python benchmarks/run.py

# Stamps: reinstalled when what they install changes.
.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/dev: .venv/demo
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,onnx,flower]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps netcal==1.4.0 # an oracle; its own needs are not ours
	@touch $@

clean:
	rm -rf .venv runs .pytest_cache .ruff_cache .hypothesis

# Two commands: `make demo` and `make test`. Everything goes into .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test oldest lint bench clean

demo: .venv/demo
	$(BIN)/fedcal run --data digits --model cnn --clients 10 --beta 0.3 --rounds 30 --cal-fraction 0.2 --out runs/demo --overwrite

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# With the oldest Flower that strategy and mod support, and the oldest that `fedcal federate` does.
oldest: .venv/flower-1.22.0 .venv/flower-1.26.1
	OMP_NUM_THREADS=1 .venv/flower-1.22.0/bin/python -m pytest -q tests/transport/flower/test_equal.py -k "heart and fed-ts"
	OMP_NUM_THREADS=1 .venv/flower-1.26.1/bin/python -m pytest -q tests/federate/test_real.py -k test_the_command

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

# An environment that differs from .venv in Flower alone.
.venv/flower-%: .venv/dev
	$(BIN)/python -m venv --without-pip --clear $@
	$(BIN)/pip --python $@/bin/python install --quiet --disable-pip-version-check --no-deps flwr==$*
	$(BIN)/python -c "import site, sys; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" > $@/rest.pth
	mv $@/rest.pth $@/lib/python3*/site-packages/

clean:
	rm -rf .venv runs .pytest_cache .ruff_cache .hypothesis

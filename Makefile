# Two commands: `make demo` and `make test`. Everything goes into .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
PIP = $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test docs tutorials flowers lint bench lock clean

# Ten clients with very different labels. The setting was chosen on seeds 100 to 103; the demo has the default seed 0.
demo: .venv/demo
	$(BIN)/fedcal run --data digits --model cnn --clients 10 --beta 0.1 --rounds 15 --cal-fraction 0.2 \
	  --method uncal --method val-ts --method fedcal --method fed-bias --method fedcal-plus --out runs/demo --overwrite

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
	$(MAKE) --no-print-directory docs

# The documentation site, as files in site/: open site/index.html.
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Run the pages' code and write its output and pictures into them.
tutorials: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/pages.py

# With other Flowers than the one in constraints.txt: the oldest that strategy and mod support, the oldest that
# `fedcal federate` does, and the newest.
flowers: strategy-with-1.22.0 federate-with-1.26.1 federate-with-1.42.0

strategy-with-%: .venv/flower-%
	OMP_NUM_THREADS=1 .venv/flower-$*/bin/python -m pytest -q tests/transport/flower/test_equal.py -k "heart and fed-ts"

federate-with-%: .venv/flower-%
	OMP_NUM_THREADS=1 .venv/flower-$*/bin/python -m pytest -q tests/federate/test_real.py -k test_the_command

lint: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/dev
	$(BIN)/python benchmarks/run.py

# Stamps: reinstalled when what they install changes.
.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt -e .
	@touch $@

.venv/dev: pyproject.toml constraints.txt requirements-dev.lock
	$(PYTHON) -m venv .venv
	$(PIP) --no-deps --require-hashes -r requirements-dev.lock
	$(PIP) -c constraints.txt torch
	$(PIP) --no-deps --no-build-isolation -e .
	@touch .venv/demo $@

# What CI installs, resolved anew: needs uv. Put netcal back by hand.
lock:
	uv pip compile pyproject.toml --extra dev --extra docs --extra onnx --extra flower -c constraints.txt --python-version 3.11 --torch-backend cpu \
	  --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links --no-emit-package torch -o requirements-dev.lock

# An environment that differs from .venv in Flower alone.
.PRECIOUS: .venv/flower-%
.venv/flower-%: .venv/dev
	$(BIN)/python -m venv --without-pip --clear $@
	$(BIN)/pip --python $@/bin/python install --quiet --disable-pip-version-check --no-deps flwr==$*
	$(BIN)/python -c "import site, sys; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" > $@/rest.pth
	mv $@/rest.pth $@/lib/python3*/site-packages/

clean:
	rm -rf .venv runs site .pytest_cache .ruff_cache .hypothesis

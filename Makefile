# Two commands matter: `make run` and `make test`. Each sets up what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt
ARGS ?=

.PHONY: run test test-slow faults lint bench clean

run: $(VENV)/.run  ## the whole default pipeline; ARGS="pipeline=smoke" for others
	$(BIN)/r1flow run $(ARGS)

test: $(VENV)/.dev  ## all default tests
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(VENV)/.dev  ## also the tests that take minutes
	$(BIN)/python -m pytest -m "not gpu and not faults" $(ARGS)

faults: $(VENV)/.dev  ## every stage killed, refused by the disk and damaged in every way; prints its counts
	$(BIN)/python -m pytest tests/faults -m "" $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(VENV)/.dev  ## everything measured, against the baseline: tests/bench/speed/figures.md
	$(BIN)/python -m pytest tests/bench -m "" -s $(ARGS)
	$(BIN)/python tests/bench/speed measure --out artifacts/bench.json
	$(BIN)/python tests/bench/speed check artifacts/bench.json

clean:  ## everything a run wrote
	find artifacts -mindepth 1 -not -name README.md -delete

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "r1flow needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 run" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing r1flow into $(VENV) (some minutes, once)"
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing r1flow and its test tools into $(VENV) (some minutes, once)"
	$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/.run

# Two commands do all the set-up: `make demo` (the main job) and `make test`.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.13 || command -v python3.12 || command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: help demo test check bench-recovery packages clean

help:
	@echo "make demo            a real Slurm, a real training, a node that dies, and the recovery"
	@echo "make test            everything: lint, types, walls, and all tests with a real Slurm"
	@echo "make check           lint, types and walls only"
	@echo "make bench-recovery  the recovery measured against Slurm's own --requeue (RUNS=5)"
	@echo "make clean           remove the virtual environment and caches"

packages:
	@.ci/packages

$(BIN)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or newer is needed, $(PYTHON) is {v[0]}.{v[1]}; say make PYTHON=/path/to/python3.11")'
	@echo "venv: $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@timeout 1800 $(PIP) install -e '.[all]' --group dev || { $(PIP) install -U pip && timeout 1800 $(PIP) install -e '.[all]' --group dev; }
	@touch $@

demo: packages $(BIN)/.ready
	@timeout 900 $(BIN)/python examples/demo.py

check: $(BIN)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: packages check
	timeout 2400 $(BIN)/python -m pytest

bench-recovery: packages $(BIN)/.ready
	@$(BIN)/python tests/bench/recovery.py --runs $(or $(RUNS),5)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .demo .bench

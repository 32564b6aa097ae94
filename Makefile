# Two commands do all the set-up: `make demo` (the main job) and `make test`.
SHELL := /bin/bash
# The first Python that runs and is new enough; a shim that stands for no version does not run.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
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
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed; say make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "venv: $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@timeout 600 $(PIP) install 'pip>=25.1'
	@timeout 1800 $(PIP) install -e '.[all]' --group dev
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

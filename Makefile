# `make quickstart` and `make test` create .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READERS := .venv-readers
UNPINNED := .unpinned
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: quickstart test readers unpinned simbench check lint types fix docs package pages layouts clean

quickstart: $(VENV)/.installed
	$(BIN)/powerphase quickstart

# One process for each core, up to four, because one takes up to 1.7 GB. All tests of a file run in the same
# process, because they share fixtures, and folders run in order, because the first one has the longest
# tests. A test that kills its process is reported and not tried again.
SPREAD := --numprocesses logical --maxprocesses 4 --max-worker-restart 0 \
          --dist loadfile --no-loadscope-reorder

# More than one thread in each process would only compete for the cores.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SPREAD) --durations=15

# PyPSA needs pandas 3 and pandapower pandas 2, and fev an older datasets, so both read exports in their own
# environment. Without it those tests are skipped.
readers: $(READERS)/.installed

$(READERS)/.installed: tests/exports/readers.txt
	$(PYTHON) -m venv $(READERS)
	$(READERS)/bin/python -m pip install --disable-pip-version-check --quiet --requirement $<
	touch $@

# Toto and Moirai ask for older versions of torch and NumPy than they need. Without them their tests are skipped.
unpinned: $(UNPINNED)/.installed

$(UNPINNED)/.installed: tests/adapters/unpinned.txt
	rm -rf $(UNPINNED)
	$(PYTHON) -m pip install --disable-pip-version-check --quiet --no-deps --target $(UNPINNED) --requirement $<
	touch $@

# The example with SimBench's grid, whose package brings 91 MB of data, on ten days.
simbench: $(VENV)/.installed-dev
	$(PIP) simbench
	$(BIN)/python -m pytest tests/test_examples_simbench.py

# mypy takes one core for as long as the other checks take together.
check: $(VENV)/.installed-dev
	$(MAKE) --jobs=2 --output-sync types lint docs

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# The documentation site, in build/docs; a broken link is an error.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Wheel and sdist, in dist/.
package: $(VENV)/.installed-dev
	$(BIN)/python -m build

fix: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages that state numbers, after rows or templates changed.
pages: $(VENV)/.installed-dev
	$(BIN)/python -m docs.render

# Where the buses of all grids are drawn; takes a few minutes.
layouts: $(VENV)/.installed
	$(BIN)/python -c 'from pathlib import Path; from powerphase.report.drawing import store_layouts; store_layouts(Path("src/powerphase/report/layouts"))'

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "powerphase needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(READERS) $(UNPINNED) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Both commands of the README set up what they need: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: quickstart test check fix docs package pages layouts clean

quickstart: $(VENV)/.installed
	$(BIN)/powerphase quickstart

# A process for each core, up to four, since one takes up to 1.7 GB; a file stays in one, for its tests share
# what they stand on.
# In the order of the folders, which begins with the longest files; a test that kills its process is
# named and not tried in another one.
SPREAD := --numprocesses logical --maxprocesses 4 --max-worker-restart 0 \
          --dist loadfile --no-loadscope-reorder

# More threads than one in each process would only wait for each other.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SPREAD) --durations=15

check: $(VENV)/.installed-dev docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

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

# Where networks are drawn; one of them after the other, a few minutes in all.
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
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

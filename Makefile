# Both commands set up all they need: a virtual environment in .venv and the pinned packages.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs lint bench clean

demo: .venv/installed  ## Train on the embedded problem and write demo/index.html
	rm -rf demo
	$(BIN)/vspair demo --out demo

test: lint docs  ## Lint, types, documentation, tests and its examples
	$(BIN)/pytest

docs: .venv/installed  ## The documentation as a site; warnings are errors, nothing is downloaded
	$(BIN)/sphinx-build -W --keep-going -q -c docs -d build/doctrees . site
	@echo "Open site/index.html"

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/installed  ## Training loop and import time, as ratios
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/import_time.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vspair needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,docs]'
	touch $@

clean:
	rm -rf .venv build dist site docs/api .mypy_cache .ruff_cache .pytest_cache

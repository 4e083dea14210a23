# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint docs setup-demo setup clean

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.demo

setup-demo: $(VENV)/.demo
setup: $(VENV)/.dev

demo: setup-demo  ## train a small skill with the built-in practice models: no key, no network
	$(BIN)/skillfit demo

test: setup  ## the whole test suite
	$(BIN)/python -m pytest -n auto --dist worksteal -q

lint: setup  ## style, types, and the house plan
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup  ## the documentation site, into site/
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache .pytest_cache

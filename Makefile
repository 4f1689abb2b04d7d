# make demo   install and run the main job on a simulated population
# make test   install what the tests need and run every check
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The suite makes its own threads; BLAS threads on top of xdist workers only get in each other's way.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test lint types layers unit wheel clean

demo: $(VENV)/.run
	$(BIN)/trueup demo

test: lint types layers unit

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests bench conftest.py
	$(BIN)/ruff format --check src tests bench conftest.py

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/pytest -n auto

wheel: $(VENV)/.run
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache

# make demo   install and run the main workflow on a simulated population
# make test   install what the tests need and run every check
# make slow   repeat the random experiments of the tests as often as their full tolerance needs
# make fuzz   generate inputs for MINUTES=10, and keep those that fail in tests/fuzz/corpus
# make docs   build the documentation into site/; a broken link is an error
# make evidence       run a quick version of every benchmark, and write build/evidence/evidence.md from its figures
# make evidence-full  run every benchmark in full (many hours), and write bench/results/ and docs/evidence.md
# make dist   build the source distribution and the wheels of trueup and trueup-score into dist/, and check them
# make test-lowest  run a part of the tests with the lowest supported versions of the dependencies
# make gallery  run docs/gallery on real data (TRUEUP_DATA, or ../shared/data): outputs, pictures, reports
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# xdist workers already use all cores; BLAS threads on top of them slow the suite down.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# Tests start hundreds of processes: with bytecode on disk none of them compiles the package again.
export PYTHONDONTWRITEBYTECODE =

AXE := axe-core@4.14.0
# Tests wait for disks and subprocesses: one worker more than cores keeps the cores busy.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(len(os.sched_getaffinity(0)) + 1)")

LOWEST := .lowest
# The main workflow, files of all versions, and the kernels.
SMOKE := README.md tests/kernels tests/audits/test_audit.py tests/calibrators/test_laws.py tests/calibrators/test_golden_fixes.py \
  tests/calibrators/test_curve_files.py tests/cli/test_demo.py tests/metrics tests/test_modelfile.py tests/test_start.py

.PHONY: demo test test-lowest slow fuzz lint types layers unit waiting cluster browser axe wheel dist docs evidence evidence-full gallery clean

demo: $(VENV)/.run
	$(BIN)/trueup demo

# The unit tests use all cores; what mostly waits, for one process, for Java or for a browser, runs at the same time.
test: lint
	$(MAKE) --no-print-directory -j2 -O unit waiting

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests bench conftest.py
	$(BIN)/ruff format --check src tests bench conftest.py

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --ignore=tests/browser --ignore=tests/cluster

# Spark and Dask, with two workers each. Without Java the Spark tests are skipped with the reason; in CI they fail.
cluster: $(VENV)/.dev
	$(BIN)/pytest tests/cluster

# In the suite, tests marked `repeated` run few of their repetitions.
slow: $(VENV)/.dev
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --full -m repeated tests

# Odd frames, files, queries, command lines and damaged or forged model files: only our errors, and no file changes.
MINUTES ?= 10
PROCESSES ?= 1

fuzz: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --minutes $(MINUTES) --processes $(PROCESSES)

waiting:
	$(MAKE) --no-print-directory types layers
	$(MAKE) --no-print-directory cluster
	$(MAKE) --no-print-directory browser

# One browser, one test at a time.
browser: $(VENV)/.dev axe
	$(BIN)/pytest tests/browser

# The accessibility scan is an npm package. Without npm its tests are skipped with the reason; in CI they fail.
axe: $(VENV)/.$(AXE)

$(VENV)/.$(AXE): | $(VENV)/.dev
	-npm install --prefix $(VENV)/axe --no-save --no-audit --no-fund --ignore-scripts --loglevel=error $(AXE) && touch $@

wheel: $(VENV)/.run
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

# The wheel is built from the source distribution: what is not in that is not in the wheel.
dist: $(VENV)/.dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --wheel --outdir dist packaging/score
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tests/install/check_dist.py dist

# An environment of its own, with every core dependency at the lower bound of pyproject.toml. Old packages warn on new ones.
test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) -W ignore $(SMOKE)

$(LOWEST)/.ready: pyproject.toml tests/install/lowest.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python tests/install/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check -c $(LOWEST)/lowest.txt -e . \
	  "pytest>=8" pytest-xdist "hypothesis>=6.100" "pandas==2.2.*" "polars==1.20.*" "pyarrow==15.*" "matplotlib==3.8.*"
	touch $@

docs: $(VENV)/.docs
	rm -rf site docs/reference/names
	$(BIN)/sphinx-build -b html -q -W --keep-going -j auto -d build/doctrees docs site
	@echo "wrote site/index.html: open it in a browser"

evidence: $(VENV)/.dev
	$(BIN)/python bench/run.py

evidence-full: $(VENV)/.dev
	$(BIN)/python bench/run.py --full

gallery: $(VENV)/.dev
	$(BIN)/python bench/screens.py gallery

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ $(VENV)/.run

$(VENV)/.dist: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "build>=1.2" "twine>=6"
	touch $@

$(VENV)/.docs: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) $(LOWEST) dist build site docs/reference/names docs/gallery/reports .pytest_cache .mypy_cache .ruff_cache

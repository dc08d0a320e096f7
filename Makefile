# Everything a visitor runs. Needs Python >= 3.11, make, and a package registry for the first call.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := .venv-extras
JOBS ?= 2
SENTENCE := Return the number of items in the list.
# Notebooks compile much and compute little; tests/conftest.py says the same of the tests.
FAST_COMPILATION := JAX_DISABLE_MOST_OPTIMIZATIONS=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	XLA_FLAGS="--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 --xla_cpu_multi_thread_eigen=false"

.PHONY: demo gpu test check lint style types short-tests all-tests run-notebooks beam-tests docs tables notebooks dist clean help

help:
	@echo "make demo         fit and measure language models on the embedded corpus (runs/demo)"
	@echo "make gpu          check and time an accelerator beside the CPU, with any PYTHON that has JAX (runs/gpu)"
	@echo "make test         lint, types, and the tests that a change needs: five minutes"
	@echo "make check        everything: the long tests, notebooks, the site, Apache Beam, the package"
	@echo "make lint         lint and types alone"
	@echo "make docs         the documentation as a site (build/site); a broken link fails"
	@echo "make tables       write the tables of README.md and docs/ again, and its picture, from docs/results/"
	@echo "make notebooks    run the notebooks and keep them, with their outputs, in docs/notebooks/"
	@echo "make dist         the package as a wheel and as sources (dist/), tested"
	@echo "make clean        remove the environments and runs/"

$(BIN)/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jexplicit needs Python >= 3.11, this is %s: make PYTHON=/path/to/newer/python3" % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(BIN)/.test: $(BIN)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(BIN)/.docs: $(BIN)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

demo: $(BIN)/.demo
	rm -rf runs/demo
	$(BIN)/python -m launch.lm --preset demo --out runs/demo
	$(BIN)/python -m launch.explain --run runs/demo --method context-mixing --history none --text "$(SENTENCE)" --quiet

# Installs nothing: the machine of an accelerator may reach no registry.
gpu:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m launch.accelerator --out runs/gpu

lint: style types

style: $(BIN)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(BIN)/.test
	$(BIN)/pyright

# A file's tests stay together: they share runs and compiled functions. Compiled programs of earlier runs are read again.
short-tests: $(BIN)/.test
	COMPILED_BY_TESTS=build/compiled $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow" tests

all-tests: $(BIN)/.test
	COMPILED_BY_TESTS=build/compiled $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# Types are checked on one core, beside the tests.
test: style
	$(MAKE) --no-print-directory --jobs=2 types short-tests

check: style
	$(MAKE) --no-print-directory --jobs=2 types all-tests
	$(MAKE) --no-print-directory run-notebooks
	$(MAKE) --no-print-directory --jobs=2 docs beam-tests

run-notebooks: $(BIN)/.test
	rm -rf build/notebooks
	$(BIN)/jupytext --quiet --to ../build/notebooks//ipynb notebooks/*.py
	TINY=1 $(FAST_COMPILATION) $(BIN)/python -m pytest -n $(JOBS) --nbmake --nbmake-timeout=300 build/notebooks -p no:cacheprovider

# Apache Beam wants older versions of several packages than constraints.txt has; the pins of what computes hold.
$(EXTRAS)/.beam: pyproject.toml constraints.txt
	test -x $(EXTRAS)/bin/python || $(PYTHON) -m venv $(EXTRAS)
	grep -E '^(jax|jaxlib|numpy|scipy|flax|optax|orbax-checkpoint|sentencepiece|tyro|pytest)==' constraints.txt > $(EXTRAS)/constraints.txt
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(EXTRAS)/constraints.txt --editable '.[beam]' beartype pytest
	touch $@

beam-tests: $(EXTRAS)/.beam
	$(EXTRAS)/bin/python -m pytest tests/counts/test_beam.py

docs: $(BIN)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

tables: $(BIN)/.demo
	$(BIN)/python -m tools.tables

notebooks: $(BIN)/.test
	$(BIN)/python -m tools.notebooks

dist: $(BIN)/.test
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m pytest tests/test_package.py

clean:
	rm -rf $(VENV) $(EXTRAS) build dist runs

# Two commands for people: `make demo` and `make test`. `make quick` is for the time between them, and `make check` is
# what CI asks of every change.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The first interpreter on the path that is new enough; `make PYTHON=/path/to/python test` overrides.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Workers of the test suite; each gets one thread, or they would fight over the cores. They take the tests in long runs,
# so that what a file's tests share, or import, is made in one of them. What is compiled is kept, whatever the shell says
# (empty is unset): the processes that tests start import the package too.
WORKERS ?= 2
PYTEST_ARGS ?=
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

SOURCES := $(shell find src tests scripts docs benchmarks examples experiments .github -type f -not -path '*/__pycache__/*' 2>/dev/null) \
	README.md pyproject.toml constraints.txt Makefile mkdocs.yml

.PHONY: help install demo quick test check lint types imports docs wheel installed dist format clean

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "wellposed needs Python 3.11 or newer; none was found on the path." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torchvision and timm come without their dependencies: both name a torch of their own choice, and what else they
# import is there already (numpy, pillow; huggingface_hub, safetensors and pyyaml by way of transformers).
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e . transformers pillow
	$(PIP) install -c constraints.txt --no-deps torchvision timm
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.demo ## Make an environment, install, analyse and initialise ResNet-50 and a Llama
	$(BIN)/wellposed demo

install: $(VENV)/.dev ## Make an environment with all that working on the project needs

quick: $(VENV)/.dev ## Run the tests of the library that are not slow, in two minutes on two cores
	$(PYTEST) -m "not slow" --ignore tests/experiments $(PYTEST_ARGS)

test: $(VENV)/.dev ## Make an environment, install, run the tests
	$(PYTEST) --durations=25 --durations-min=10 $(PYTEST_ARGS)
	@touch $(VENV)/.tested

# So that `make test check` and CI run the suite once for one state of the sources.
$(VENV)/.tested: $(VENV)/.dev $(SOURCES)
	$(MAKE) test

check: lint types imports $(VENV)/.tested docs wheel ## What CI asks of every change
	@echo "All checks passed."

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

docs: $(VENV)/.dev ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(VENV)/.dev ## Build the wheel, install it alone in an empty environment, run the small demo there
	scripts/check_wheel.sh $(BIN)/python

installed: $(VENV)/.dev ## Build the wheel, install it, run the tests against it from another folder
	OMP_NUM_THREADS=1 scripts/test_wheel.sh $(BIN)/python -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

dist: $(VENV)/.dev ## Build the source distribution and the wheel into dist/, and check what an index would show
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

format: $(VENV)/.dev ## Format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what was built (not the environment)
	rm -rf dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Every command that the README, CONTRIBUTING and CI name. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTHON_CANDIDATES := python3.11 python3 python3.12 python3.13
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Override to choose an interpreter: make install PYTHON=/opt/python/bin/python3.12
PYTHON ?=

.PHONY: help install train bench test test-core lint format docs coverage wheel nightly perf clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Create .venv with swingshift and its tools, when something it depends on has changed

$(INSTALLED): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		python=$$(PYTHON='$(PYTHON)' .ci/find_python $(PYTHON_CANDIDATES)); \
		echo "swingshift: creating $(VENV) with $$($$python --version)"; \
		$$python -m venv --clear $(VENV); \
	fi
	@echo "swingshift: installing into $(VENV) (a few minutes the first time)"
	@$(PIP) install -qq --constraint constraints.txt --editable '.[dev,docs,local]'
	@touch $@
	@echo "swingshift: ready; the command is $(BIN)/swingshift"

train: install ## Train a tiny model for real on two cores; the packaged example `copy`
	@$(BIN)/swingshift train copy

bench: install ## Run the published experiment; the report is written to report/
	@$(BIN)/swingshift bench published --out report

test: lint docs coverage wheel ## Everything: linters and types, documentation, tests with coverage, the installed wheel

coverage: install ## Run all tests and hold the branch coverage of each part to its floor
	@$(BIN)/coverage run -m pytest
	@mkdir -p build
	@$(BIN)/coverage json -q -o build/coverage.json
	@$(BIN)/python .ci/check_coverage.py build/coverage.json

test-core: install ## The light tests only, without coverage
	@$(BIN)/python -m pytest -m 'not slow'

lint: install ## Style, format, types and the arrows between the parts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: install ## Rewrite the sources in the project's format
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

docs: install ## Build the documentation into build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "docs: open build/site/index.html"

wheel: install ## Build the wheel through the sdist, install it bare, import every module
	@$(BIN)/python .ci/check_wheel.py

nightly: install ## The long campaigns: every combination of faults, many more examples of each property
	@HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest

perf: install ## Measure the speed of the simulator, the balancer, the guard and the import
	@$(BIN)/python -m swingshift.benchmarks.perf

clean: ## Remove everything that these commands create
	@rm -rf $(VENV) build dist report runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*
	@find sdk executors policies contrib benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Everything happens in .venv, which the first command makes. Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

# A stamp is written only after its step has succeeded, so an interrupted install is taken up again.
CREATED := $(VENV)/.created
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help run test lint format bench clean
.NOTPARALLEL:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

run: $(CORE) ## the main job: pretrain, prune, make dependent, report (options: ARGS="--epochs 2")
	$(BIN)/bayesprune run $(ARGS)

test: lint ## lint, then the tests (options of pytest: ARGS="-k gates", ARGS="-m slow")
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal $(ARGS)

lint: $(DEV) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV) ## put the sources into shape with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(CORE) ## what a training step with gates costs
	$(BIN)/python benchmarks/step_cost.py $(ARGS)

clean: ## remove .venv, caches and build outputs (runs/ stays)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(CREATED):
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "'$(PYTHON)' was not found. Name a Python 3.11 or newer: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "bayesprune needs Python 3.11 or newer; '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1)." >&2; \
	    echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(CORE): pyproject.toml constraints.txt | $(CREATED)
	$(PIP_INSTALL) -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(CREATED)
	$(PIP_INSTALL) -e ".[dev]"
	@touch $(CORE) $@

# The targets of a checkout. Everything is written to this folder: .venv/ (the environment) and runs/demo/ (what the demo makes).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
CHECKED := rollpacker analysis slurm tests
# On machines of every size: one process mostly waits for Slurm, the others compute.
TEST_PROCESSES ?= 3

# Python writes compiled files even where the environment disables that: each process of a run imports torch in 2 s
# instead of 5, vLLM in 6 s instead of 18.
export PYTHONDONTWRITEBYTECODE :=

# More torch threads than cores make every test slower, and the tests start processes of their own.
test lint types imports unit: export OMP_NUM_THREADS := 1

.PHONY: help demo slurm-demo gpu-check install slurm slurm-for-tests test lint types imports unit format constraints clean

help: ## show this
	@echo "make TARGET, where TARGET is"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "PYTHON=/path/to/python3 chooses the Python (3.11 or newer) that a new environment is made from."

demo: .venv/.demo ## install what the demo needs, train under both systems on this machine, draw table and figure
	@$(BIN)/rollpacker demo

slurm-demo: .venv/.demo slurm ## the same as jobs of two nodes each of a Slurm cluster that it starts for that and stops
	@$(BIN)/python -m slurm.demo

gpu-check: .venv/.demo ## show on this machine's GPUs what only GPUs can show, and measure them; goes on where it stopped
	@$(BIN)/rollpacker gpu-check

install: .venv/.test ## install everything, the tools that test it too

slurm: ## install what runs a Slurm cluster on this machine: Slurm, MariaDB, Apptainer (Debian, Ubuntu; root or sudo)
	@bash slurm/install_packages.sh

test: ## install everything, on Debian Slurm too (root or sudo); run every check: lint, types, import contracts, tests
	@$(MAKE) --jobs=2 --output-sync=target install slurm-for-tests
	@bash .ci/checks.sh

lint: .venv/.test ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.test ## check types
	$(BIN)/mypy

imports: .venv/.test ## check the import contracts
	$(BIN)/lint-imports

unit: .venv/.test slurm-for-tests ## run the tests
	$(BIN)/pytest --numprocesses=$(TEST_PROCESSES) --durations=25

slurm-for-tests:
	@bash slurm/install_packages.sh || echo "The tests against a real Slurm say why they cannot run."

format: .venv/.test ## format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: .venv/.demo ## choose new exact versions: rewrites .ci/constraints.txt
	@bash .ci/constrain.sh

clean: ## remove the environment, the demo's runs and all caches; other runs stay
	rm -rf .venv runs/demo .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find $(CHECKED) -name __pycache__ -type d -prune -exec rm -rf {} +

# On GPUs the stamp is no proof where the torch is that of processors: a login node may share this folder.
.PHONY: $(and $(wildcard .venv/lib/python*/site-packages/torch-*+cpu.dist-info),\
	$(shell nvidia-smi --list-gpus >/dev/null 2>&1 && echo .venv/.demo))

# A stamp newer than all inputs of the installation: a second run installs nothing.
.venv/.demo .venv/.test: .venv/.%: pyproject.toml .ci/constraints.txt .ci/install.sh
	@PYTHON="$(PYTHON)" bash .ci/install.sh $*
	@touch $@

# Everything a developer runs. `make demo` and `make test` need Debian's python3-venv, g++ and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
READY_DEV := .venv/ready-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gpu bench lint format clean

help: ## what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## the environment in .venv, with the CUDA compiler from pinned wheels

demo: $(READY) ## two pruned checkpoints compiled for three architectures and verified on the CPU
	@$(BIN)/farm demo

test: $(READY_DEV) lint ## every test this machine can run
	@$(BIN)/python -m pytest

test-gpu: $(READY_DEV) ## the tests that need a GPU and the extra `gpu`
	@$(BIN)/python -m pytest tests/gpu

bench: $(READY_DEV) ## the figures of BENCHMARKS.md that this machine can measure
	@$(BIN)/python -m tests.benchmarks

lint: $(READY_DEV) ## ruff and mypy
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check . && $(BIN)/mypy

format: $(READY_DEV) ## ruff's formatting
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --quiet --fix .

clean: ## removes the environment and all caches
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@command -v g++ >/dev/null || { echo "g++ is missing: nvcc needs it. On Debian: apt-get install g++"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "On Debian: apt-get install python3-venv"; exit 2; }

$(READY): pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing into .venv (Ray, ONNX and the CUDA compiler: about 250 MB) ..."
	@$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(READY_DEV): $(READY)
	@echo "installing the development tools into .venv ..."
	@$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

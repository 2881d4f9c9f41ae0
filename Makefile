# Everything runs from the virtual environment in .venv, which `setup` makes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.headway-setup
PEERS := $(VENV)/.headway-bench
CONFIG ?= examples/quickstart.toml
ARGS ?=
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup browser train test test-examples test-slow test-containers check bench bench-loop bench-engine bench-trainer bench-driver bench-queue bench-simulate \
        bench-gateway bench-learning bench-survival bench-using bench-adapters bench-sandbox bench-prediction bench-cases bench-control bench-aiconfigurator \
        device-check format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install Headway into it (once; again when the dependencies change)

$(STAMP): pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headway needs Python >= 3.11, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1)."; \
	  echo "Name another one: make setup PYTHON=python3.11"; exit 1; }
	@echo "Installing Headway and what it needs into $(VENV): about 2 GB, one to four minutes, once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Now pip, which says nothing until it is done: it fetches torch first, the largest part"
	@if command -v nvidia-smi >/dev/null 2>&1; then \
	  set -x; $(BIN)/python -m pip install -q -e '.[dev]'; \
	else \
	  set -x; $(BIN)/python -m pip install -q -c constraints-cpu.txt -e '.[dev]'; \
	fi
	@touch $@
	@echo "Headway is installed: $(BIN)/headway --help"

$(PEERS): $(STAMP)
	@echo "Installing what Headway is compared with into $(VENV)"
	@if command -v nvidia-smi >/dev/null 2>&1; then \
	  set -x; $(BIN)/python -m pip install -q -e '.[bench]'; \
	else \
	  set -x; $(BIN)/python -m pip install -q -c constraints-cpu.txt -e '.[bench]'; \
	fi
	@touch $@

train: setup ## train the quickstart (CONFIG=examples/x.toml for another, ARGS="..." for more options)
	$(BIN)/headway train $(CONFIG) $(ARGS)

browser: ## a Chromium for the test of the report's page, where apt-get may install one
	@for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do \
	  command -v $$name >/dev/null 2>&1 && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  echo "Installing Chromium: the test of the report's page opens it in a browser"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
	  echo "That failed; the test of the report's page will be skipped."; \
	else \
	  echo "No Chromium is found: the test of the report's page will be skipped."; \
	  echo "Install one (Debian: apt-get install chromium; elsewhere: Google Chrome will do)."; \
	fi

test: setup browser ## the test suite: no downloads, one thread per process (WORKERS=4 for more at once)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow and not examples" -n $(WORKERS) --dist worksteal $(ARGS)

test-examples: setup ## every example for two steps, and the tour of all commands
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m examples $(ARGS)

test-slow: setup ## the tests that take minutes or fetch a model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow --timeout 1800 $(ARGS)

test-containers: setup ## the container providers over the podman and docker that run here; says why where none does
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs -m slow -k "real_engine or RealEngine" \
	  tests/contract/test_real_engines.py tests/contract/test_swe_bench_containers.py $(ARGS)

check: setup ## lint, formatting, types, floors
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo

bench: bench-loop bench-engine bench-trainer bench-driver bench-queue bench-simulate bench-learning bench-survival bench-using bench-adapters bench-sandbox bench-prediction bench-cases bench-control bench-gateway ## every benchmark

bench-loop: $(PEERS) ## the whole loop against TRL, async against sync (ARGS="--scenes tiny"); JSON last
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/loop.py $(ARGS)

bench-engine: setup ## the engine against transformers' generate, beside the machine's limits; JSON last
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/engine.py $(ARGS)

bench-driver: setup ## start-up, the driver's share, the scheduler's events a second; JSON last
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/driver.py $(ARGS)

device-check: setup ## engine and trainer on a GPU against the CPU (ARGS="--device cpu" anywhere); JSON last
	$(BIN)/python benchmarks/device_check.py $(ARGS)

bench-trainer: setup ## a step against a plain transformers and peft loop, LoRA and full; the last line is JSON
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/trainer.py $(ARGS)

bench-adapters: setup ## tokens/s with 0, 1, 8 and 64 LoRA adapters in one batch; the last line is JSON
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/adapters.py $(ARGS)

bench-sandbox: setup ## sandboxes against a plain subprocess and plain bubblewrap, 1,000 live; JSON last
	$(BIN)/python benchmarks/sandbox.py $(ARGS)

bench-gateway: setup ## server time a request, idle sessions, what a rollout loses through the gateway; JSON last
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/gateway.py $(ARGS)

bench-cases: setup ## four published runs predicted, misses included; JSON last
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/cases.py $(ARGS)

bench-aiconfigurator: setup ## the engine's formulas against NVIDIA's tables (extra aiconfigurator); JSON last
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/aiconfigurator_check.py $(ARGS)

bench-simulate: setup ## the simulated driver: case 1 of the field report, events a second; JSON last
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/simulate.py $(ARGS)

bench-queue: setup ## the queue's cost per event, 10,000 rollouts at once, the loop against its bounds; JSON last
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/whole_queue.py $(ARGS)

bench-control: setup ## [control] against every fixed setting of a grid, on drifting simulated workloads; JSON last
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/control.py $(ARGS)

bench-learning: setup ## what staleness and correction do to learning, over seeds; goes on where it was; JSON last
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/learning.py $(ARGS)

bench-using: setup ## what looking at a run costs, how long a person waits, the memory estimate; JSON last
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/using.py $(ARGS)

bench-survival: setup ## steps that a hostile setting survives with and without correction and guard; JSON last
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/survival.py $(ARGS)

bench-prediction: setup ## one measured run predicts two others, which are then run; JSON last
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/prediction.py $(ARGS)

format: setup ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove caches and build output (.venv and runs/ stay)
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	find src tests -name __pycache__ -type d -exec rm -rf {} +

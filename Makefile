# The two commands are `make run` and `make test`; everything else is for those who work on Taipan itself.

PYTHON ?= python3
CONFIG ?= config/taipan.toml
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NODE_DIR := tests/interop
NODE_STAMP := $(NODE_DIR)/node_modules/.package-lock.json
BENCH_DIR := tests/bench/node
BENCH_STAMP := $(BENCH_DIR)/node_modules/.package-lock.json
SOURCES := broker ruleengine management tests build_compiled.py
# Compiled modules, taken only while every source of broker is what they were made of. COMPILED=no: run and bench do
# neither build nor take them.
COMPILED ?= yes
BUILT := $(CURDIR)/build/compiled
TAKEN := $(if $(filter no,$(COMPILED)),,$(BUILT))

.DEFAULT_GOAL := help
.PHONY: help setup run test compile test-compiled check format lint types cover fuzz bench bench-api bench-profile bench-compiled conformance interop soak soak-disk clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## the virtual environment in .venv, with everything in it
	@:

run: setup compiled ## start a node with config/taipan.toml (CONFIG=FILE for another; COMPILED=no: interpreted, at once)
	@exec env TAIPAN_COMPILED=$(TAKEN) $(BIN)/taipan --config $(CONFIG)

test: setup node-modules ## every test (PYTEST_ARGS="-k will" for some of them)
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

compile: setup ## the hot path with mypyc into build/compiled, from the same source (wants a C compiler and Python.h)
	@$(BIN)/python build_compiled.py

# The same for who can do without: one line says so where it cannot be done.
.PHONY: compiled
compiled: setup
	@$(if $(TAKEN),$(BIN)/python build_compiled.py --try,:)

test-compiled: compile node-modules ## every test on the compiled modules
	@TAIPAN_COMPILED=$(BUILT) $(BIN)/python -m pytest $(PYTEST_ARGS)

check: lint types test ## what a change has to pass: format, lint, types, tests

format: setup ## lay out and sort imports of all Python files
	@$(BIN)/ruff check --quiet --select I --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

lint: setup ## format check and ruff
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)

types: setup ## mypy --strict
	@$(BIN)/mypy

cover: setup node-modules ## tests with branch coverage
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

fuzz: setup ## bad bytes against the decoder for SECONDS (60); LIVE=HOST:PORT against a running node
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) $(if $(LIVE),--live $(LIVE))

bench: setup compiled bench-modules ## what make run runs, against the brokers here (ONLY="S1 S2" ROUNDS=3 DUR=3 COMPILED=no)
	@TAIPAN_COMPILED=$(TAKEN) $(BIN)/python -m tests.bench.run

# aedes, one of the brokers to measure against; left out where there is no Node.
.PHONY: bench-modules
bench-modules:
	@if command -v npm >/dev/null; then $(MAKE) --silent $(BENCH_STAMP); fi

$(BENCH_STAMP): $(BENCH_DIR)/package-lock.json
	@cd $(BENCH_DIR) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

bench-compiled: compile ## what compiling is worth: interpreted, compiled, Mosquitto (ONLY="S1 S2" ROUNDS=3 DUR=2)
	@$(BIN)/python -m tests.bench.compiled

bench-profile: setup compiled ## where the processor time goes, into docs/profiles (ONLY="S10 S11" DUR=5)
	@TAIPAN_COMPILED=$(TAKEN) $(BIN)/python -m tests.bench.profile

bench-api: setup ## what listings cost a busy node (SESSIONS=20000 RATE=5000 DUR=5)
	@$(BIN)/python -m tests.bench.api

conformance: setup ## docs/conformance.md from the tags in code and tests; prints what is open
	@$(BIN)/python -m tests.conformance.report

interop: setup node-modules ## only the tests with the clients of others
	@$(BIN)/python -m pytest tests/interop $(PYTEST_ARGS)

soak: setup compiled ## load, kill -9, restart, check every promise (CYCLES=1000 SEED=...)
	@TAIPAN_COMPILED=$(TAKEN) $(BIN)/python -m tests.soak --cycles $(or $(CYCLES),1000) $(if $(SEED),--seed $(SEED))

soak-disk: setup ## a fake disk that loses power or fails at every single operation (EVERY=1 SEED=...)
	@$(BIN)/python -m tests.soak.disk --every $(or $(EVERY),1) $(if $(SEED),--seed $(SEED))

clean: ## remove what setup and tests left behind
	rm -rf $(VENV) $(NODE_DIR)/node_modules $(BENCH_DIR)/node_modules build dist *.egg-info htmlcov .coverage .coverage.* \
	    .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A changed interpreter or pyproject.toml makes a new stamp; nothing else does, so the second time costs nothing.
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	    echo "Taipan needs Python 3.11 or newer with venv. As root: apt-get install -y python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Taipan needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
	    "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) has no venv module. As root: apt-get install -y python3-venv" >&2; exit 1; }
	@[ -x $(BIN)/python ] && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "Setting up $(VENV) (once; some seconds)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,dev]'
	@touch $@

# MQTT.js for the interoperability tests; those that want it are skipped where there is no Node.
.PHONY: node-modules
node-modules:
	@if command -v npm >/dev/null && [ -f $(NODE_DIR)/package-lock.json ]; then $(MAKE) --silent $(NODE_STAMP); fi

$(NODE_STAMP): $(NODE_DIR)/package-lock.json
	@cd $(NODE_DIR) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

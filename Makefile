# OJS backend on AWS primitives. `make help` lists what there is to do.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PORT ?= 8080
DATA ?= .ojs-data
DIST ?= dist
ENGINE ?= auto
PYTHON ?=
ARGS ?=
SEEDS ?= 10000
# A file of tests is run by one process, since its tests may share an engine; in the order of their
# names, as those with many short tests, by which both processes end together, come last.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

VENV := .venv
PY := $(VENV)/bin/python
# MiniStack pins an SDK of its own. The server looks for it here, within its own environment.
EMULATOR := $(VENV)/emulator
# Apart from all else: what draws pictures is no part of what runs or is tested.
PLOTS := build/plots
# Likewise what makes clients out of the OpenAPI document, for a test.
CLIENTS := build/clients
# What builds the wheel and says what is in it.
PACKAGING := build/packaging
PACKAGE := build/package
# The dashboard as it is served, and what tests drive a browser with.
DASHBOARD := build/dashboard
BROWSER := build/browser
PIP_OPTIONS := -qq --disable-pip-version-check --require-hashes
PIP_INSTALL := $(PY) -m pip install $(PIP_OPTIONS)
NPM_CI := npm ci --no-audit --no-fund --loglevel=error

export PYTHONPATH := shared:package:.
# The tests start dozens of Python processes, each of which would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
# CDK's bridge to Node warns of every Node release it does not know; it is tested with what is here.
export JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION := 1
export JSII_SILENCE_WARNING_DEPRECATED_NODE_VERSION := 1
export JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION := 1

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "; print "make <target> [VARIABLE=value]\n"} \
	  /^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; printf '  %-15s %s\n' \
	  'PORT=8080' 'port of the local server (make run)' \
	  'DATA=.ojs-data' 'its data folder' \
	  'DIST=dist' 'where the wheel goes (make package)' \
	  'ENGINE=auto' 'its engine: auto, dynoxide or ministack' \
	  'SEEDS=10000' 'how many runs are simulated (make simulate)' \
	  'ARGS=' 'more arguments for pytest, the simulation, the local server or cdk' \
	  'PYTHON=' 'the Python (3.11 or later) to make .venv with'

.PHONY: run
run: $(VENV)/.local $(VENV)/.engine try-dashboard ## Start the local server, with data kept in DATA
	@exec $(PY) -m local --port $(PORT) --data $(DATA) --engine $(ENGINE) $(ARGS)

.PHONY: test
test: setup ## Run the tests, without those that take long
	@$(PY) -m pytest $(PARALLEL) -m 'not exhaustive' $(ARGS)

.PHONY: test-exhaustive
test-exhaustive: setup dashboard-types $(CLIENTS)/.installed $(PACKAGING)/.installed $(BROWSER)/.installed ## Run the tests that take long, and properties with many examples
	@$(PY) -m pytest $(PARALLEL) -m '(exhaustive or hypothesis) and not whole' $(ARGS)

.PHONY: test-all
test-all: setup dashboard-types $(CLIENTS)/.installed $(PACKAGING)/.installed $(BROWSER)/.installed ## Run all tests
	@$(PY) -m pytest $(PARALLEL) $(ARGS)

.PHONY: check
check: setup dashboard-types audit $(CLIENTS)/.installed $(PACKAGING)/.installed $(BROWSER)/.installed ## Run audit, linter, formatter check, type checker and all tests
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest $(PARALLEL) $(ARGS)

# Those of functions and tools alike. What the advisory services do not know is told and is no
# failure; nor is a registry that has no such service. A known vulnerability is one.
.PHONY: audit
audit: setup ## Look for known vulnerabilities in the pinned packages
	@for set in runtime local emulator dev package; do echo "requirements/$$set.txt"; \
	  $(VENV)/bin/pip-audit --requirement requirements/$$set.txt --require-hashes --disable-pip \
	    --progress-spinner off; done
	@echo 'package-lock.json'; npm audit --loglevel=error --audit-level=high || \
	  { ! npm audit --json 2>/dev/null | grep -q '"auditReportVersion"' && \
	    echo 'The advisory service of the npm registry did not answer: not audited.'; }

.PHONY: simulate
simulate: $(VENV)/.dev ## Simulate SEEDS runs with faults, and report what was covered
	@POWERTOOLS_LOG_LEVEL=CRITICAL $(PY) -m tests.simulation.run --seeds $(SEEDS) --processes 2 $(ARGS)

.PHONY: format
format: $(VENV)/.dev ## Format the code and apply the linter's safe fixes
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

.PHONY: deploy-local
deploy-local: setup ## Deploy to a local cloud (MiniStack) and print the API's URL
	@$(PY) -m infra.deploy_local $(ARGS)

.PHONY: plots
plots: $(VENV)/.local $(VENV)/.engine $(PLOTS)/.installed ## Draw the pictures of the documentation anew
	@$(PLOTS)/bin/python docs/plots/strategies.py $(abspath $(PY))
	@$(PLOTS)/bin/python docs/plots/prices.py

.PHONY: prices
prices: | $(PY) ## Print what a million jobs cost (ARGS='request_ms=12 …')
	@$(PY) -m docs.numbers.prices $(ARGS)

.PHONY: scale
scale: | $(PY) ## Print the ceiling of each path (ARGS='--lanes 16 --shards 64')
	@$(PY) -m docs.numbers.scale $(ARGS)

.PHONY: lines
lines: | $(PY) ## Count lines of code (ARGS='--base REV' compares with a revision)
	@$(PY) tests/performance/lines.py $(ARGS)

.PHONY: numbers
numbers: setup ## Count units anew, and write them, prices and ceilings into the pages
	@POWERTOOLS_LOG_LEVEL=CRITICAL $(PY) -m tests.performance.counted
	@$(PY) -m docs.numbers.pages

.PHONY: synth
synth: setup ## Write the CloudFormation templates to cdk.out
	@node_modules/.bin/cdk synth --quiet $(ARGS)

# The functions' own packages are installed for this machine, to say what they are and what licences
# they have. Nothing of them is in the wheel: bundling fetches them by the hashes that it carries.
.PHONY: package
package: $(PACKAGING)/.installed dashboard ## Build the wheel with the CDK construct into DIST, and check it
	@rm -rf $(PACKAGE) $(DIST)/ojs_backend_aws-*.whl; mkdir -p $(PACKAGE)
	@$(PY) -m venv --without-pip $(PACKAGE)/runtime
	@$(PACKAGING)/bin/python -m pip --python $(PACKAGE)/runtime install -qq --no-compile \
	  --disable-pip-version-check --require-hashes -r requirements/runtime.txt
	@$(PACKAGING)/bin/cyclonedx-py environment --output-reproducible --validate \
	  --output-file $(PACKAGE)/functions.cdx.json $(PACKAGE)/runtime
	@$(PY) -m infra.licences $(PACKAGE)/functions.cdx.json $(PACKAGE)/licences.md
	@$(PACKAGING)/bin/python -m build --wheel --no-isolation --outdir $(DIST) . >/dev/null
	@$(PACKAGING)/bin/twine check --strict $(DIST)/*.whl

.PHONY: facts
facts: | $(PY) ## Write what the construct knows of the server, and the attributes of docs/table.md
	@$(PY) -m infra.facts
	@$(PY) -m docs.numbers.attributes

.PHONY: golden
golden: | $(PY) ## Write down anew what must not change while declarations move
	@$(PY) -m tests.golden.contents

# Pins are worked out against the public index alone, whatever this machine's pip is told: the
# machine's own addresses and builds must not get into the files.
PIP_COMPILE := env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL \
  PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND='make lock' \
  ../$(PY) -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(if $(UPGRADE),--upgrade)

.PHONY: lock
lock: $(VENV)/.dev ## Work out the pinned versions again (UPGRADE=1: the newest)
	@cd requirements && for set in runtime local emulator dev plots clients package browser; do \
	  $(PIP_COMPILE) --output-file=$$set.txt $$set.in; done
	@for folder in . dashboard tests/dashboard tests/local/clients; do npm install --prefix $$folder --package-lock-only \
	  --omit-lockfile-registry-resolved --no-audit --no-fund; done

.PHONY: dashboard
dashboard: $(DASHBOARD)/index.html ## Build the dashboard

# Wanted, not needed: the local server says so where it is not there.
.PHONY: try-dashboard
try-dashboard:
	@mkdir -p build; if ! command -v npm >/dev/null; then \
	  echo 'npm not found: no dashboard, all else works'; \
	elif ! $(MAKE) --silent dashboard 2>build/dashboard.log; then \
	  echo 'The dashboard could not be built, all else works; build/dashboard.log says why'; fi

.PHONY: dashboard-types
dashboard-types: dashboard/node_modules/.dev ## Check the types of the dashboard's code
	@cd dashboard && node_modules/.bin/tsc --noEmit

.PHONY: pictures
pictures: setup $(BROWSER)/.installed ## Take the pictures of the dashboard again
	@$(PY) -m tests.dashboard.pictures

.PHONY: setup
setup: $(VENV)/.dev $(EMULATOR)/.installed $(VENV)/.node-tools dashboard ## Install everything the other targets need

.PHONY: clients
clients: $(CLIENTS)/.installed ## Install what makes clients out of the OpenAPI document, for a test

.PHONY: clean
clean: ## Remove what was built or installed; the data in DATA stay
	rm -rf $(VENV) node_modules dashboard/node_modules build dist cdk.out .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# --- what is installed; each stamp is older than its lock file when that has changed -------------

$(PY):
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.14 python3.11); do \
	  if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	    >/dev/null 2>&1; then exec "$$python" -m venv --clear $(VENV); fi; done; \
	echo 'No Python 3.11 or later with venv found; name one: make PYTHON=/path/to/python3' >&2; exit 1

$(VENV)/.local: requirements/local.txt | $(PY)
	@echo 'Installing the Python packages of the local server …'
	@$(PIP_INSTALL) -r $<
	@touch $@

$(VENV)/.dev: requirements/dev.txt | $(PY)
	@echo 'Installing the Python packages for development …'
	@$(PIP_INSTALL) -r $<
	@touch $@ $(VENV)/.local

$(EMULATOR)/.installed: requirements/emulator.txt | $(PY)
	@echo 'Installing MiniStack …'
	@$(PY) -m venv --clear --without-pip $(EMULATOR)
	@$(PY) -m pip --python $(EMULATOR) install $(PIP_OPTIONS) -r $<
	@touch $@

# dynoxide is wanted, not needed: without npm, or a binary for this platform, it is MiniStack.
$(VENV)/.engine: package-lock.json | $(PY) $(EMULATOR)/.installed
	@if ! command -v npm >/dev/null; then \
	  echo 'npm not found: the engine will be MiniStack, unless dynoxide is on the PATH'; \
	elif $(NPM_CI) --omit=dev >/dev/null; then touch $@; \
	else echo 'npm could not install the engine: it will be MiniStack'; fi

$(PLOTS)/.installed: requirements/plots.txt | $(PY)
	@echo 'Installing the Python packages that draw pictures …'
	@$(PY) -m venv --clear $(PLOTS)
	@$(PLOTS)/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(PACKAGING)/.installed: requirements/package.txt | $(PY)
	@echo 'Installing what builds the wheel …'
	@$(PY) -m venv --clear $(PACKAGING)
	@$(PACKAGING)/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r $<
	@touch $@

dashboard/node_modules/.installed: dashboard/package-lock.json
	@echo 'Installing what builds the dashboard …'
	@$(NPM_CI) --prefix dashboard --omit=dev --ignore-scripts >/dev/null
	@touch $@

dashboard/node_modules/.dev: dashboard/package-lock.json
	@$(NPM_CI) --prefix dashboard --ignore-scripts >/dev/null
	@touch dashboard/node_modules/.installed $@

$(DASHBOARD)/index.html: dashboard/node_modules/.installed dashboard/build.mjs dashboard/index.html $(shell find dashboard/src -type f)
	@cd dashboard && node build.mjs ../$(DASHBOARD)

# A browser is the machine's: Debian's, where there is none yet.
$(BROWSER)/.installed: requirements/browser.txt tests/dashboard/package-lock.json | $(PY)
	@echo 'Installing what drives a browser …'
	@command -v chromium >/dev/null || { $(if $(filter 0,$(shell id -u)),,sudo) sh -c \
	  'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
	  --no-install-recommends chromium fonts-dejavu-core' >/dev/null; }
	@rm -rf $(BROWSER); mkdir -p $(BROWSER)
	@$(PIP_INSTALL) --target $(BROWSER)/python -r $<
	@cp tests/dashboard/package.json tests/dashboard/package-lock.json $(BROWSER)
	@$(NPM_CI) --prefix $(BROWSER) --ignore-scripts >/dev/null
	@touch $@

$(CLIENTS)/.installed: requirements/clients.txt tests/local/clients/package-lock.json | $(PY)
	@echo 'Installing what makes clients out of the OpenAPI document …'
	@$(PY) -m venv --clear $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r $<
	@cp tests/local/clients/package.json tests/local/clients/package-lock.json $(CLIENTS)
	@$(NPM_CI) --prefix $(CLIENTS) >/dev/null
	@touch $@

$(VENV)/.node-tools: package-lock.json | $(PY)
	@command -v npm >/dev/null || { \
	  echo 'npm not found: install Node.js 20 or later (only `make run` does without)' >&2; exit 1; }
	@echo 'Installing the Node tools …'
	@$(NPM_CI) >/dev/null
	@touch $@ $(VENV)/.engine

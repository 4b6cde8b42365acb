# OJS backend on AWS primitives. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PORT ?= 8080
DATA ?= .ojs-data
DIST ?= dist
TEMPLATE ?= build/template
ENGINE ?= auto
PYTHON ?=
ARGS ?=
APP ?=
SEEDS ?= 10000
# One process runs all tests of a file, because they can share an engine. Files run in alphabetical
# order: files with many short tests come last, so that all processes end at the same time. Slow tests
# wait for servers for a quarter of their time: three processes keep two cores busy.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

VENV := .venv
PY := $(VENV)/bin/python
# MiniStack pins another SDK version. The server expects it here, in its own environment.
EMULATOR := $(VENV)/emulator
# Separate, because the packages that draw plots are not part of the server or its tests.
PLOTS := build/plots
# Separate too: the packages that generate clients from the OpenAPI document, for a test.
CLIENTS := build/clients
# Separate too: the frameworks that pages have examples for, and a second type checker, for tests.
INTEGRATIONS := build/integrations
# The packages that build the documentation site and its generated pages.
DOCS := build/docs
# The packages that build the wheel and list its content.
PACKAGING := build/packaging
PACKAGE := build/package
# The built dashboard, and the browser driver of its tests.
DASHBOARD := build/dashboard
BROWSER := build/browser
# Python compiles what is imported. To compile all modules of all packages takes as long as the rest
# of an installation.
PIP_OPTIONS := -qq --no-compile --disable-pip-version-check --require-hashes
PIP_INSTALL := $(PY) -m pip install $(PIP_OPTIONS)
# In an environment of its own, with the pip of .venv: one more pip takes seconds to install.
VENV_INSTALL = $(PY) -m venv --clear --without-pip $(@D) && $(PY) -m pip --python $(@D) install $(PIP_OPTIONS) -r $<
NPM_CI := npm ci --no-audit --no-fund --loglevel=error

export PYTHONPATH := shared:package:.
# The tests start dozens of Python processes, and each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# CDK's bridge to Node warns about Node releases that it doesn't know. The installed one is tested.
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
	  'TEMPLATE=build/template' 'folder of the template (make template)' \
	  'ENGINE=auto' 'its engine: auto, dynoxide or ministack' \
	  'SEEDS=10000' 'how many runs are simulated (make simulate)' \
	  'ARGS=' 'more arguments for pytest, the simulation, the local server or cdk' \
	  'PYTHON=' 'the Python (3.11 or later) to make .venv with'

.PHONY: run
run: $(VENV)/.local $(VENV)/.engine try-dashboard ## Start the local server, with its data in DATA
	@exec $(PY) -m local --port $(PORT) --data $(DATA) --engine $(ENGINE) $(ARGS)

.PHONY: test
test: setup ## Run the fast tests
	@$(PY) -m pytest $(PARALLEL) -m 'not exhaustive' $(ARGS)

.PHONY: test-exhaustive
test-exhaustive: setup dashboard-types $(CLIENTS)/.installed $(INTEGRATIONS)/.installed $(PACKAGING)/.installed $(BROWSER)/.installed $(DOCS)/.installed ## Run the slow tests, and property tests with many examples
	@$(PY) -m pytest $(PARALLEL) -n 3 -m '(exhaustive or hypothesis) and not whole' $(ARGS)

.PHONY: test-all
test-all: setup dashboard-types $(CLIENTS)/.installed $(INTEGRATIONS)/.installed $(PACKAGING)/.installed $(BROWSER)/.installed $(DOCS)/.installed ## Run all tests
	@$(PY) -m pytest $(PARALLEL) $(ARGS)

.PHONY: check
check: setup dashboard-types audit $(CLIENTS)/.installed $(INTEGRATIONS)/.installed $(PACKAGING)/.installed $(BROWSER)/.installed $(DOCS)/.installed ## Run the audit, linter, formatter check, type checker, and all tests
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest $(PARALLEL) $(ARGS)

# For packages of functions and tools. A package that the advisory services don't know is reported,
# and is not a failure. Neither is a registry without such a service. A known vulnerability is.
.PHONY: audit
audit: setup ## Check the pinned packages for known vulnerabilities
	@for set in runtime local emulator dev package; do echo "requirements/$$set.txt"; \
	  $(VENV)/bin/pip-audit --requirement requirements/$$set.txt --require-hashes --disable-pip \
	    --progress-spinner off; done
	@echo 'package-lock.json'; npm audit --loglevel=error --audit-level=high || \
	  { ! npm audit --json 2>/dev/null | grep -q '"auditReportVersion"' && \
	    echo 'No response from the advisory service of the npm registry: packages not audited.'; }

.PHONY: simulate
simulate: $(VENV)/.dev ## Simulate SEEDS runs with faults, and report the coverage
	@POWERTOOLS_LOG_LEVEL=CRITICAL $(PY) -m tests.simulation.run --seeds $(SEEDS) --processes 2 $(ARGS)

.PHONY: format
format: $(VENV)/.dev ## Format the code and apply the linter's safe fixes
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

.PHONY: deploy-local
deploy-local: setup ## Deploy to a local cloud (MiniStack): this repository, or a CDK app (APP='python app.py')
	@$(PY) -m infra.deploy_local $(if $(APP),--app '$(APP)') $(ARGS)

.PHONY: plots
plots: $(VENV)/.local $(VENV)/.engine $(PLOTS)/.installed ## Draw the plots of the documentation again
	@$(PLOTS)/bin/python docs/plots/strategies.py $(abspath $(PY))
	@$(PLOTS)/bin/python docs/plots/prices.py

.PHONY: prices
prices: | $(PY) ## Print the price of 1 million jobs (ARGS='request_ms=12…')
	@$(PY) -m docs.numbers.prices $(ARGS)

.PHONY: scale
scale: | $(PY) ## Print the ceiling of each path (ARGS='--lanes 16 --shards 64')
	@$(PY) -m docs.numbers.scale $(ARGS)

.PHONY: lines
lines: | $(PY) ## Count lines of code (ARGS='--base REV' compares with a revision)
	@$(PY) tests/performance/lines.py $(ARGS)

.PHONY: numbers
numbers: setup ## Measure units again, and write units, prices, and ceilings into the pages
	@POWERTOOLS_LOG_LEVEL=CRITICAL $(PY) -m tests.performance.counted
	@$(PY) -m docs.numbers.pages

.PHONY: synth
synth: setup ## Write the CloudFormation templates to cdk.out
	@node_modules/.bin/cdk synth --quiet $(ARGS)

.PHONY: template
template: setup ## Write a CloudFormation template and its files to TEMPLATE (ARGS='-c push=true')
	@$(PY) -m infra.template --out $(TEMPLATE) $(ARGS)

# The functions' packages are installed on this machine to list them and their licenses. The wheel
# doesn't contain them: bundling downloads them by the hashes in the wheel.
.PHONY: package
package: $(PACKAGING)/.installed dashboard ## Build the wheel with the CDK construct into DIST, and check it
	@rm -rf $(PACKAGE) $(DIST)/ojs_backend_aws-*.whl; mkdir -p $(PACKAGE)
	@$(PY) -m venv --without-pip $(PACKAGE)/runtime
	@$(PY) -m pip --python $(PACKAGE)/runtime install $(PIP_OPTIONS) -r requirements/runtime.txt
	@$(PACKAGING)/bin/cyclonedx-py environment --output-reproducible --validate \
	  --output-file $(PACKAGE)/functions.cdx.json $(PACKAGE)/runtime
	@$(PY) -m infra.licences $(PACKAGE)/functions.cdx.json $(PACKAGE)/licences.md
	@$(PACKAGING)/bin/python -m build --wheel --no-isolation --outdir $(DIST) . >/dev/null
	@$(PACKAGING)/bin/twine check --strict $(DIST)/*.whl

.PHONY: release-check
release-check: | $(PY) ## Check that all versions agree (ARGS='--tag v1.2.3' also checks the changelog)
	@$(PY) -m infra.release $(ARGS)

# Twice, from sources and pins alone: who builds the tag must get the same bytes.
.PHONY: release
release: setup $(PACKAGING)/.installed ## Build the wheel and the template twice, compare them, and list the packages
	@rm -rf $(DIST) build/again; for folder in build/again $(DIST); do \
	  rm -rf build/lambda $(DASHBOARD); \
	  $(MAKE) package template DIST=$$folder TEMPLATE=$$folder/template; done
	@diff -r build/again $(DIST) && rm -rf build/again
	@cp $(PACKAGE)/functions.cdx.json $(DIST)
	@cd dashboard && npm sbom --package-lock-only --omit dev --sbom-format cyclonedx >$(abspath $(DIST))/dashboard.cdx.json
	@$(PY) -m infra.release --notes $(DIST)/notes.md

.PHONY: facts
facts: setup ## Write the version, and the server facts for the construct, the client, and the generated pages
	@$(PY) -m infra.facts
	@$(PY) -m infra.release --write
	@$(PY) -m docs.numbers.attributes
	@$(PY) -m docs.site.reference

.PHONY: docs
docs: $(VENV)/.local $(DOCS)/.installed ## Build the documentation site into build/site
	@$(PY) -m docs.site.build

.PHONY: docs-serve
docs-serve: $(VENV)/.local $(DOCS)/.installed ## Serve the documentation site on port 8000
	@$(PY) -m docs.site.build localhost:8000

.PHONY: docs-publish
docs-publish: export OJS_DOCS_VERSIONS := mike
docs-publish: docs ## Add the built site to DIST/site as a version (ARGS=0.3.0, or ARGS=dev)
	@$(PY) -m docs.site.publish $(DIST)/site $(ARGS)

# Pins are resolved with the public index only, regardless of this machine's pip configuration: its
# addresses and local builds must not get into the files.
PIP_COMPILE := env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL \
  PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND='make lock' \
  ../$(PY) -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(if $(UPGRADE),--upgrade)

.PHONY: lock
lock: $(VENV)/.dev ## Resolve the pinned versions again (UPGRADE=1: the newest)
	@cd requirements && for set in runtime local emulator dev plots clients integrations package browser docs; do \
	  $(PIP_COMPILE) --output-file=$$set.txt $$set.in; done
	@for folder in . dashboard docs/site tests/dashboard tests/local/clients tests/library/integrations; do npm install --prefix $$folder --package-lock-only \
	  --omit-lockfile-registry-resolved --no-audit --no-fund; done

.PHONY: dashboard
dashboard: $(DASHBOARD)/index.html ## Build the dashboard

# Optional: without it, the local server reports that the dashboard is not built.
.PHONY: try-dashboard
try-dashboard:
	@mkdir -p build; if ! command -v npm >/dev/null; then \
	  echo 'npm not found: the dashboard is not built. The API works without it'; \
	elif ! $(MAKE) --silent dashboard 2>build/dashboard.log; then \
	  echo 'The dashboard build failed. The API works without it. See build/dashboard.log'; fi

.PHONY: dashboard-types
dashboard-types: dashboard/node_modules/.dev ## Check the types of the dashboard's code
	@cd dashboard && node_modules/.bin/tsc --noEmit

.PHONY: pictures
pictures: setup $(BROWSER)/.installed ## Take the pictures of the dashboard again
	@$(PY) -m tests.dashboard.pictures

.PHONY: setup
setup: $(VENV)/.dev $(EMULATOR)/.installed $(VENV)/.node-tools dashboard ## Install everything the other targets need

.PHONY: clients
clients: $(CLIENTS)/.installed ## Install the generators of clients from the OpenAPI document, for a test

.PHONY: integrations
integrations: $(INTEGRATIONS)/.installed ## Install the frameworks of the pages and a type checker, for tests

.PHONY: clean
clean: ## Delete everything built or installed, except the data in DATA
	rm -rf $(VENV) node_modules dashboard/node_modules build dist cdk.out .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# --- installations: a stamp is older than its lock file if that has changed ----------------------

$(PY):
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.14 python3.11); do \
	  if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	    >/dev/null 2>&1; then exec "$$python" -m venv --clear $(VENV); fi; done; \
	echo 'Python 3.11 or later with venv not found. Set it: make PYTHON=/path/to/python3' >&2; exit 1

$(VENV)/.local: requirements/local.txt | $(PY)
	@echo 'Installing the Python packages of the local server…'
	@$(PIP_INSTALL) -r $<
	@touch $@

$(VENV)/.dev: requirements/dev.txt | $(PY)
	@echo 'Installing the Python packages for development…'
	@$(PIP_INSTALL) -r $<
	@touch $@ $(VENV)/.local

$(EMULATOR)/.installed: requirements/emulator.txt | $(PY)
	@echo 'Installing MiniStack…'
	@$(VENV_INSTALL)
	@touch $@

# dynoxide is optional: without npm, or a binary for this platform, the engine is MiniStack.
$(VENV)/.engine: package-lock.json | $(PY) $(EMULATOR)/.installed
	@if ! command -v npm >/dev/null; then \
	  echo 'npm not found: the engine will be MiniStack, unless dynoxide is on the PATH'; \
	elif $(NPM_CI) --omit=dev >/dev/null; then touch $@; \
	else echo 'npm could not install dynoxide: the engine will be MiniStack'; fi

$(PLOTS)/.installed: requirements/plots.txt | $(PY)
	@echo 'Installing the Python packages that draw plots…'
	@$(VENV_INSTALL)
	@touch $@

$(DOCS)/.installed: requirements/docs.txt docs/site/package-lock.json | $(PY)
	@echo 'Installing what builds the documentation site …'
	@$(VENV_INSTALL) --compile  # a test bounds the CPU time of the first build
	@cp docs/site/package.json docs/site/package-lock.json $(DOCS)
	@$(NPM_CI) --prefix $(DOCS) --ignore-scripts >/dev/null
	@touch $@

$(PACKAGING)/.installed: requirements/package.txt | $(PY)
	@echo 'Installing the packages that build the wheel…'
	@$(VENV_INSTALL)
	@touch $@

dashboard/node_modules/.installed: dashboard/package-lock.json
	@echo 'Installing the packages that build the dashboard…'
	@$(NPM_CI) --prefix dashboard --omit=dev --ignore-scripts >/dev/null
	@touch $@

dashboard/node_modules/.dev: dashboard/package-lock.json
	@$(NPM_CI) --prefix dashboard --ignore-scripts >/dev/null
	@touch dashboard/node_modules/.installed $@

$(DASHBOARD)/index.html: dashboard/node_modules/.installed dashboard/build.mjs dashboard/index.html $(shell find dashboard/src -type f)
	@cd dashboard && node build.mjs ../$(DASHBOARD)

# Use the machine's browser. Without one, install Debian's.
$(BROWSER)/.installed: requirements/browser.txt tests/dashboard/package-lock.json | $(PY)
	@echo 'Installing the browser driver…'
	@command -v chromium >/dev/null || { $(if $(filter 0,$(shell id -u)),,sudo) sh -c \
	  'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
	  --no-install-recommends chromium fonts-dejavu-core' >/dev/null; }
	@rm -rf $(BROWSER); mkdir -p $(BROWSER)
	@$(PIP_INSTALL) --target $(BROWSER)/python -r $<
	@cp tests/dashboard/package.json tests/dashboard/package-lock.json $(BROWSER)
	@$(NPM_CI) --prefix $(BROWSER) --ignore-scripts >/dev/null
	@touch $@

$(CLIENTS)/.installed: requirements/clients.txt tests/local/clients/package-lock.json | $(PY)
	@echo 'Installing the generators of clients…'
	@$(VENV_INSTALL)
	@cp tests/local/clients/package.json tests/local/clients/package-lock.json $(CLIENTS)
	@$(NPM_CI) --prefix $(CLIENTS) >/dev/null
	@touch $@

$(INTEGRATIONS)/.installed: requirements/integrations.txt tests/library/integrations/package-lock.json | $(PY)
	@echo 'Installing the frameworks of the pages…'
	@$(VENV_INSTALL)
	@cp tests/library/integrations/package.json tests/library/integrations/package-lock.json $(INTEGRATIONS)
	@$(NPM_CI) --prefix $(INTEGRATIONS) --ignore-scripts >/dev/null
	@touch $@

$(VENV)/.node-tools: package-lock.json | $(PY)
	@command -v npm >/dev/null || { \
	  echo 'npm not found: install Node.js 22 or later (only `make run` does without)' >&2; exit 1; }
	@echo 'Installing the Node tools …'
	@$(NPM_CI) >/dev/null
	@touch $@ $(VENV)/.engine

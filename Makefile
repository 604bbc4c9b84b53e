# Short targets; each makes what it needs, so each works as the first command on a fresh machine.

ENGINE ?= temporal
SAMPLE ?= orders
PORT ?= 8931
REQUIREMENTS ?=
ONLY ?=
PYTHONS ?=
STRICT ?=
RELEASE ?=

# Python keeps what it compiled: otherwise each process of a test compiles all that it imports
unexport PYTHONDONTWRITEBYTECODE

# Four at a time on two cores, as some wait for deadlines most of their time
QUICK := tests --ignore tests/sidecar --ignore tests/system

RUN := .venv/bin/python -m
PYTHON_READY := .venv/.ready
NODE_READY := node_modules/.ready
PYPROJECTS := pyproject.toml conformance/pyproject.toml $(wildcard adapters/*/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help demo up quick test test-all test-lowest check check-deps dist docs first-start lock format conformance clients hosts bench pictures clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: $(PYTHON_READY)  ## watch a workflow as an MCP task: ENGINE=dbos|temporal|stepfunctions|google|buildbot|airflow
	@exec $(RUN) scripts.demo $(if $(filter-out file,$(origin ENGINE)),--engine $(ENGINE))

up: $(PYTHON_READY) $(NODE_READY)  ## engine, worker and sidecar in the foreground: ENGINE=temporal|stepfunctions|google|dbos SAMPLE=orders PORT=8931; ENGINE=buildbot|airflow SAMPLE=release
	@exec $(RUN) scripts.up --engine $(ENGINE) --sample $(SAMPLE) --port $(PORT)

quick: $(PYTHON_READY)  ## tests of the rooms that start no process and need no engine: a minute
	@.venv/bin/pytest -q -n 4 --dist worksteal -m "not slow and not process" $(QUICK)

test: $(PYTHON_READY) $(NODE_READY)  ## all tests but the slow ones
	@.venv/bin/pytest -q -n 4 --dist worksteal -m "not slow"

test-all: $(PYTHON_READY) $(NODE_READY) test-lowest  ## all tests, slow ones too, and test-lowest (needs a package index)
	@.venv/bin/pytest -q -n 4 --dist worksteal

test-lowest: $(PYTHON_READY)  ## tests that need no engine, with the lowest versions that our bounds allow
	@scripts/test-lowest

check: $(PYTHON_READY)  ## format, lint and types, changing nothing
	@scripts/check

dist: $(PYTHON_READY)  ## build every wheel, check it, install from the wheels alone and follow the README on each Python here [PYTHONS="python3.12 python3.13"] [RELEASE=1]
	@$(RUN) scripts.dist "$$(scripts/install-tools)" $(if $(RELEASE),--release) $(PYTHONS)

first-start: $(PYTHON_READY)  ## follow the README's first steps on the newest Python here, if it is 3.12 or newer
	@$(RUN) tests.support.first_start

check-deps: $(PYTHON_READY)  ## known vulnerabilities of the packages in constraints.txt; needs the network
	@$(RUN) scripts.check_deps "$$(scripts/install-tools)"

lock: $(PYTHON_READY)  ## rewrite constraints.txt: the newest versions that our bounds allow, with hashes
	@scripts/lock

format: $(PYTHON_READY)  ## format the code, fix what the linter can, and write docs/engines/presets
	@$(RUN) ruff format
	@$(RUN) ruff check --fix
	@$(RUN) scripts.preset_pages

docs: $(PYTHON_READY)  ## the site of the documentation, in site/: links and anchors checked
	@$(RUN) scripts.site "$$(scripts/install-tools)/zensical"

conformance: $(PYTHON_READY) $(NODE_READY)  ## the official MCP suite, and ours for Events: ENGINE=temporal|stepfunctions|google|dbos [REQUIREMENTS=2025-11-25]
	@exec $(RUN) scripts.conformance --engine $(ENGINE) $(if $(REQUIREMENTS),--requirements $(REQUIREMENTS))

clients: $(PYTHON_READY) $(NODE_READY)  ## third-party clients on all engines or ENGINE=...; writes docs/use/clients.md
	@$(RUN) tests.clients.clients
	@.venv/bin/pytest -q tests/clients/test_clients.py tests/clients/test_events.py $(if $(filter-out file,$(origin ENGINE)),-k "$(ENGINE)")

hosts: $(PYTHON_READY) $(NODE_READY)  ## Codex CLI, Gemini CLI and opencode with a scripted model [ONLY=codex]; writes docs/use/clients.md
	@exec $(RUN) tests.clients.host_trials $(if $(ONLY),--only $(ONLY))

bench: $(PYTHON_READY)  ## benchmarks against a minimal server: ENGINE=temporal|stepfunctions|google|http|dbos|replicas|events [ONLY=start,listen] [STRICT=1] [KEEP=1]
	@exec $(RUN) benchmarks --engine $(ENGINE) $(if $(ONLY),--only $(ONLY)) $(if $(STRICT),--strict) $(if $(KEEP),--keep)

pictures: $(PYTHON_READY) $(NODE_READY)  ## docs/pictures, of real runs and of its diagrams
	@$(RUN) scripts.diagrams
	@$(RUN) scripts.terminal_pictures
	@$(RUN) scripts.card_pictures
	@$(RUN) scripts.approval_pictures

clean:  ## remove what was installed, built and kept here
	@rm -rf .venv node_modules .cache dist site .mypy_cache .ruff_cache .pytest_cache

$(PYTHON_READY): $(PYPROJECTS) scripts/install-python
	@scripts/install-python
	@touch $@

$(NODE_READY): package.json scripts/install-node
	@scripts/install-node
	@touch $@

# The commands of the project. Needs Python 3.10 or newer with venv, and make; everything else goes into .venv.

PYTHON ?= python3
# for the oldest versions of what RedBeat needs
OLDEST_PYTHON ?= $(if $(shell python3.10 -c "" 2>&1 || echo no),$(PYTHON),python3.10)
VENV := .venv
REQUIREMENTS := -r requirements.dev.txt
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
COMPILED := $(VENV)/compiled
# Many tests wait for a process or a server.
PARALLEL := --numprocesses=6 --dist=loadfile --no-loadscope-reorder
# Few tests need packages for Node; they are skipped where npm is missing, or cannot install them.
NODE := $(if $(shell command -v npm 2>/dev/null),$(VENV)/node/installed)
# the files that have a longer form than that of `make test`
LONG_FORMS = tests/faults $(shell grep -rlE "few_cases|long_form|also_sharded|some_of|IS_LONG|@given" --include="test_*.py" \
  tests/contract tests/integration tests/unit)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-oldest faults bench check generated docs screenshots clean

# Hundreds of processes import the same modules: where none of them may keep the bytecode, each compiles it anew.
test test-all faults bench: export PYTHONDONTWRITEBYTECODE :=

help:  ## show this list
	@echo "RedBeat, a Celery beat scheduler in Redis. Commands:"
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

demo: $(STAMP)  ## a server, a worker, a beat and the dashboard at work, until Ctrl-C; or: make demo SECONDS=20
	@$(BIN)/python -m demo $(if $(SECONDS),--seconds $(SECONDS))

test: $(STAMP) $(if $(ARGS),,$(COMPILED))  ## what to run before a push, in four minutes; a part of it: make test ARGS="-k rrule -x"
	@$(BIN)/python -m pytest $(or $(ARGS),$(PARALLEL) -m "not services and not slow")

test-all: $(STAMP) $(COMPILED) $(NODE)  ## all tests, with redis-server, RabbitMQ and a browser; then test-oldest
	@failed=; SERVER=redis $(BIN)/python -m pytest $(PARALLEL) || failed=1; \
	  $(MAKE) --no-print-directory test-oldest PYTHON=$(OLDEST_PYTHON) ARGS= && test -z "$$failed"

test-oldest:  ## `make test` with the oldest supported versions, e.g. make test-oldest PYTHON=python3.10
	@$(MAKE) --no-print-directory test VENV=.venv-oldest \
	  REQUIREMENTS="-r requirements.dev.txt -c requirements.oldest.txt"

faults: $(STAMP) $(NODE)  ## beats and servers killed by the thousand, a million entries, all cases of all tests; an hour or more
	@REDBEAT_FAULTS=long $(BIN)/python -m pytest $(LONG_FORMS) $(ARGS)

generated: $(STAMP)  ## types and JSON Schemas that follow from the table of an entry's fields
	@$(BIN)/python -m docs.generate

check: $(STAMP)  ## lint, types, layers and docs
	@$(BIN)/ruff check .
	@$(BIN)/python -m docs.generate --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/sphinx-build -q -n -W --keep-going docs build/docs

docs: $(STAMP)  ## the documentation as HTML, in build/docs
	@$(BIN)/sphinx-build -q -n -W --keep-going docs build/docs
	@echo "Open build/docs/index.html"

bench: $(STAMP)  ## what RedBeat costs, beside 2.4.2; half an hour, or: make bench ARGS="--quick --only burst"
	@$(BIN)/python -m tests.benchmarks $(ARGS)

screenshots: $(STAMP)  ## the pictures in the documentation, taken anew; or: make screenshots ARGS="--only dashboard"
	@$(BIN)/python -m docs.screenshots $(ARGS)

clean:  ## remove everything that the other commands made
	@rm -rf .venv .venv-oldest .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Otherwise each process of a run would compile all tests by itself. Errors are left to the run.
$(COMPILED): $(STAMP) $(shell find tests -name "*.py")
	@for folder in $(dir $(wildcard tests/*/conftest.py)); do \
	  $(BIN)/python -m pytest -qq --collect-only $$folder >/dev/null 2>&1 & done; wait
	@touch $@

# Made when missing, made up to date when what to install has changed, left alone otherwise.
$(STAMP): pyproject.toml requirements.dev.txt requirements.redbeat2.txt setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "RedBeat needs Python 3.10 or newer as \"$(PYTHON)\"; name another one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing what is needed into $(VENV) (once; takes a minute or two) ..."
	@log=$$(mktemp) && trap 'rm -f "$$log"' EXIT && \
	{ { test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV); } && \
	  $(BIN)/python -m pip install --disable-pip-version-check $(REQUIREMENTS) && \
	  $(BIN)/python -m pip install --disable-pip-version-check --no-deps --upgrade --target $(VENV)/redbeat2 \
	    -r requirements.redbeat2.txt && \
	  touch $@; } >"$$log" 2>&1 || { cat "$$log" >&2; echo "The installation failed; its output is above." >&2; exit 1; }

$(VENV)/node/installed: tests/package.json
	@mkdir -p $(@D) && cp $< $(@D) && npm install --prefix $(@D) --no-audit --no-fund --no-package-lock --silent && touch $@ || \
	  echo "npm could not install what tests/package.json names: the tests that need it are skipped." >&2

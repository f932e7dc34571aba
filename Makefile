# Every target makes its own set-up, so that each works as the first command in a fresh clone.
# Needed on the machine: make, bash, and a Python from 3.11 to 3.14 (scripts/python says which it
# takes, and sees to its venv module); Java is seen to.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV ?= .venv
MINISTACK_VENV ?= .venv-ministack
PYTEST_ARGS ?=
# Most tests wait for other processes half of their time. Each worker has servers of its own, which
# take memory: there are eight at most.
TEST_WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? 2 * cores : 8)))
BENCH_ARGS ?=
DEMO_ARGS ?=
COMPAT_ARGS ?=
SUITES ?=
SPARKS ?=
MINUTES ?= 5
FUZZ_ARGS ?=
SEED ?=
WORLDS ?=
MACHINES ?=
COMMANDS ?=

PY := $(VENV)/bin/python
# What needs nothing of each other; what each says comes in one piece.
SIDE_BY_SIDE := $(MAKE) --jobs 4 --output-sync=target
# Sets have one order then in all processes, so a simulated world is the same in each.
REPEATABLE := PYTHONHASHSEED=0 $(PY)
PYTEST := $(REPEATABLE) -m pytest -q $(PYTEST_ARGS)
# Java and Python find no file in a folder with an umlaut where the locale is C, or is not there.
export LC_ALL := C.UTF-8
# Without byte code every broker that a test starts would compile its libraries anew.
export PYTHONDONTWRITEBYTECODE :=
export STRANDLINE_MINISTACK_PYTHON ?= $(abspath $(MINISTACK_VENV))/bin/python

# What stands for "this lock is installed". Each is newer than the lock it was made from.
DEV := $(VENV)/.installed-dev
DEMO := $(VENV)/.installed-demo
MINISTACK := $(MINISTACK_VENV)/.installed

$(DEV): requirements/dev.lock requirements/build.lock pyproject.toml
	@scripts/venv $(VENV) requirements/dev.lock --editable
	@touch $@

# demo.lock is a part of dev.lock: in a developer's environment this finds everything in place.
$(DEMO): requirements/demo.lock requirements/build.lock pyproject.toml
	@scripts/venv $(VENV) requirements/demo.lock --editable
	@touch $@

$(MINISTACK): localstack/requirements-ministack.txt
	@scripts/venv $(MINISTACK_VENV) localstack/requirements-ministack.txt
	@touch $@

LISTED := awk 'BEGIN { FS = ":.*\#\# " } /^[a-z-]+:.*\#\# / { printf "  make %-23s %s\n", $$1, $$2 }'

.PHONY: help
help: ## show this list
	@$(LISTED) Makefile

.PHONY: help-more
help-more: ## show all other targets: environments, more tests, benchmarks
	@for file in make/*.mk; do sed -n '1s/^# /\n/p' "$$file"; $(LISTED) "$$file"; done

.PHONY: demo
demo: $(DEMO) $(MINISTACK) java ## the main job on real data: produce, archive to S3, read back, ask Spark, make a table
	@$(MAKE) $(JAR)
	@$(PY) -m demo $(DEMO_ARGS)

.PHONY: demo-cluster
demo-cluster: $(DEMO) java ## three brokers, a producer and a group, kill -9 of one: how long its partitions wait; and Spark
	@$(MAKE) $(JAR)
	@$(PY) -m demo.cluster $(DEMO_ARGS)

# Types are checked beside the tests, which leave a core idle now and then.
.PHONY: test
test: ## everything CI runs: static checks and all tests
	@scripts/python > /dev/null
	@$(SIDE_BY_SIDE) $(DEV) $(MINISTACK) packages
	@$(SIDE_BY_SIDE) lint floors collect jar
	@$(MAKE) --jobs 2 types all-tests

.PHONY: all-tests
all-tests:
	$(PYTEST) -n $(TEST_WORKERS) --dist loadfile --durations=15 -m "not heavy"

.PHONY: check
check: $(DEV) ## quick: format, lint, types, import floors, unit tests that need nothing outside
	@$(SIDE_BY_SIDE) static
	$(PYTEST) -m "not heavy and not slow and not s3 and not spark and not crash and not clients" tests

.PHONY: format
format: $(DEV) ## format the code and mend what the linter can mend
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

.PHONY: docs
docs: $(DEV) ## write the generated pages of docs/ anew
	@$(PY) -m scripts.docs.doc_pages docs

.PHONY: clean
clean: ## remove what make and the tests made, but no environment and no demo data
	rm -rf $(JAR) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

# Each worker loads every test. Once is enough to write their byte code and that of the libraries,
# and goes on the core that mypy leaves alone.
.PHONY: collect
collect: $(DEV)
	@found=$$($(PYTEST) --collect-only) || { echo "$$found"; exit 1; }

.PHONY: static lint types floors
static: lint types floors

lint: $(DEV)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

types: $(DEV)
	$(VENV)/bin/mypy

floors: $(DEV)
	$(VENV)/bin/lint-imports

.PHONY: java
java:
	@scripts/java

# One after the other: Debian installs nothing beside something else.
.PHONY: packages
packages:
	@$(MAKE) commands
	@$(MAKE) java

# Those of the pages, whose tests run what they say.
.PHONY: commands
commands:
	@scripts/commands curl free openssl

include make/*.mk

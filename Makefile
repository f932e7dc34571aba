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
MACHINES ?=
COMMANDS ?=

PY := $(VENV)/bin/python
# What needs nothing of each other; what each says comes in one piece.
SIDE_BY_SIDE := $(MAKE) --jobs 4 --output-sync=target
PYTEST := $(PY) -m pytest -q $(PYTEST_ARGS)
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

.PHONY: help
help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: $(DEMO) $(MINISTACK) java ## the main job on real data: produce, archive to S3, read back, ask Spark, make a table
	@$(MAKE) $(JAR)
	@$(PY) -m demo $(DEMO_ARGS)

.PHONY: test
test: $(DEV) commands ## everything CI runs: static checks and all tests
	@$(SIDE_BY_SIDE) static collect $(MINISTACK) jar
	$(PYTEST) -n $(TEST_WORKERS) --dist loadfile --durations=15

.PHONY: check
check: $(DEV) ## quick: format, lint, types, import floors, unit tests that need nothing outside
	@$(SIDE_BY_SIDE) static
	$(PYTEST) -m "not slow and not s3 and not spark and not crash and not clients" tests

.PHONY: test-slow
test-slow: $(DEV) commands $(MINISTACK) jar ## only the tests that `make check` leaves out
	$(PYTEST) -n $(TEST_WORKERS) --dist loadfile --durations=15 \
		-m "slow or s3 or spark or crash or clients"

.PHONY: test-faults
test-faults: $(DEV) ## planted faults of the tiers, each searched for from the first random history on
	STRANDLINE_SEARCH_FAULTS=1 $(PYTEST) -rP --show-capture=stdout --durations=10 \
		tests/unit/storage/tiering/rewrite/test_compacted_history.py tests/unit/storage/tiering/test_planted_faults.py

# Loaded into the tests and into the brokers that they start.
LATE_SYNCS := bench-data/late_syncs.so

$(LATE_SYNCS): tests/support/late_syncs.c
	@scripts/commands cc
	@mkdir -p $(@D)
	cc -O2 -Wall -Wextra -shared -fPIC -o $@ $< -ldl

.PHONY: test-slow-disk
test-slow-disk: $(DEV) commands $(MINISTACK) jar $(LATE_SYNCS) ## the system tests on a disk whose syncs are late by up to seconds
	LD_PRELOAD=$(abspath $(LATE_SYNCS)) $(PYTEST) -n $(TEST_WORKERS) --dist loadfile --durations=15 \
		tests/system

.PHONY: test-localstack
test-localstack: $(DEV) ## the object store's contract over LocalStack (no docker)
	@trap localstack/down-host.sh EXIT; localstack/up-host.sh; \
	STRANDLINE_TEST_S3_ENDPOINT=http://127.0.0.1:$${PORT:-4566} $(PYTEST) tests/contract -k endpoint

.PHONY: test-machines
test-machines: ## demo and test in bare roots of Debian and Ubuntu, as root (MACHINES=debian-13 COMMANDS=demo)
	@MACHINES="$(MACHINES)" COMMANDS="$(COMMANDS)" scripts/test-machines

# What stands for "these versions of the S3 servers are built".
S3_SERVERS := bench-data/s3-servers/.installed

$(S3_SERVERS): requirements/s3-servers.txt
	@scripts/s3-servers $(@D)
	@touch $@

.PHONY: test-stores
test-stores: $(DEV) $(S3_SERVERS) ## the contract, and the way from produce to restore, over MinIO, versitygw and rclone (needs Go)
	STRANDLINE_TEST_S3_SERVERS=$(dir $(S3_SERVERS)) $(PYTEST) -k "minio or versitygw or rclone" \
		tests/contract tests/system/tiers/restore/check_stores.py --durations=5

.PHONY: compat
compat: $(DEV) kafka-jars ## the test suites of kafka-python, librdkafka and others (SUITES=folder) against our broker; writes docs/reference/compatibility.md
	@$(PY) -m tests.compat.suites --write-page $(if $(SUITES),--sources $(SUITES)) $(COMPAT_ARGS)

.PHONY: interop
interop: $(DEV) $(MINISTACK) jar bench-data/jvm/clients-4.x/.installed ## Apache Kafka's newest Java tools against our broker, step by step; its copier with kills
	@$(PY) -m tests.compat.interop bench-data/jvm/clients-4.x
	@$(PY) -m tests.compat.jvm.exactly_once bench-data/jvm clients-4.x

.PHONY: takeover
takeover: $(DEV) kafka-jars ## folders of an Apache Kafka: partitions opened, appended to, given back; its metadata log read
	@$(PY) -m tests.compat.takeover

.PHONY: fuzz
fuzz: $(DEV) ## mutated requests of real clients for minutes (MINUTES=5 FUZZ_ARGS="--seed 7")
	@$(PY) -m tests.system.fuzz.broker_fuzz --minutes $(MINUTES) $(FUZZ_ARGS)

.PHONY: exactly-once
exactly-once: $(DEV) $(MINISTACK) jar ## transactions while broker and workers are killed, for minutes (MINUTES=5 SEED=7)
	@$(PY) -m tests.system.transactions.exactly_once --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Libraries of the JVM's frameworks, each in a folder of its own; exactly_once.py there knows them.
FRAMEWORKS ?= streams clients-2.8 clients-3.9 clients-4.x connect spring-kafka flink

bench-data/jvm/%/.installed: tests/compat/jvm/%.xml
	@scripts/java-libraries $< $(@D)
	@touch $@

.PHONY: exactly-once-jvm
exactly-once-jvm: $(DEV) $(MINISTACK) jar $(FRAMEWORKS:%=bench-data/jvm/%/.installed) ## Kafka Streams and others, killed like the broker, MINUTES=1 each (FRAMEWORKS="streams" SEED=7)
	@$(PY) -m tests.compat.jvm.exactly_once bench-data/jvm $(FRAMEWORKS) \
		--minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

.PHONY: table-histories
table-histories: $(DEV) ## random histories of tables: kills, two writers, lost answers, for minutes (MINUTES=5 SEED=7)
	@$(PY) -m tests.unit.spark_lake.table.random_history --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

.PHONY: soak
soak: $(DEV) $(MINISTACK) jar ## kills, faults of S3, lost disks and real clients for minutes (MINUTES=30 SEED=7)
	@$(PY) -m tests.system.soak.run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

.PHONY: bench
bench: $(DEV) $(MINISTACK) ## measure MB/s and broker CPU per GB, hot, cold and compaction (BENCH_ARGS=...)
	@$(PY) -m bench.run $(BENCH_ARGS)

.PHONY: bench-tiers
bench-tiers: $(DEV) ## measure what the remote tier costs, beside raw S3 requests (BENCH_ARGS=...)
	@$(PY) -m bench.tiers.run $(BENCH_ARGS)

.PHONY: bench-restore
bench-restore: $(DEV) ## measure a restore of 100 partitions with 1,000 segments each (BENCH_ARGS=...)
	@$(PY) -m bench.restore $(BENCH_ARGS)

# What stands for "Kafka's libraries of this pom.xml are there".
KAFKA_JARS := bench-data/kafka/.installed

$(KAFKA_JARS): bench/comparison/pom.xml
	@scripts/java-libraries bench/comparison/pom.xml bench-data/kafka/lib
	@touch $@

.PHONY: kafka-jars
kafka-jars: java $(KAFKA_JARS) ## Apache Kafka's libraries, for the comparison

.PHONY: bench-kafka
bench-kafka: $(DEV) kafka-jars ## side by side with Apache Kafka; writes docs/explanation/performance.md (BENCH_ARGS=--quick)
	@$(PY) -m bench.comparison.compare $(BENCH_ARGS)

# The same for Spark's Kafka source and s3a.
LAKE_JARS := bench-data/jars/.installed

$(LAKE_JARS): bench/lake/pom.xml
	@scripts/java-libraries bench/lake/pom.xml bench-data/jars
	@touch $@

.PHONY: bench-lake
bench-lake: $(DEV) jar $(LAKE_JARS) ## measure Spark over the archive beside its Kafka source and Parquet (0.7 GB of jars)
	@$(PY) -m bench.lake.run $(BENCH_ARGS)

.PHONY: test-spark
test-spark: $(DEV) jar ## Spark in one process and on a cluster, with an executor and drivers killed
	$(PYTEST) tests/spark tests/spark/check_cluster.py tests/spark/check_stream_kills.py tests/spark/check_table_kills.py --durations=10

.PHONY: check-sparks
check-sparks: $(DEV) jar ## one jar with each Spark 4 on PyPI, 0.5 GB each (SPARKS="4.0.0 4.1.4")
	@SPARKS="$(SPARKS)" scripts/check-sparks $(PY)

# The four jars of Spark's Kafka source, of those that `make bench-lake` takes.
KAFKA_SOURCE_JARS := bench-data/kafka-source/.installed

$(KAFKA_SOURCE_JARS): bench/lake/pom.xml
	@scripts/java-libraries bench/lake/pom.xml bench-data/kafka-source spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2
	@touch $@

.PHONY: check-kafka-source
check-kafka-source: $(DEV) $(MINISTACK) jar $(KAFKA_SOURCE_JARS) ## the lake beside Spark's Kafka source: the same rows, the same mistakes
	$(PYTEST) tests/spark/check_kafka_source.py --durations=5

# A client of Spark Connect needs libraries that nothing else of ours has.
CONNECT := bench-data/connect/.installed

$(CONNECT): requirements/connect.txt $(DEV)
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps --upgrade --target bench-data/connect -r $<
	@touch $@

.PHONY: check-connect
check-connect: $(DEV) jar $(CONNECT) ## the lake over Spark Connect: a server process, and a client of it
	PYTHONPATH=$(abspath bench-data/connect) $(PYTEST) tests/spark/check_connect.py --durations=5

# Spark, DuckDB and Trino as others read tables: older ones, for which there are jars and extensions.
TABLE_READERS := bench-data/table-readers/.installed

$(TABLE_READERS): requirements/table-readers.txt tests/spark/table-readers.xml $(DEV)
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps --upgrade --target $(@D)/python -r $<
	@scripts/java-libraries tests/spark/table-readers.xml $(@D)/jars
	@rm -rf $(@D)/trino && mkdir $(@D)/trino
	@tar -xzf $(@D)/jars/trino-server-core-*.tar.gz -C $(@D)/trino --strip-components=1
	@$(PY) -m zipfile -e $(@D)/jars/trino-iceberg-*.zip $(@D)/trino/plugin
	@cp $(@D)/jars/sqlite-jdbc-*.jar $(@D)/trino/plugin/trino-iceberg-*
	@rm $(@D)/jars/trino-*
	@touch $@

.PHONY: check-table-readers
check-table-readers: $(DEV) java $(MINISTACK) $(TABLE_READERS) ## tables read by Trino, by Spark with Iceberg's and Delta's jars, and by DuckDB's extension (1.8 GB)
	PYTHONPATH=$(abspath $(dir $(TABLE_READERS)))/python SPARK_HOME=$(abspath $(dir $(TABLE_READERS)))/python/pyspark \
		STRANDLINE_TABLE_READERS=$(abspath $(dir $(TABLE_READERS)))/jars $(PYTEST) tests/spark/check_table_readers.py --durations=5

# Apache Iceberg's own REST catalog; `make test` has a stand-in for it.
ICEBERG_REST := bench-data/iceberg-rest/.installed

$(ICEBERG_REST): tests/system/tables/iceberg-rest.xml
	@scripts/java-libraries $< $(@D)
	@touch $@

.PHONY: check-catalogs
check-catalogs: $(DEV) java $(MINISTACK) $(ICEBERG_REST) ## tables in Apache Iceberg's own REST catalog, beside our stand-in for it (0.2 GB)
	STRANDLINE_ICEBERG_REST=$(dir $(ICEBERG_REST)) $(PYTEST) -k "rest or apache" \
		tests/system/tables/test_catalogs.py tests/system/tables/test_crashes.py --durations=5

.PHONY: check-installs
check-installs: $(DEV) ## pip, pipx and uvx install a checkout and the wheel, with each Python of this machine
	$(PYTEST) tests/packaging/check_installs.py -s

PROMETHEUS := bench-data/prometheus/.installed

$(PROMETHEUS): scripts/prometheus
	@scripts/prometheus $(@D)
	@touch $@

.PHONY: check-monitoring
check-monitoring: $(DEV) $(MINISTACK) $(PROMETHEUS) ## alert rules and dashboard in a real Prometheus, over a broker with an S3 server
	STRANDLINE_PROMETHEUS=$(dir $(PROMETHEUS)) $(PYTEST) tests/packaging/check_monitoring.py --durations=5

PACKAGING := bench-data/packaging/.installed

$(PACKAGING): requirements/packaging.txt scripts/packaging-tools $(DEV)
	@scripts/packaging-tools $(@D)
	@touch $@

.PHONY: check-packaging
check-packaging: $(DEV) $(PACKAGING) ## unit of systemd, container file and Helm chart, by their own tools (needs Go and systemd)
	STRANDLINE_PACKAGING=$(dir $(PACKAGING)) $(PYTEST) tests/packaging/check_systemd.py \
		tests/packaging/check_container.py tests/packaging/check_chart.py --durations=5

.PHONY: test-systemd
test-systemd: ## the unit under a real systemd, in bare roots of Debian 12 and 13, as root (MACHINES=trixie)
	@MACHINES="$(MACHINES)" scripts/test-systemd

.PHONY: test-container
test-container: ## the container file's steps in bare roots of Debian, and a broker in them, as root
	@scripts/test-container

.PHONY: notebook
notebook: $(DEV) ## run every cell of docs/tutorials/lake.ipynb on a small archive of flights
	$(PYTEST) tests/unit/spark_lake/test_notebook.py

.PHONY: notebook-outputs
notebook-outputs: $(DEV) ## run docs/tutorials/lake.ipynb on the demo's bucket and keep what it shows (its S3 server must run)
	$(PY) -m demo.notebook

.PHONY: format
format: $(DEV) ## format the code and mend what the linter can mend
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

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

.PHONY: venv
venv: $(DEV) ## the developer's environment in .venv, from the pinned lock

.PHONY: ministack
ministack: $(MINISTACK) ## the environment of the local S3 server

.PHONY: java
java:
	@scripts/java

# Those of the pages, whose tests run what they say.
.PHONY: commands
commands:
	@scripts/commands curl free

# The reader inside Spark's JVM; git ignores it, and the wheel takes it along.
JAR := spark_lake/jvm/strandline-spark.jar

$(JAR): $(wildcard spark_lake/jvm/src/*.scala) scripts/spark-jar requirements/dev.lock
	@echo "compiling $@"
	@scripts/spark-jar $(PY) $@

.PHONY: jar
jar: java ## compile the reader inside Spark's JVM, for a checkout and for the wheel
	@$(MAKE) $(JAR)

.PHONY: docs
docs: $(DEV) ## write the generated pages of docs/ anew
	@$(PY) -m scripts.docs.doc_pages docs

.PHONY: site
site: $(DEV) ## the pages as a site with a search, in build/site; every link is checked
	@scripts/site $(PY)

.PHONY: lock
lock: $(DEV) ## write the lock files anew after a change of pyproject.toml
	@scripts/lock

.PHONY: dist
dist: $(DEV) jar ## sdist and wheel in dist/
	@$(PY) -m build --no-isolation

.PHONY: clean
clean: ## remove what make and the tests made, but no environment and no demo data
	rm -rf $(JAR) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

.PHONY: clean-all
clean-all: clean ## remove the environments and the demo's and benchmark's data too
	rm -rf $(VENV) $(MINISTACK_VENV) demo-data bench-data localstack/.venv localstack/.volume

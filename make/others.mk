# tests beside others' programs and machines, which they download into bench-data

.PHONY: compat
compat: $(DEV) kafka-jars ## the test suites of kafka-python, librdkafka and others (SUITES=folder) against our broker; writes docs/reference/compatibility.md
	@$(PY) -m tests.compat.suites --write-page $(if $(SUITES),--sources $(SUITES)) $(COMPAT_ARGS)

.PHONY: interop
interop: $(DEV) $(MINISTACK) jar $(addprefix bench-data/jvm/,clients-4.x/.installed mirror/.installed) ## Apache Kafka's newest Java tools against our broker, step by step, also with TLS and ACLs; MirrorMaker; its copier with kills
	@$(PY) -m tests.compat.interop bench-data/jvm/clients-4.x
	@$(PY) -m tests.compat.interop_secured bench-data/jvm/clients-4.x
	@$(PY) -m tests.compat.mirror bench-data/jvm/mirror
	@$(PY) -m tests.compat.jvm.exactly_once bench-data/jvm clients-4.x

.PHONY: mirror
mirror: $(DEV) bench-data/jvm/mirror/.installed ## MirrorMaker 2 from three brokers of ours to three, with kills on both sides: records once each, and a group's offsets
	@$(PY) -m tests.compat.mirror_brokers bench-data/jvm/mirror

.PHONY: takeover
takeover: $(DEV) kafka-jars ## folders of an Apache Kafka: partitions opened, appended to, given back; its metadata log read
	@$(PY) -m tests.compat.takeover

# Older releases of Apache Kafka, whose controllers a strandline broker meets too.
OLDER_KAFKAS := $(foreach release,4.0.0 4.1.0 4.2.0 4.3.1,bench-data/kafka-$(release)/.installed)

bench-data/kafka-%/.installed: tests/compat/mixed/kafka.xml
	@KAFKA=$* scripts/java-libraries $< $(@D)
	@touch $@

.PHONY: mixed
mixed: $(DEV) kafka-jars $(OLDER_KAFKAS) ## three controllers and a broker of Apache Kafka, two strandline brokers: all clients, kills, restarts, each Kafka 4
	$(PYTEST) tests/compat/mixed/check_*.py --durations=5

.PHONY: reassign
reassign: $(DEV) kafka-jars ## Kafka's kafka-reassign-partitions with all its verbs against three brokers, throttled, and reads from the nearest replica
	@$(PY) -m tests.compat.reassign

.PHONY: kafka-brokers
kafka-brokers: $(DEV) kafka-jars ## brokers of Apache Kafka under our controller, with kills and replicas
	@$(PY) -m tests.compat.kafka_brokers
	@$(PY) -m tests.compat.kafka_replicas

# Libraries of the JVM's frameworks, each in a folder of its own; exactly_once.py there knows them.
FRAMEWORKS ?= streams clients-2.8 clients-3.9 clients-4.x connect spring-kafka flink

bench-data/jvm/%/.installed: tests/compat/jvm/%.xml
	@scripts/java-libraries $< $(@D)
	@touch $@

.PHONY: exactly-once-jvm
exactly-once-jvm: $(DEV) $(MINISTACK) jar $(FRAMEWORKS:%=bench-data/jvm/%/.installed) ## Kafka Streams and others, killed like the broker, MINUTES=1 each (FRAMEWORKS="streams" SEED=7 BROKERS=3)
	@$(PY) -m tests.compat.jvm.exactly_once bench-data/jvm $(FRAMEWORKS) \
		--minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(BROKERS),--brokers $(BROKERS))

.PHONY: test-localstack
test-localstack: $(DEV) ## the object store's contract over LocalStack (no docker)
	@trap localstack/down-host.sh EXIT; localstack/up-host.sh; \
	STRANDLINE_TEST_S3_ENDPOINT=http://127.0.0.1:$${PORT:-4566} $(PYTEST) tests/contract -k endpoint

# What stands for "these versions of the S3 servers are built".
S3_SERVERS := bench-data/s3-servers/.installed

$(S3_SERVERS): requirements/s3-servers.txt
	@scripts/s3-servers $(@D)
	@touch $@

.PHONY: test-stores
test-stores: $(DEV) $(S3_SERVERS) ## the contract, and the way from produce to restore, over MinIO, versitygw and rclone (needs Go)
	STRANDLINE_TEST_S3_SERVERS=$(dir $(S3_SERVERS)) $(PYTEST) -k "minio or versitygw or rclone" \
		tests/contract tests/system/tiers/restore/check_stores.py --durations=5

.PHONY: check-sparks
check-sparks: $(DEV) java ## a jar that Java alone made, with each Spark 4 on PyPI, 0.5 GB each (SPARKS="4.0.0 4.1.4")
	@SPARKS="$(SPARKS)" scripts/check-sparks $(PY) $(JAR)

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

.PHONY: dashboard-picture
dashboard-picture: $(DEV) $(MINISTACK) $(PROMETHEUS) ## docs/assets/dashboard.svg, from the dashboard's queries over a broker at work (5 minutes)
	@STRANDLINE_PROMETHEUS=$(dir $(PROMETHEUS)) $(PY) -m tests.packaging.dashboard_picture docs/assets/dashboard.svg

PACKAGING := bench-data/packaging/.installed

$(PACKAGING): requirements/packaging.txt scripts/packaging-tools $(DEV)
	@scripts/packaging-tools $(@D)
	@touch $@

.PHONY: check-packaging
check-packaging: $(DEV) $(PACKAGING) ## unit of systemd, container file and Helm chart, by their own tools (needs Go and systemd)
	STRANDLINE_PACKAGING=$(dir $(PACKAGING)) $(PYTEST) tests/packaging/check_systemd.py \
		tests/packaging/check_container.py tests/packaging/check_chart.py --durations=5

.PHONY: test-machines
test-machines: ## demo and test in bare roots of Debian and Ubuntu, as root (MACHINES=debian-13 COMMANDS=demo)
	@MACHINES="$(MACHINES)" COMMANDS="$(COMMANDS)" scripts/test-machines

.PHONY: test-systemd
test-systemd: ## the unit under a real systemd, in bare roots of Debian 12 and 13, as root (MACHINES=trixie)
	@MACHINES="$(MACHINES)" scripts/test-systemd

.PHONY: test-container
test-container: ## the container file's steps in bare roots of Debian, and a broker in them, as root
	@scripts/test-container

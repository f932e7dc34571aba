# benchmarks; those beside others download them

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

.PHONY: bench-cluster
bench-cluster: $(DEV) kafka-jars ## three brokers of ours beside three of Apache Kafka (BENCH_ARGS=--only ROW)
	@$(PY) -m bench.clusters.run $(BENCH_ARGS)

.PHONY: bench-walks
bench-walks: $(DEV) ## count the files and calls of a record, a segment, a cold fetch, a commit, EndTxn, CreateTopics (BENCH_ARGS=--files)
	@$(PY) -m bench.walks $(BENCH_ARGS)

# tests for an occasion: a subject, faults, minutes of load

.PHONY: test-slow
test-slow: $(DEV) commands $(MINISTACK) jar ## only the tests that `make check` leaves out
	$(PYTEST) -n $(TEST_WORKERS) --dist loadfile --durations=15 \
		-m "not heavy and (slow or s3 or spark or crash or clients)"

.PHONY: test-heavy
test-heavy: $(DEV) commands $(MINISTACK) jar ## more of what `make test` has: the demo, the soak, each step of a crash, random histories
	$(PYTEST) -n $(TEST_WORKERS) --dist loadfile --durations=15 -m heavy

.PHONY: test-costs
test-costs: $(DEV) commands $(MINISTACK) jar ## what `make test` has, and the seconds of a processor that each file takes
	$(PYTEST) -p tests.support.costs -n $(TEST_WORKERS) --dist loadfile -m "not heavy"

.PHONY: test-faults
test-faults: $(DEV) ## planted faults of the tiers, each searched for from the first random history on
	STRANDLINE_SEARCH_FAULTS=1 $(PYTEST) -rP --show-capture=stdout --durations=10 \
		tests/unit/storage/tiering/rewrite/test_compacted_history.py tests/unit/storage/tiering/test_planted_faults.py

.PHONY: simulate
simulate: $(DEV) ## random fault schedules of a simulated cluster, for minutes or so many (MINUTES=5 WORLDS=1000 SEED=7)
	@$(REPEATABLE) -m tests.sim.several.simulate $(if $(WORLDS),--worlds $(WORLDS),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

# Loaded into the tests and into the brokers that they start.
LATE_SYNCS := bench-data/late_syncs.so

$(LATE_SYNCS): tests/support/late_syncs.c
	@scripts/commands cc
	@mkdir -p $(@D)
	cc -O2 -Wall -Wextra -shared -fPIC -o $@ $< -ldl

.PHONY: test-slow-disk
test-slow-disk: $(DEV) commands $(MINISTACK) jar $(LATE_SYNCS) ## the system tests of `make test` on a disk whose syncs are late by up to seconds
	LD_PRELOAD=$(abspath $(LATE_SYNCS)) $(PYTEST) -n $(TEST_WORKERS) --dist loadfile --durations=15 \
		-m "not heavy" tests/system

.PHONY: fuzz
fuzz: $(DEV) ## mutated requests of real clients for minutes (MINUTES=5 FUZZ_ARGS="--seed 7")
	@$(PY) -m tests.system.fuzz.broker_fuzz --minutes $(MINUTES) $(FUZZ_ARGS)

.PHONY: exactly-once
exactly-once: $(DEV) $(MINISTACK) jar ## transactions while broker and workers are killed, for minutes (MINUTES=5 SEED=7 BROKERS=3)
	@$(PY) -m tests.system.transactions.exactly_once --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(BROKERS),--brokers $(BROKERS))

.PHONY: cluster-faults
cluster-faults: $(DEV) $(MINISTACK) bench-data/jvm/clients-4.x/.installed ## brokers with replicas: kills, cuts, lost power, moves, while clients of four libraries work (MINUTES=30 SEED=7 BROKERS=5)
	@$(PY) -m tests.system.cluster_faults.run --s3 --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(BROKERS),--brokers $(BROKERS))

.PHONY: table-histories
table-histories: $(DEV) ## random histories of tables: kills, two writers, lost answers, for minutes (MINUTES=5 SEED=7)
	@$(PY) -m tests.unit.spark_lake.table.random_history --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

.PHONY: soak
soak: $(DEV) $(MINISTACK) jar ## kills, faults of S3, lost disks and real clients for minutes (MINUTES=30 SEED=7 BROKERS=3)
	@$(PY) -m tests.system.soak.run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(BROKERS),--brokers $(BROKERS))

.PHONY: test-spark
test-spark: $(DEV) jar ## Spark in one process and on a cluster, with an executor and drivers killed
	$(PYTEST) tests/spark tests/spark/check_cluster.py tests/spark/check_stream_kills.py tests/spark/check_table_kills.py --durations=10

.PHONY: notebook
notebook: $(DEV) ## run every cell of docs/tutorials/lake.ipynb on a small archive of flights
	$(PYTEST) tests/unit/spark_lake/test_notebook.py

.PHONY: notebook-outputs
notebook-outputs: $(DEV) ## run docs/tutorials/lake.ipynb on the demo's bucket and keep what it shows (its S3 server must run)
	$(PY) -m demo.notebook

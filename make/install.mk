# environments, locks, the jar, the wheel and the site

.PHONY: venv
venv: $(DEV) ## the developer's environment in .venv, from the pinned lock

.PHONY: ministack
ministack: $(MINISTACK) ## the environment of the local S3 server

# The reader inside Spark's JVM; git ignores it, and the wheel takes it along.
JAR := spark_lake/jvm/strandline-spark.jar

$(JAR): $(wildcard spark_lake/jvm/src/*.scala) scripts/spark-jar requirements/dev.lock
	@echo "compiling $@"
	@scripts/spark-jar $(PY) $@

.PHONY: jar
jar: java ## compile the reader inside Spark's JVM, for a checkout and for the wheel
	@$(MAKE) $(JAR)

.PHONY: lock
lock: $(DEV) ## write the lock files anew after a change of pyproject.toml
	@scripts/lock

.PHONY: dist
dist: $(DEV) jar ## sdist and wheel in dist/
	@$(PY) -m build --no-isolation

.PHONY: site
site: $(DEV) ## the pages as a site with a search, in build/site; every link is checked
	@scripts/site $(PY)

.PHONY: clean-all
clean-all: clean ## remove the environments and the demo's and benchmark's data too
	rm -rf $(VENV) $(MINISTACK_VENV) demo-data demo-data-cluster bench-data localstack/.venv localstack/.volume

"""Records per second of full rows into Spark's `noop` sink, local[2], beside what reads them too.

    load                 `spark_lake.load`: the archive, read inside the JVM
    load, Python         the same with `engine=python`: through `mapInArrow`
    format("strandline") the archive through Spark's Python data source
    ready-made, ...      the ceilings of both ways: a source that yields one batch again and again
    Spark's Kafka source the same records from our broker, in as many tasks
    Spark over Parquet   the same rows through s3a from the same S3 server
    scan                 without Spark, two threads
    ..., per hour        not full rows, but how many records there are of each hour

With each rate comes the CPU of Spark's JVM and of its Python workers, which says more than a rate
on a machine that others use. The jars of Spark's Kafka source and of s3a come from Maven Central
into `bench-data/jars`, for this benchmark alone (0.7 GB, nearly all of it Amazon's SDK). The S3
server is `bench/null_s3.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.rdkafka import ProduceLoad, producers
from bench.run import create_topic, null_s3, s3_client
from strandline.storage.remote.manifest import Manifest
from tests.support.broker import BrokerProcess, eventually

BUCKET = "bench"
URL = f"s3://{BUCKET}/archive"
MIB = 1024 * 1024
SEGMENT_BYTES = 16 * MIB
TOPICS = "100-none,100-zstd,1000-none,1000-zstd"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
KAFKA = "Spark's Kafka source"
PARQUET = "Spark over Parquet, s3a"
# A question instead of full rows: how many records there are of each hour.
PER_HOUR = ", per hour"
CPU_UNIT = "CPU s/M records"
CPU_OF = ("JVM", "Python")
# See docs/lake.md; Spark's other sources do not use Arrow.
JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# Ready-made batches are as large as those of the lake.
READY_BYTES = 2 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of one run."""

    part: str
    name: str
    value: float
    unit: str


def jars_in(folder: Path) -> list[Path]:
    """What `bench/lake-pom.xml` names. Raises FileNotFoundError if it is not there."""
    found = sorted(folder.glob("*.jar"))
    if not found:
        raise FileNotFoundError(f"no libraries under {folder}: run `make bench-lake`")
    return found


@contextmanager
def spark_session(jars: list[Path], endpoint: str) -> Iterator[Any]:
    os.environ |= CREDENTIALS
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from strandline.spark_lake import register

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("strandline bench")
        .config("spark.jars", ",".join(str(path) for path in jars))
        .config("spark.driver.memory", "3g")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.hadoop.fs.s3a.endpoint", endpoint)
        .config("spark.hadoop.fs.s3a.endpoint.region", "us-east-1")
        .config("spark.hadoop.fs.s3a.path.style.access", "true")
        .config("spark.hadoop.fs.s3a.connection.ssl.enabled", "false")
        .config("spark.hadoop.fs.s3a.change.detection.mode", "none")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def run_rates(
    folder: Path, jars: list[Path], topics: list[str], total_bytes: int, runs: int
) -> Iterator[Figure]:
    with null_s3() as endpoint:
        client = s3_client(endpoint)
        client.create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
        settings = {
            "remote.log.storage.system.enable": "true",
            "strandline.remote.url": URL,
            "strandline.remote.s3.endpoint.url": endpoint,
            "remote.log.manager.task.interval.ms": "500",
            "log.initial.task.delay.ms": "500",
        }
        with (
            BrokerProcess(folder / "broker", settings=settings) as broker,
            spark_session(jars, endpoint) as spark,
        ):
            for topic in topics:
                record_bytes, codec = topic.split("-")
                yield from _rates(
                    spark, broker, endpoint, int(record_bytes), codec, total_bytes, runs
                )


def _rates(
    spark: Any,
    broker: BrokerProcess,
    endpoint: str,
    record_bytes: int,
    codec: str,
    total_bytes: int,
    runs: int,
) -> Iterator[Figure]:
    from strandline.spark_lake import load, scan

    topic = f"{record_bytes}-{codec}"
    end_offsets = _archived(broker, endpoint, topic, record_bytes, codec, total_bytes)
    count = sum(end_offsets.values())
    ends = json.dumps({topic: {str(p): end for p, end in end_offsets.items()}})
    begins = json.dumps({topic: {str(p): 0 for p in end_offsets}})

    def lake() -> Any:
        return (
            spark.read.format("strandline")
            .option("subscribe", topic)
            .option("s3.endpoint.url", endpoint)
            .option("endingOffsets", ends)
            .load(URL)
        )

    tasks = lake().rdd.getNumPartitions()
    kafka = (
        spark.read.format("kafka")
        # Else the one partition would be one task, on one core.
        .option("minPartitions", tasks)
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", begins)
        .option("endingOffsets", ends)
        .load()
    )
    _check_same(lake(), kafka, count)
    parquet = spark.read.parquet(_parquet(lake(), endpoint, topic, broker.folder / topic))
    assert parquet.count() == count

    def arrow() -> None:
        assert sum(b.num_rows for b in scan(URL, topic, options=options, threads=2)) == count

    options: dict[str, str] = {"s3.endpoint.url": endpoint, "endingOffsets": ends}
    in_jvm, in_python = options | {"engine": "jvm"}, options | {"engine": "python"}
    ready = _ReadyMade(spark, rows=count, record_bytes=record_bytes, tasks=tasks)
    ways: Mapping[str, Callable[[], object]] = {
        "load": lambda: _consume(load(spark, URL, topic, options=in_jvm)),
        "load, Python": lambda: _consume(load(spark, URL, topic, options=in_python)),
        'format("strandline")': lambda: _consume(lake()),
        "ready-made, mapInArrow": lambda: _consume(ready.mapped()),
        "ready-made, data source": lambda: _consume(ready.source()),
        KAFKA: lambda: _consume(kafka),
        PARQUET: lambda: _consume(parquet),
        "scan, no Spark": arrow,
        f"load{PER_HOUR}": lambda: _per_hour(
            load(spark, URL, topic, columns=["timestamp"], options=in_jvm)
        ),
        f"{KAFKA}{PER_HOUR}": lambda: _per_hour(kafka),
        f"{PARQUET}{PER_HOUR}": lambda: _per_hour(parquet),
    }
    for run in range(runs + 1):
        for name, read in ways.items():
            begin_s, begin_cpu = time.perf_counter(), _cpu_seconds(spark)
            read()
            taken_s, cpu = time.perf_counter() - begin_s, _cpu_seconds(spark)
            # The first round warms the JVM, the workers and the compiled loops.
            if not run:
                continue
            part, records = f"{record_bytes} B {codec}", count / 1e6
            yield Figure(part=part, name=name, value=records / taken_s, unit="M records/s")
            if read is not arrow:
                for number, who in enumerate(CPU_OF):
                    yield Figure(
                        part=part,
                        name=f"{name}: {who}",
                        value=(cpu[number] - begin_cpu[number]) / records,
                        unit=CPU_UNIT,
                    )


def _cpu_seconds(spark: Any) -> tuple[float, float]:
    """CPU of Spark's JVM and of all its Python workers so far."""
    jvm = spark.sparkContext._gateway.proc.pid
    tick = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        # With the children that have ended, of everything but the JVM.
        spent[pid] = sum(map(int, fields[11 : 13 if pid == jvm else 15]))
    workers = 0
    for pid, ticks in spent.items():
        above = parents.get(pid, 0)
        while above not in (0, jvm):
            above = parents.get(above, 0)
        workers += ticks if above == jvm and pid != jvm else 0
    return spent[jvm] / tick, workers / tick


class _ReadyMade:
    """Batches with the lake's columns that cost nothing to make: what the ways into Spark cost."""

    def __init__(self, spark: Any, *, rows: int, record_bytes: int, tasks: int) -> None:
        from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

        schema = (
            "key binary, value binary, topic string, partition int, offset long,"
            " timestamp timestamp, timestampType int"
        )
        per_task, per_batch = rows // tasks, READY_BYTES // record_bytes

        # Inside, so that Spark's workers get it by value and import nothing of the benchmark.
        def batches() -> Iterator[Any]:
            import numpy as np
            import pyarrow as pa

            ends = np.arange(0, (per_batch + 1) * record_bytes, record_bytes, dtype=np.int32)
            content = pa.py_buffer(bytes(per_batch * record_bytes))
            numbers = np.arange(per_batch, dtype=np.int64)
            kinds = (pa.int32(), pa.timestamp("us", tz="UTC"))
            columns = {
                "key": pa.nulls(per_batch, pa.binary()),
                "value": pa.Array.from_buffers(
                    pa.binary(), per_batch, [None, pa.py_buffer(ends), content], 0
                ),
                "topic": pa.repeat(pa.scalar("topic-name"), per_batch),
                "partition": pa.repeat(pa.scalar(0, kinds[0]), per_batch),
                "offset": pa.array(numbers),
                "timestamp": pa.array(numbers, kinds[1]),
                "timestampType": pa.repeat(pa.scalar(0, kinds[0]), per_batch),
            }
            made = pa.RecordBatch.from_pydict(columns)
            for start in range(0, per_task, per_batch):
                yield made.slice(0, min(per_batch, per_task - start))

        class Reader(DataSourceReader):
            def partitions(self) -> list[InputPartition]:
                return [InputPartition(number) for number in range(tasks)]

            def read(self, partition: InputPartition) -> Iterator[Any]:
                return batches()

        class Source(DataSource):
            @classmethod
            def name(cls) -> str:
                return "ready"

            def schema(self) -> str:
                return schema

            def reader(self, schema: Any) -> Reader:
                return Reader()

        def read(numbers: Iterator[Any]) -> Iterator[Any]:
            for _ in numbers:
                yield from batches()

        spark.dataSource.register(Source)
        self.source = lambda: spark.read.format("ready").load()
        self.mapped = lambda: spark.range(0, tasks, 1, tasks).mapInArrow(read, schema)


def _parquet(frame: Any, endpoint: str, topic: str, folder: Path) -> str:
    """The rows as Parquet on the S3 server, which cannot rename as a writing Spark wants it to."""
    frame.write.parquet(str(folder))
    client: Any = s3_client(endpoint)
    for path in sorted(folder.glob("*.parquet")):
        client.put_object(Bucket=BUCKET, Key=f"parquet/{topic}/{path.name}", Body=path.read_bytes())
    shutil.rmtree(folder)
    return f"s3a://{BUCKET}/parquet/{topic}/"


def _consume(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _per_hour(frame: Any) -> None:
    assert frame.selectExpr("date_trunc('hour', timestamp) h").groupBy("h").count().collect()


def _check_same(lake: Any, kafka: Any, count: int) -> None:
    """The same columns, types and rows as Spark's Kafka source."""
    assert lake.schema == kafka.schema, (lake.schema, kafka.schema)
    sums = (
        "count(*)",
        "sum(crc32(value))",
        "sum(crc32(coalesce(key, value)))",
        "sum(offset)",
        "sum(unix_micros(timestamp) % 1000003)",
        "sum(timestampType)",
        "sum(partition)",
        "min(topic)",
    )
    ours, theirs = lake.selectExpr(*sums).collect()[0], kafka.selectExpr(*sums).collect()[0]
    assert ours == theirs, (ours, theirs)
    assert ours[0] == count, (ours, count)


def _archived(
    broker: BrokerProcess,
    endpoint: str,
    topic: str,
    record_bytes: int,
    codec: str,
    total_bytes: int,
) -> dict[int, int]:
    """Produces the topic and waits for its closed segments; the archive's ends."""
    create_topic(
        broker,
        topic,
        **{
            "remote.storage.enable": "true",
            "segment.bytes": str(SEGMENT_BYTES),
            "retention.ms": "-1",
            "local.retention.ms": "-1",
        },
    )
    load = ProduceLoad(
        topic=topic, count=total_bytes // record_bytes, record_bytes=record_bytes, codec=codec
    )
    with producers(broker.bootstrap, load) as running:
        running.run()
    open_base_offset = max(int(one.stem) for one in (broker.data / f"{topic}-0").glob("*.log"))
    assert open_base_offset, "too few bytes for a closed segment"

    def look() -> dict[int, int] | None:
        manifest = _manifest(endpoint, topic)
        # Not by their number: small ones are merged in the bucket.
        if manifest is None or manifest.end_offset < open_base_offset:
            return None
        return {0: manifest.end_offset}

    found = eventually(look, timeout_s=120, interval_s=0.5)
    assert found is not None
    return dict(found)


def _manifest(endpoint: str, topic: str) -> Manifest | None:
    from strandline.spark_lake.catalog import Catalog
    from strandline.spark_lake.objects import ObjectReader
    from strandline.spark_lake.options import S3Options, Subscribe
    from strandline.storage.errors import StrandlineError

    reader = ObjectReader(URL, S3Options(endpoint_url=endpoint, key="bench", secret="bench"))
    try:
        (one,) = Catalog(reader).load_partitions(Subscribe((topic,)))
    except StrandlineError:
        return None
    return one.manifest

"""Records per second of full rows into Spark's `noop` sink, local[2], beside what reads them too.

    load                 `spark_lake.load`: the archive, read inside the JVM
    load, Python         the same with `engine=python`: through `mapInArrow`
    format("strandline") planned for the query, read inside the JVM
    ..., Python          the same with `engine=python`: through Spark's Python data source
    ready-made, ...      the ceilings of both ways of Python: a source that yields one batch again
    Spark's Kafka source the same records from our broker, in as many tasks
    ..., large fetches   the same with a consumer that was set up for a long history
    ..., Apache Kafka    with --apache-kafka: the same records from Apache Kafka with its defaults
    Spark over Parquet   the same rows through s3a from the same S3 server
    scan                 without Spark, two threads
    ..., per hour        not full rows, but how many records there are of each hour

Frames are made before, as a session makes them once; `load` plans its frame, so making it counts.

With each rate comes the CPU of all who take part (`bench/lake/cpu.py`). The broker of Spark's Kafka
source is ours, its segments hot in the page cache: that source reads from it faster than from
Apache Kafka (bench/notes/spark.md), so that the goal, a multiple of its rate, is the harder one.

Each topic has a broker and an S3 server of its own, so that disk and memory hold one topic, not
all: for 2 GB of records, twice that in the server's memory (the archive, and Parquet) and, for a
while, on disk. The jars of Spark's Kafka source and of s3a come from Maven Central into
`bench-data/jars`, for this benchmark alone (0.7 GB, nearly all of it Amazon's SDK). The S3 server
is `bench/null_s3.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.comparison.peers import Kafka
from bench.lake.archive import (
    MIB,
    SEGMENT_BYTES,
    Archived,
    archived,
    in_apache_kafka,
    readable,
)
from bench.lake.cpu import WHO, Payers
from bench.run import s3_client

TOPICS = "100-none,100-zstd,1000-none,1000-zstd,1000-zstd-1000000,flights-none,flights-zstd"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
KAFKA = "Spark's Kafka source"
LARGE_FETCHES = f"{KAFKA}, large fetches"
APACHE_KAFKA = f"{KAFKA}, Apache Kafka"
PARQUET = "Spark over Parquet, s3a"
# A question instead of full rows: how many records there are of each hour.
PER_HOUR = ", per hour"
CPU_UNIT = "CPU s/M records"
# See docs/how-to/query-with-spark.md; Spark's other sources do not use Arrow.
JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# By default a poll gives 500 records, and a request at most 1 MB of a partition.
LARGE_FETCH_OPTIONS = {
    "kafka.max.partition.fetch.bytes": 8 * MIB,
    "kafka.max.poll.records": 10_000,
    "kafka.receive.buffer.bytes": MIB,
}
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
    """What `bench/lake/pom.xml` names. Raises FileNotFoundError if it is not there."""
    found = sorted(folder.glob("*.jar"))
    if not found:
        raise FileNotFoundError(f"no libraries under {folder}: run `make bench-lake`")
    return found


@contextmanager
def spark_session(jars: list[Path]) -> Iterator[Any]:
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
    folder: Path,
    jars: list[Path],
    topics: list[str],
    total_bytes: int,
    runs: int,
    wanted: str = "",
    warm: int = 1,
    segment_bytes: int = SEGMENT_BYTES,
    apache_kafka: bool = False,
) -> Iterator[Figure]:
    """`wanted` is a regular expression that the names of the ways to read must match.

    Before `runs` that count, each way has `warm` that do not. Raises RuntimeError if Apache Kafka
    is to be read too, and its libraries are not there.
    """
    with spark_session(jars) as spark:
        for topic in topics:
            other = in_apache_kafka(folder / topic, topic, total_bytes) if apache_kafka else None
            with (
                archived(folder / topic, topic, total_bytes, segment_bytes=segment_bytes) as found,
                other or nullcontext() as kafka,
            ):
                yield from _rates(spark, found, kafka, runs, wanted, warm)
            shutil.rmtree(folder / topic, ignore_errors=True)


def _rates(
    spark: Any, found: Archived, apache: Kafka | None, runs: int, wanted: str, warm: int
) -> Iterator[Figure]:
    from strandline.spark_lake import load, scan

    topic, endpoint, count = found.topic, found.endpoint, found.count
    url, broker, ends = found.url, found.broker, found.offsets()

    def lake(engine: str = "auto") -> Any:
        return (
            spark.read.format("strandline")
            .option("engine", engine)
            .option("subscribe", topic)
            .option("s3.endpoint.url", endpoint)
            .option("endingOffsets", ends)
            .load(url)
        )

    tasks = lake().rdd.getNumPartitions()
    from_kafka = (
        spark.read.format("kafka")
        # Else the one partition would be one task, on one core.
        .option("minPartitions", tasks)
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", found.offsets(begin=True))
        .option("endingOffsets", ends)
    )
    kafka = from_kafka.load()
    apache_kafka = None
    if apache is not None:
        # An option stays with its reader, so this comes behind the frame of our broker.
        apache_kafka = from_kafka.option("kafka.bootstrap.servers", apache.bootstrap).load()
        _check_same(kafka, apache_kafka, count, sent_again=True)
        from_kafka.option("kafka.bootstrap.servers", broker.bootstrap)
    large_fetches = from_kafka.options(**LARGE_FETCH_OPTIONS).load()
    _check_same(lake(), kafka, count)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(f"fs.s3a.bucket.{found.bucket}.endpoint", endpoint)
    parquet = spark.read.parquet(_parquet(lake(), found))
    assert parquet.count() == count

    def arrow() -> None:
        assert sum(b.num_rows for b in scan(url, topic, options=options, threads=2)) == count

    options: dict[str, str] = {"s3.endpoint.url": endpoint, "endingOffsets": ends}
    in_jvm, in_python = options | {"engine": "jvm"}, options | {"engine": "python"}
    ready = _ReadyMade(spark, rows=count, record_bytes=found.record_bytes, tasks=tasks)
    # Made once, as the frames of the other sources: its queries are planned each by itself anyway.
    by_format, by_format_in_python = lake(), lake("python")
    ways: Mapping[str, Callable[[], object]] = {
        "load": lambda: _consume(load(spark, url, topic, options=in_jvm)),
        "load, Python": lambda: _consume(load(spark, url, topic, options=in_python)),
        'format("strandline")': lambda: _consume(by_format),
        'format("strandline"), Python': lambda: _consume(by_format_in_python),
        "ready-made, mapInArrow": lambda: _consume(ready.mapped()),
        "ready-made, data source": lambda: _consume(ready.source()),
        KAFKA: lambda: _consume(kafka),
        LARGE_FETCHES: lambda: _consume(large_fetches),
        **({} if apache_kafka is None else {APACHE_KAFKA: lambda: _consume(apache_kafka)}),
        PARQUET: lambda: _consume(parquet),
        "scan, no Spark": arrow,
        f"load{PER_HOUR}": lambda: _per_hour(
            load(spark, url, topic, columns=["timestamp"], options=in_jvm)
        ),
        f"{KAFKA}{PER_HOUR}": lambda: _per_hour(kafka),
        f"{PARQUET}{PER_HOUR}": lambda: _per_hour(parquet),
    }
    chosen = {name: read for name, read in ways.items() if re.search(wanted, name)}
    brokers = (broker.pid,) if apache is None else (broker.pid, apache.pid)
    payers = Payers(jvm=spark.sparkContext._gateway.proc.pid, brokers=brokers)
    for run in range(warm + runs):
        for name, read in chosen.items():
            # What the way before left to be collected is not this one's to pay for.
            spark._jvm.System.gc()
            begin_s, before = time.perf_counter(), payers.spent_s()
            read()
            taken_s, after = time.perf_counter() - begin_s, payers.spent_s()
            # The first rounds warm the JVM, the workers and the compiled loops.
            if run < warm:
                continue
            part, records = readable(topic), count / 1e6
            yield Figure(part=part, name=name, value=records / taken_s, unit="M records/s")
            if read is not arrow:
                for who in WHO:
                    spent_s = (after[who] - before[who]) / records
                    yield Figure(part=part, name=f"{name}: {who}", value=spent_s, unit=CPU_UNIT)


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


def _parquet(frame: Any, found: Archived) -> str:
    """The rows as Parquet on the S3 server, which cannot rename as a writing Spark wants it to."""
    folder = found.broker.folder / "parquet"
    frame.write.parquet(str(folder))
    client: Any = s3_client(found.endpoint)
    for path in sorted(folder.glob("*.parquet")):
        client.put_object(Bucket=found.bucket, Key=f"parquet/{path.name}", Body=path.read_bytes())
        path.unlink()
    shutil.rmtree(folder)
    return f"s3a://{found.bucket}/parquet/"


def _consume(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _per_hour(frame: Any) -> None:
    assert frame.selectExpr("date_trunc('hour', timestamp) h").groupBy("h").count().collect()


def _check_same(lake: Any, kafka: Any, count: int, *, sent_again: bool = False) -> None:
    """The same columns, types and rows; but for their times where they were sent again."""
    assert lake.schema == kafka.schema, (lake.schema, kafka.schema)
    sums = (
        "count(*)",
        "sum(crc32(value))",
        "sum(crc32(coalesce(key, value)))",
        "sum(offset)",
        "count(timestamp)" if sent_again else "sum(unix_micros(timestamp) % 1000003)",
        "sum(timestampType)",
        "sum(partition)",
        "min(topic)",
    )
    ours, theirs = lake.selectExpr(*sums).collect()[0], kafka.selectExpr(*sums).collect()[0]
    assert ours == theirs, (ours, theirs)
    assert ours[0] == count, (ours, count)

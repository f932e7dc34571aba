"""What the lake can do, each figure beside something measured in the same run on the same records.

    rate     records/s of full rows into Spark's `noop` sink, local[2]: the archive, the same topic
             through Spark's own Kafka source from our broker, the same rows as Parquet through s3a
             on the same S3 server; and `scan` without Spark
    year     a filter of one hour over a year of archive: the bytes it reads, of all bytes
    plan     planning 100,000 segments, all of them and one percent
    memory   peak memory of a Python process that scans one segment of 1 GB

The jars of Spark's Kafka source and of s3a come from Maven Central into `bench-data/jars`, for this
benchmark alone (0.7 GB, nearly all of it Amazon's SDK). Run it as `make bench-lake`; rates are
medians of RUNS alternating runs (min - max). The S3 server is `bench/null_s3.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import crc32c
from rich.console import Console
from rich.table import Table

from bench.rdkafka import ProduceLoad, producers
from bench.run import create_topic, null_s3, s3_client
from strandline.spark_lake.arrow_scan import make_query
from strandline.storage.records.record import Record, encode_batch
from strandline.storage.remote import keys
from strandline.storage.remote.manifest import Manifest
from strandline.storage.remote.manifest_entries import SegmentEntry
from strandline.storage.remote.manifest_page import encode_page, page_ref
from tests.support.broker import BrokerProcess, eventually
from tests.unit.lake.archive_builder import START_MS, ArchiveBuilder

BUCKET = "bench"
URL = f"s3://{BUCKET}/archive"
MIB = 1024 * 1024
SEGMENT_BYTES = 16 * MIB
HOUR_MS = 3_600_000
TOPICS = "100-none,100-zstd,1000-none,1000-zstd"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}

MAVEN = "https://repo1.maven.org/maven2/"
# The newest on Maven Central that work with PySpark 4.3.
JARS = (
    "org/apache/spark/spark-sql-kafka-0-10_2.13/4.2.0/spark-sql-kafka-0-10_2.13-4.2.0.jar",
    "org/apache/spark/spark-token-provider-kafka-0-10_2.13/4.0.0/"
    "spark-token-provider-kafka-0-10_2.13-4.0.0.jar",
    "org/apache/kafka/kafka-clients/3.9.2/kafka-clients-3.9.2.jar",
    "org/apache/commons/commons-pool2/2.13.1/commons-pool2-2.13.1.jar",
    "org/apache/hadoop/hadoop-aws/3.5.0/hadoop-aws-3.5.0.jar",
    "software/amazon/s3/analyticsaccelerator/analyticsaccelerator-s3/1.3.1/"
    "analyticsaccelerator-s3-1.3.1.jar",
    "software/amazon/awssdk/bundle/2.35.4/bundle-2.35.4.jar",
)
JAR_SECONDS_MAX = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of one run; `per_s` figures are better when larger."""

    part: str
    name: str
    value: float
    unit: str


# --- rates ------------------------------------------------------------------------------------


def fetch_jars(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name in JARS:
        path = folder / name.rsplit("/", 1)[-1]
        if not path.exists():
            part = path.with_suffix(".part")
            request = urllib.request.urlopen(MAVEN + name, timeout=JAR_SECONDS_MAX)
            with request as answer, open(part, "wb") as file:
                shutil.copyfileobj(answer, file)
            part.replace(path)
        paths.append(path)
    return paths


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

    kafka = (
        spark.read.format("kafka")
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
        from strandline.spark_lake import scan

        options = {"s3.endpoint.url": endpoint, "endingOffsets": ends}
        assert sum(b.num_rows for b in scan(URL, topic, options=options, threads=2)) == count

    ways: Mapping[str, Callable[[], object]] = {
        "Spark over the archive": lambda: _consume(lake()),
        "Spark's Kafka source": lambda: _consume(kafka),
        "Spark over Parquet, s3a": lambda: _consume(parquet),
        "scan, no Spark": arrow,
    }
    for run in range(runs + 1):
        for name, read in ways.items():
            begin_s = time.perf_counter()
            read()
            taken_s = time.perf_counter() - begin_s
            # The first round warms the JVM, the workers and the compiled loops.
            if run:
                yield Figure(
                    part=f"{record_bytes} B {codec}",
                    name=name,
                    value=count / taken_s / 1e6,
                    unit="M records/s",
                )


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
    closed = len(list((broker.data / f"{topic}-0").glob("*.log"))) - 1
    assert closed > 0, "too few bytes for a closed segment"

    def look() -> dict[int, int] | None:
        manifest = _manifest(endpoint, topic)
        if manifest is None or manifest.segment_count < closed:
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


# --- a year -----------------------------------------------------------------------------------


def run_year(folder: Path) -> Iterator[Figure]:
    """One batch of 60 records a minute and a segment a day, with a day in the middle asked for."""
    archive = ArchiveBuilder(folder / "year")
    archive.add_topic("year")
    template = encode_batch(
        [
            Record(offset=n, timestamp_ms=n * 60_000, key=None, value=os.urandom(400))
            for n in range(60)
        ]
    )
    for day in range(365):
        batches = [_hour(template, day * 24 + hour) for hour in range(24) for _ in range(4)]
        archive.add_segment("year", _renumbered(batches, day * 24 * 4 * 60), key_filter=False)
    begin_ms = START_MS + 180 * 24 * HOUR_MS + 13 * HOUR_MS
    query = make_query(
        archive.url,
        "year",
        filters=[("timestamp", ">=", begin_ms), ("timestamp", "<", begin_ms + HOUR_MS)],
    )
    reader = query.open()
    plan = query.plan(reader)
    rows = sum(b.num_rows for split in plan.splits for b in query.read(split, reader))
    assert rows > 0
    share = reader.statistics().bytes_read / plan.bytes_total
    yield Figure(part="year", name="bytes read for one hour", value=share * 100, unit="% of all")
    shutil.rmtree(folder / "year")


def _hour(template: bytes, hour: int) -> bytes:
    from strandline.storage.records.record import with_crc

    content = bytearray(template)
    base_ms = START_MS + hour * HOUR_MS
    content[27:35] = base_ms.to_bytes(8, "big")
    content[35:43] = (base_ms + 59 * 60_000).to_bytes(8, "big")
    return bytes(with_crc(content))


def _renumbered(batches: list[bytes], base_offset: int) -> list[bytes]:
    numbered: list[bytes] = []
    for number, batch in enumerate(batches):
        # The base offset lies outside the batch's CRC.
        numbered.append((base_offset + number * 60).to_bytes(8, "big") + batch[8:])
    return numbered


# --- planning ---------------------------------------------------------------------------------


def run_plan(folder: Path, segments: int = 100_000, page_entries: int = 1000) -> Iterator[Figure]:
    archive = ArchiveBuilder(folder / "plan")
    archive.add_topic("t")
    manifest = archive.manifest("t")
    entries = [_entry(manifest, number) for number in range(segments)]
    pages = []
    for start in range(0, segments - page_entries, page_entries):
        part = entries[start : start + page_entries]
        content = encode_page(manifest.topic_id_partition, part)
        key = keys.manifest_page_key(
            manifest.topic_id_partition,
            base_offset=part[0].base_offset,
            end_offset=part[-1].end_offset,
            unique=keys.new_unique(),
        )
        archive.store.put(key, content)
        pages.append(page_ref(key, part, crc32c=crc32c.crc32c(content)))
    archive.save(
        replace(manifest, pages=tuple(pages), segments=tuple(entries[segments - page_entries :]))
    )
    one_percent: list[tuple[str, str, object]] = [
        ("timestamp", ">=", segments * 50),
        ("timestamp", "<", segments * 51),
    ]
    for name, filters in (("all", []), ("one percent", one_percent)):
        for _ in range(3):
            query = make_query(archive.url, "t", filters=filters)
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
            query.plan(query.open())
            cpu_s = time.process_time() - begin_cpu_s
            taken_s = time.perf_counter() - begin_s
            part = f"plan of {segments:,} segments"
            yield Figure(part=part, name=name, value=taken_s, unit="s")
            yield Figure(part=part, name=f"{name}, CPU", value=cpu_s, unit="s")
    shutil.rmtree(folder / "plan")


def _entry(manifest: Manifest, number: int) -> SegmentEntry:
    from strandline.storage.model import EpochStart

    names = keys.segment_keys(
        manifest.topic_id_partition,
        base_offset=number * 100,
        leader_epoch=0,
        unique=uuid.uuid4().hex,
    )
    return SegmentEntry(
        base_offset=number * 100,
        end_offset=number * 100 + 100,
        leader_epochs=(EpochStart(0, 0),),
        size_bytes=64 * MIB,
        record_count=100,
        min_timestamp_ms=number * 100,
        max_timestamp_ms=number * 100 + 99,
        log_key=names.log_key,
        meta_key=names.meta_key,
        log_crc32c=1,
        meta_size_bytes=100,
        meta_crc32c=1,
        has_transactions=False,
        uploaded_ms=0,
    )


# --- memory -----------------------------------------------------------------------------------

_SCAN = """
import sys
from strandline.spark_lake.arrow_scan import make_query
query = make_query(sys.argv[1], sys.argv[2], options={"splitBytes": 2**40})
reader = query.open()
plan = query.plan(reader)
assert len(plan.splits) == 1, plan
rows = sum(batch.num_rows for batch in query.read(plan.splits[0], reader))
# Not getrusage: its peak is inherited from the process that started this one.
lines = open("/proc/self/status").read().splitlines()
print(rows, next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")))
"""


def run_memory(folder: Path) -> Iterator[Figure]:
    """One task over one segment, of 1 GB and of a tenth of it."""
    for size_mb in (100, 1000):
        archive = ArchiveBuilder(folder / f"memory-{size_mb}")
        archive.add_topic("t")
        template = encode_batch(
            [
                Record(offset=n, timestamp_ms=START_MS, key=b"k", value=os.urandom(1000))
                for n in range(60)
            ]
        )
        batches = _renumbered([template] * (size_mb * 1_000_000 // len(template)), 0)
        archive.add_segment("t", batches, key_filter=False)
        done = subprocess.run(
            [sys.executable, "-c", _SCAN, archive.url, "t"],
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        rows, peak_mib = map(int, done.stdout.split())
        assert rows == 60 * len(batches)
        yield Figure(
            part="memory",
            name=f"peak of a task, segment of {size_mb} MB",
            value=peak_mib,
            unit="MiB",
        )
        shutil.rmtree(archive.path)


# --- report -----------------------------------------------------------------------------------


def report(figures: list[Figure], console: Console) -> None:
    table = Table("part", "what", "median", "min - max", "beside Kafka source", "beside Parquet")
    grouped: dict[tuple[str, str, str], list[float]] = {}
    for figure in figures:
        grouped.setdefault((figure.part, figure.name, figure.unit), []).append(figure.value)
    medians = {key: statistics.median(values) for key, values in grouped.items()}
    for (part, name, unit), values in grouped.items():
        kafka = medians.get((part, "Spark's Kafka source", unit))
        parquet = medians.get((part, "Spark over Parquet, s3a", unit))
        median = medians[part, name, unit]
        table.add_row(
            part,
            name,
            f"{median:.2f} {unit}",
            f"{min(values):.2f} - {max(values):.2f}",
            f"{median / kafka:.2f}" if kafka else "",
            f"{median / parquet:.2f}" if parquet else "",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=400, help="of each topic of part `rate` [400]")
    parser.add_argument(
        "--topics", default=TOPICS, help=f"record bytes and codec, joined by commas [{TOPICS}]"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jars", type=Path, default=Path("bench-data/jars"))
    parser.add_argument("parts", nargs="*", default=["rate", "year", "plan", "memory"])
    options = parser.parse_args()
    figures: list[Figure] = []

    def took(made: Iterator[Figure]) -> None:
        for figure in made:
            figures.append(figure)
            line = f"{figure.part}: {figure.name} {figure.value:.2f} {figure.unit}"
            print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="bench-lake-") as name:
        folder = Path(name)
        if "year" in options.parts:
            took(run_year(folder))
        if "plan" in options.parts:
            took(run_plan(folder))
        if "memory" in options.parts:
            took(run_memory(folder))
        if "rate" in options.parts:
            jars = fetch_jars(options.jars)
            topics = options.topics.split(",")
            took(run_rates(folder, jars, topics, options.mb * 1_000_000, options.runs))
    report(figures, Console())


if __name__ == "__main__":
    main()

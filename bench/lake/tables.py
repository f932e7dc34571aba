"""Tables of a topic, beside what makes the same Parquet without us.

    backfill     records/s into a new table, values decoded to columns, zstd, local[2]
                   table sync, local         this process
                   table sync, spark         tasks of Spark
                   Kafka to Parquet          Spark over Kafka, the same decoding, `write.parquet`
                   Parquet to Parquet        Spark over the same rows, already columns
    memory       peak of a process that syncs an archive, and one ten times as large
    freshness    age of the newest record in a table at `--interval 10s`, while 50 MB/s come in
    commits      a commit to a table of few files, and of 10,000, after as many commits

All read the archive (or Parquet) from the S3 server of `bench/null_s3.py` and write to a local
folder. The Kafka source reads from Apache Kafka with --apache-kafka, else from our broker, whose
segments are hot in the page cache.
"""

from __future__ import annotations

import copy
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.lake.archive import (
    FIELDS,
    VALUES,
    Archived,
    archived,
    in_apache_kafka,
    readable,
    value_schema,
)
from bench.lake.rates import CREDENTIALS, Figure, spark_session
from bench.run import create_topic, null_s3, s3_client
from strandline.spark_lake import count
from strandline.storage.errors import StrandlineError
from strandline.storage.records.batch.record import Record, encode_batch
from tests.support.broker import BrokerProcess, eventually
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder

TABLE_TOPICS = "json-zstd,flight-zstd,avro-zstd"
KAFKA_TO_PARQUET = "Kafka to Parquet"
PARQUET_TO_PARQUET = "Parquet to Parquet"
RATE = "M records/s"
# Of `freshness`; values are JSON of a kilobyte, decoded to columns.
BYTES_PER_S = 50_000_000
INTERVAL = "10s"
# Of `commits`: how many were made before the one that is measured, and the files of the larger
# table; the smaller one has a file of each commit.
COMMIT_COUNTS = (10, 100)
MANY_FILES = 10_000


# --- backfill ---------------------------------------------------------------------------------


def run_backfill(
    folder: Path,
    jars: list[Path],
    topics: list[str],
    total_bytes: int,
    runs: int,
    warm: int,
    apache_kafka: bool,
) -> Iterator[Figure]:
    with spark_session(jars) as spark:
        for topic in topics:
            other = in_apache_kafka(folder / topic, topic, total_bytes) if apache_kafka else None
            with (
                archived(folder / topic, topic, total_bytes) as found,
                other or nullcontext() as kafka,
            ):
                bootstrap = found.broker.bootstrap if kafka is None else kafka.bootstrap
                ways = _ways(spark, found, bootstrap, folder / f"{topic}-tables")
                for run in range(warm + runs):
                    for name, make in ways.items():
                        begin_s = time.perf_counter()
                        make()
                        taken_s = time.perf_counter() - begin_s
                        shutil.rmtree(folder / f"{topic}-tables")
                        if run >= warm:
                            rate = found.count / 1e6 / taken_s
                            part = f"table of {readable(topic)}"
                            yield Figure(part=part, name=name, value=rate, unit=RATE)
            shutil.rmtree(folder / topic, ignore_errors=True)


def _ways(
    spark: Any, found: Archived, bootstrap: str, out: Path
) -> Mapping[str, Callable[[], object]]:
    """What makes the table or its like below `out`, by name."""
    kafka = (
        spark.read.format("kafka")
        .option("minPartitions", 8)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", found.topic)
        .option("startingOffsets", found.offsets(begin=True))
        .option("endingOffsets", found.offsets())
        .load()
    )
    columns = ["partition", "offset", "timestamp", "key", "value.*"]
    decoded = kafka.withColumn("value", _decoded(found.topic)).select(*columns)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(f"fs.s3a.bucket.{found.bucket}.endpoint", found.endpoint)
    decoded.write.parquet(str(out / "once"))
    client: Any = s3_client(found.endpoint)
    for path in sorted((out / "once").glob("*.parquet")):
        client.put_object(Bucket=found.bucket, Key=f"columns/{path.name}", Body=path.read_bytes())
    shutil.rmtree(out)
    parquet = spark.read.parquet(f"s3a://{found.bucket}/columns/")
    assert parquet.count() == found.count
    return {
        "table sync, local": lambda: _sync(None, found, out),
        "table sync, spark": lambda: _sync(spark, found, out),
        KAFKA_TO_PARQUET: lambda: _by_day(decoded, out),
        PARQUET_TO_PARQUET: lambda: _by_day(parquet, out),
    }


def _decoded(topic: str) -> Any:
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import col, from_json

    schema = value_schema(topic)
    text = col("value").cast("string")
    return from_avro("value", schema) if topic.startswith("avro") else from_json(text, schema)


def _by_day(frame: Any, out: Path) -> None:
    """As the table is partitioned and packed."""
    rows = frame.selectExpr("*", "date(timestamp) table_day")
    rows.write.partitionBy("table_day").option("compression", "zstd").parquet(str(out / "parquet"))


def _sync(spark: Any, found: Archived, out: Path) -> None:
    from strandline.spark_lake.table import sync

    done = sync(
        spark,
        found.url,
        found.topic,
        "lake.t",
        warehouse=f"file://{out}",
        options={
            "s3.endpoint.url": found.endpoint,
            "endingOffsets": found.offsets(),
            "valueFormat": "avro" if found.topic.startswith("avro") else "json",
            "valueSchema": value_schema(found.topic),
        },
    )
    assert done.rows == found.count, done


# --- memory -----------------------------------------------------------------------------------

# The command, and then what its process had at most.
_SYNC = """
import sys
from strandline.broker.cli import main
assert main() == 0
lines = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")))
"""


def run_table_memory(folder: Path, size_mb: int) -> Iterator[Figure]:
    """An archive of `size_mb`, and one of ten times that, of segments of 64 MB."""
    peaks = []
    for factor in (1, 10):
        archive = ArchiveBuilder(folder / f"table-memory-{factor}")
        archive.add_topic("t")
        made = _json_segments(archive, size_mb * factor)
        command = ["table", "sync", "--remote", archive.url, "--topic", "t", "--table", "lake.t"]
        command += ["--option", "valueFormat=json", "--option", f"valueSchema={FIELDS}"]
        done = subprocess.run(
            [sys.executable, "-c", _SYNC, *command], capture_output=True, text=True, check=True
        )
        assert f"lake.t: {made:,} rows" in done.stdout, done.stdout
        peak_mib = int(done.stdout.split()[-1])
        name = f"peak of table sync, archive of {size_mb * factor} MB"
        yield Figure(part="table memory", name=name, value=peak_mib, unit="MiB")
        peaks.append(peak_mib)
        shutil.rmtree(archive.path)
        shutil.rmtree(f"{archive.path}-tables")
    times = peaks[1] / peaks[0]
    yield Figure(part="table memory", name="ten times the archive", value=times, unit="times")


def _json_segments(archive: ArchiveBuilder, size_mb: int) -> int:
    """Segments of 64 MB that repeat one batch; how many records they have."""
    values = VALUES["json"]()[:60]
    template = encode_batch(
        [
            Record(offset=n, timestamp_ms=START_MS + n, key=b"k", value=value)
            for n, value in enumerate(values)
        ]
    )
    in_segment = max(1, 64_000_000 // len(template))
    batches_left = size_mb * 1_000_000 // len(template)
    batch_number = 0
    while batches_left:
        count = min(in_segment, batches_left)
        numbered = [
            ((batch_number + n) * len(values)).to_bytes(8, "big") + template[8:]
            for n in range(count)
        ]
        archive.add_segment("t", numbered, key_filter=False)
        batch_number += count
        batches_left -= count
    return batch_number * len(values)


# --- freshness --------------------------------------------------------------------------------


def run_freshness(folder: Path, seconds: int) -> Iterator[Figure]:
    """The ages that a reader sees once a second, from the first commit on."""
    os.environ |= CREDENTIALS
    with null_s3() as endpoint:
        client: Any = s3_client(endpoint)
        client.create_bucket(Bucket="bench-fresh")
        settings = {
            "remote.log.storage.system.enable": "true",
            "strandline.remote.url": "s3://bench-fresh/archive",
            "strandline.remote.s3.endpoint.url": endpoint,
            "remote.log.manager.task.interval.ms": "500",
            # Else records wait for the end of their segment, here 20 s.
            "strandline.remote.active.segment.upload.ms": "5000",
        }
        with BrokerProcess(folder / "fresh", settings=settings) as broker:
            create_topic(broker, "t", **{"remote.storage.enable": "true"})
            stop = threading.Event()
            pool = ThreadPoolExecutor(1)
            sending = pool.submit(_send, broker.bootstrap, stop)
            eventually(lambda: _is_archived(endpoint))
            syncing = _sync_at_intervals(endpoint, folder / "fresh-tables")
            try:
                yield from _ages(folder / "fresh-tables", seconds)
                assert syncing.poll() is None, "the sync ended"
            finally:
                stop.set()
                pool.shutdown(wait=True)
                syncing.terminate()
                syncing.wait()
            rate = sending.result()
            yield Figure(part="table freshness", name="produced", value=rate, unit="MB/s")


def _send(bootstrap: str, stop: threading.Event) -> float:
    """Sends BYTES_PER_S, in bursts of a hundredth of a second. Returns the MB/s that were taken."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    values = VALUES["json"]()
    size_bytes = sum(map(len, values)) // len(values)
    burst = BYTES_PER_S // size_bytes // 100
    sent = 0
    begin_s = due_s = time.monotonic()
    while not stop.is_set():
        for _ in range(burst):
            while True:
                try:
                    producer.produce("t", values[sent % len(values)])
                    break
                except BufferError:  # its queue is full
                    producer.poll(0.1)
            sent += 1
        producer.poll(0)
        due_s += 0.01
        stop.wait(max(0.0, due_s - time.monotonic()))
    left = producer.flush(60)
    assert not left, left
    return sent * size_bytes / 1e6 / (time.monotonic() - begin_s)


def _sync_at_intervals(endpoint: str, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "strandline", "table", "sync"]
    command += ["--remote", "s3://bench-fresh/archive", "--endpoint-url", endpoint]
    command += ["--topic", "t", "--table", "lake.t", "--warehouse", f"file://{out}"]
    command += ["--option", "valueFormat=json", "--option", f"valueSchema={FIELDS}"]
    return subprocess.Popen([*command, "--interval", INTERVAL])


def _is_archived(endpoint: str) -> bool:
    """A sync needs a topic that the archive has."""
    try:
        return bool(count("s3://bench-fresh/archive", "t", options={"s3.endpoint.url": endpoint}))
    except StrandlineError:
        return False


def _ages(out: Path, seconds: int) -> Iterator[Figure]:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.conversions import from_bytes
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.types import TimestamptzType

    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        time.sleep(1)
        if not (out / "catalog.db").exists():
            continue
        catalog = load_catalog("strandline", type="sql", uri=f"sqlite:///{out}/catalog.db")
        try:
            table = catalog.load_table("lake.t")
        except NoSuchTableError:
            continue
        column = table.schema().find_field("_timestamp").field_id
        newest = [
            from_bytes(TimestamptzType(), task.file.upper_bounds[column])
            for task in table.scan().plan_files()
        ]
        if newest:
            age_s = time.time() - max(newest) / 1e6
            yield Figure(part="table freshness", name=f"at {INTERVAL}", value=age_s, unit="s")


# --- commits ----------------------------------------------------------------------------------


def run_commits(folder: Path, runs: int) -> Iterator[Figure]:
    """The table's other files are names alone: no commit opens them.

    Each commit before adds a snapshot, and a manifest until they are merged. So tables of the same
    number of commits are compared, which differ in their files alone.
    """
    for commit_count in COMMIT_COUNTS:
        taken: dict[int, list[float]] = {commit_count: [], MANY_FILES: []}
        # In turns: what else the machine does falls on both.
        for run in range(runs):
            for file_count, seconds in taken.items():
                place = folder / f"commits-{commit_count}-{file_count}-{run}"
                seconds.append(_commit_s(place, commit_count, file_count))
                name = f"to {file_count:,} files of {commit_count} commits"
                yield Figure(part="table commit", name=name, value=seconds[-1], unit="s")
        few, many = map(statistics.median, taken.values())
        yield Figure(
            part="table commit", name=commit_goal(commit_count), value=many / few, unit="times"
        )


def commit_goal(commit_count: int) -> str:
    """The name of the figure that has a goal."""
    return f"{MANY_FILES:,} files over {commit_count}, of {commit_count} commits each"


def _commit_s(folder: Path, commit_count: int, file_count: int) -> float:
    from strandline.spark_lake.table.run import TableRequest, TableRun

    archive = ArchiveBuilder(folder)
    archive.add_topic("t")
    _json_segments(archive, 1)
    options = {"valueFormat": "json", "valueSchema": FIELDS}
    request = TableRequest(remote=archive.url, topic="t", table="lake.t", options=options)
    commit = type(TableRun(request).store).commit
    known: list[Any] = []

    def remembered(store: Any, files: Any, offsets: Any) -> None:
        known.extend(files)
        commit(store, files, offsets)

    run = TableRun(request)
    run.store.commit = remembered.__get__(run.store)  # type: ignore[method-assign]
    run.sync(_Unseen())
    (file,) = known[:1]
    others = []
    for number in range(file_count):
        data_file = copy.deepcopy(file.entry.data_file)
        # The path, by its place in a manifest's record; pyiceberg has no setter.
        data_file[1] = f"{file.path}.{number}"
        assert data_file.file_path.endswith(f".{number}")
        others.append(replace(file, entry=replace(file.entry, data_file=data_file)))
    size = file_count // commit_count
    for number in range(0, file_count, size):
        _committed(run.store, commit, others[number : number + size], f"others-{number}")
    taken_s = _committed(run.store, commit, [file], "one")
    shutil.rmtree(folder)
    shutil.rmtree(f"{folder}-tables")
    return taken_s


def _committed(store: Any, commit: Any, files: Sequence[Any], commit_id: str) -> float:
    """Commits files; returns the seconds that the commit took, without loading the table."""
    offsets = store.load()
    assert offsets is not None
    begin_s = time.perf_counter()
    commit(store, files, replace(offsets, commits=(commit_id, *offsets.commits)))
    return time.perf_counter() - begin_s


class _Unseen:
    def begin(self, what: str, total: int) -> None: ...

    def advance(self, count: int) -> None: ...

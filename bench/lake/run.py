"""Benchmark of the lake, each figure beside a reference from the same run and records.

    rate     records/s of full rows into Spark's `noop` sink, see `bench/lake/rates.py`
    year     a filter of one hour over a year of archive: the bytes it reads, of all bytes
    plan     planning 100,000 segments, all of them and one percent
    memory   peak memory of a Python process that scans one segment of 1 GB
    tables   commits, table-memory, freshness and backfill: of tables, see `bench/lake/tables.py`

Run it as `make bench-lake`; rates are medians of RUNS alternating runs (min - max). A JVM is warm
only after some gigabytes, so a rate that is to be quoted is taken of 2 GB a topic after some rounds
that do not count, which needs about 4 GB of disk and 8 GB of memory:

    make bench-lake BENCH_ARGS="--mb 2000 --warm 3 --runs 3 --ways '^(load|Spark)' rate"
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import crc32c
from rich.console import Console
from rich.table import Table

from bench.lake.cpu import WHO
from bench.lake.rates import (
    APACHE_KAFKA,
    CPU_UNIT,
    KAFKA,
    PARQUET,
    PER_HOUR,
    TOPICS,
    Figure,
    jars_in,
    run_rates,
)
from bench.lake.tables import (
    COMMIT_COUNTS,
    KAFKA_TO_PARQUET,
    PARQUET_TO_PARQUET,
    TABLE_TOPICS,
    commit_goal,
    run_backfill,
    run_commits,
    run_freshness,
    run_table_memory,
)
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.remote import keys
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.page import encode_page, page_ref
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder

MIB = 1024 * 1024
# A figure must stay below its goal.
GOALS = {
    "bytes read for one hour": 1.0,
    "all": 3.0,
    "one percent": 3.0,
    # Ten times the segment in about the same memory: it is bounded by windows, not by segments.
    "segment of 1000 MB over one of 100 MB": 1.2,
    "ten times the archive": 1.2,
    **{commit_goal(count): 2.0 for count in COMMIT_COUNTS},
}
# How many times as fast as Spark's Kafka source, with values of a kilobyte or so.
RATE_GOAL = 3.0
# Of the rate at which Spark reads and writes Parquet that has columns already.
BACKFILL_GOAL = 0.7
RATE_GOAL_WAYS = ("load", 'format("strandline")')
RATE_GOAL_BYTES_MIN = 500
HOUR_MS = 3_600_000


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
    from strandline.storage.records.batch.record import with_crc

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
from strandline.spark_lake.query.arrow_scan import make_query
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
    peaks: list[int] = []
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
        peaks.append(peak_mib)
        shutil.rmtree(archive.path)
    yield Figure(
        part="memory",
        name="segment of 1000 MB over one of 100 MB",
        value=peaks[1] / peaks[0],
        unit="times",
    )


# --- report -----------------------------------------------------------------------------------


def report(figures: list[Figure], console: Console) -> None:
    """Rates with the CPU they took in the same row, in seconds for a million records."""
    columns = (
        "part",
        "what",
        "median",
        "min - max",
        *WHO,
        "of Kafka's",
        "Apache's",
        "of Parquet's",
        "goal",
    )
    table = Table(*columns)
    grouped: dict[tuple[str, str], list[float]] = {}
    units: dict[tuple[str, str], str] = {}
    for figure in figures:
        grouped.setdefault((figure.part, figure.name), []).append(figure.value)
        units[figure.part, figure.name] = figure.unit
    medians = {key: statistics.median(values) for key, values in grouped.items()}
    for (part, name), values in grouped.items():
        if units[part, name] == CPU_UNIT:
            continue
        median = medians[part, name]
        question = PER_HOUR if name.endswith(PER_HOUR) else ""
        cpu = [medians.get((part, f"{name}: {who}")) for who in WHO]
        peers = [medians.get((part, peer + question)) for peer in (KAFKA, APACHE_KAFKA, PARQUET)]
        table.add_row(
            part,
            name,
            f"{median:.2f} {units[part, name]}",
            f"{min(values):.2f} - {max(values):.2f}",
            *(f"{one:.2f}" if one is not None else "" for one in cpu),
            *(f"{median / peer:.2f}" if peer else "" for peer in peers),
            _goal(part, name, median, medians.get((part, KAFKA)))
            or _backfill_goal(name, median, medians, part),
        )
    console.print(table)


def _goal(part: str, name: str, median: float, kafka: float | None) -> str:
    if name in RATE_GOAL_WAYS and kafka and int(part.split(maxsplit=1)[0]) >= RATE_GOAL_BYTES_MIN:
        return f">= {RATE_GOAL:g}: {'yes' if median / kafka >= RATE_GOAL else 'NO'}"
    goal = GOALS.get(name)
    if goal is None:
        return ""
    return f"< {goal:g}: {'yes' if median < goal else 'NO'}"


def _backfill_goal(
    name: str, median: float, medians: Mapping[tuple[str, str], float], part: str
) -> str:
    kafka = medians.get((part, KAFKA_TO_PARQUET))
    parquet = medians.get((part, PARQUET_TO_PARQUET))
    if kafka is None or parquet is None or not name.startswith("table sync"):
        return ""
    of_kafka, of_parquet = median / kafka, median / parquet
    told = f">= {RATE_GOAL:g} of Kafka's: {'yes' if of_kafka >= RATE_GOAL else 'NO'} {of_kafka:.2f}"
    is_fast = of_parquet >= BACKFILL_GOAL
    return (
        f"{told}, >= {BACKFILL_GOAL:g} of Parquet's: {'yes' if is_fast else 'NO'} {of_parquet:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=400, help="of each topic of part `rate` [400]")
    parser.add_argument(
        "--topics",
        default=TOPICS,
        help=f"record bytes, or flights, codec, and bytes of a batch if not 16384 [{TOPICS}]",
    )
    parser.add_argument(
        "--segment-mib", type=int, default=16, help="of each segment of part `rate` [16]"
    )
    parser.add_argument(
        "--ways", default="", help="only the ways to read whose names match this expression [all]"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--warm", type=int, default=1, help="rounds before these that do not count [1]"
    )
    parser.add_argument(
        "--apache-kafka",
        action="store_true",
        help="read the same records from Apache Kafka, too (`make kafka-jars` brings it)",
    )
    parser.add_argument(
        "--table-topics", default=TABLE_TOPICS, help=f"of part `tables` [{TABLE_TOPICS}]"
    )
    parser.add_argument(
        "--table-mb", type=int, default=1000, help="the smaller archive of its memory [1000]"
    )
    parser.add_argument(
        "--fresh-s", type=int, default=120, help="how long its freshness is looked at [120]"
    )
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
        if "commits" in options.parts or "tables" in options.parts:
            took(run_commits(folder, options.runs))
        if "table-memory" in options.parts or "tables" in options.parts:
            took(run_table_memory(folder, options.table_mb))
        if "freshness" in options.parts or "tables" in options.parts:
            took(run_freshness(folder, options.fresh_s))
        if "backfill" in options.parts or "tables" in options.parts:
            took(
                run_backfill(
                    folder,
                    jars_in(options.jars),
                    options.table_topics.split(","),
                    options.mb * 1_000_000,
                    options.runs,
                    options.warm,
                    options.apache_kafka,
                )
            )
        if "rate" in options.parts:
            jars = jars_in(options.jars)
            topics = options.topics.split(",")
            took(
                run_rates(
                    folder,
                    jars,
                    topics,
                    options.mb * 1_000_000,
                    options.runs,
                    options.ways,
                    options.warm,
                    options.segment_mib * MIB,
                    options.apache_kafka,
                )
            )
    report(figures, Console(width=max(170, Console().width)))


if __name__ == "__main__":
    main()

"""A table synced by a cluster of processes: dead executors and drivers cost no row, double none.

Not part of `make test`, because each life of the job starts four Java processes: `make test-spark`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from strandline.spark_lake.table import sync
from strandline.storage.records.batch.record import Record
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1200)]

JOB = Path(__file__).with_name("table_job.py")
PACKAGE = Path(__file__).parents[2] / ".namespace"
SEGMENTS = 8
SEGMENT_RECORDS = 400
# Some way into a round, which takes a second or two.
DELAY_S_MAX = 2.0
# Of an upsert: each partition is a task. The table has half of the segments before.
PARTITIONS = 8
KEYS = 100


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveBuilder:
    made = ArchiveBuilder(tmp_path / "archive")
    made.add_topic("t")
    for number in range(SEGMENTS):
        records = make_records(
            SEGMENT_RECORDS, base_offset=number * SEGMENT_RECORDS, value_bytes=10 * 1024
        )
        made.add_segment("t", make_batches(records))
    return made


@pytest.fixture
def changing(tmp_path: Path) -> ArchiveBuilder:
    made = ArchiveBuilder(tmp_path / "archive")
    made.add_topic("t", partitions=PARTITIONS)
    for generation in range(2):
        for partition in range(PARTITIONS):
            made.add_segment("t", make_batches(_changes(generation)), partition=partition)
        if generation == 0:
            sync(None, made.url, "t", "lake.t", mode="upsert")
    return made


def _changes(generation: int) -> list[Record]:
    """Records of few keys; some are deleted, or not changed any more."""
    start = generation * SEGMENT_RECORDS
    source = random.Random(generation)
    return [
        Record(
            offset=offset,
            timestamp_ms=START_MS + offset,
            key=b"k%d" % source.randrange(KEYS - 30 * generation),
            value=None if offset % 7 == 0 else source.randbytes(10 * 1024),
        )
        for offset in range(start, start + SEGMENT_RECORDS)
    ]


def run(
    archive: ArchiveBuilder,
    *,
    mode: str = "append",
    kill: str = "",
    environment: dict[str, str] | None = None,
) -> str:
    """One life of the job: what it said last. `kill` is "executor", or "driver" after a while."""
    folder = archive.path.parent
    with open(folder / "stderr", "ab") as errors:
        job = subprocess.Popen(
            [sys.executable, str(JOB), archive.url, mode, kill],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(PACKAGE), str(JOB.parent)]),
                **(environment or {}),
            },
        )
    said = ""
    try:
        assert job.stdout is not None
        for line in job.stdout:
            said = line.strip()
            if said == "began" and kill == "driver":
                time.sleep(random.random() * DELAY_S_MAX)
                break
    finally:
        # The driver's Python, its JVM, the executors and their workers are one group.
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(30)
    assert said, (folder / "stderr").read_text()[-3000:]
    return said


def rows_of(archive: ArchiveBuilder) -> list[dict[str, Any]]:
    uri = f"sqlite:///{archive.path.with_name('archive-tables')}/catalog.db"
    table = load_catalog("strandline", type="sql", uri=uri).load_table("lake.t")
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return rows


def assert_each_row_once(archive: ArchiveBuilder) -> None:
    offsets = [row["_offset"] for row in rows_of(archive)]
    assert Counter(offsets) == Counter(range(SEGMENTS * SEGMENT_RECORDS))


def assert_newest_row_of_each_key(archive: ArchiveBuilder) -> None:
    newest = {one.key: one for generation in range(2) for one in _changes(generation)}
    kept = [(one.offset, one.key, one.value) for one in newest.values() if one.value is not None]
    assert 0 < len(kept) < len(newest)
    found = [
        (row["_topic_partition"], row["_offset"], row["_key"], row["value"])
        for row in rows_of(archive)
    ]
    wanted = [(partition, *one) for partition in range(PARTITIONS) for one in kept]
    assert sorted(found) == sorted(wanted)


def test_an_executor_killed_in_the_middle_of_a_round_changes_nothing(
    archive: ArchiveBuilder,
) -> None:
    said = json.loads(run(archive, kill="executor"))
    assert said == {"killed": 1, "rows": SEGMENTS * SEGMENT_RECORDS}
    assert_each_row_once(archive)


def test_after_drivers_were_killed_at_any_time_the_next_sync_completes_the_table(
    archive: ArchiveBuilder,
) -> None:
    for _ in range(3):
        run(archive, kill="driver")
    for point in ("table.before-commit", "table.after-commit"):
        run(archive, environment={"STRANDLINE_CRASH_AT": point})
    assert "rows" in json.loads(run(archive))
    assert_each_row_once(archive)


def test_an_executor_killed_in_the_middle_of_an_upsert_changes_nothing(
    changing: ArchiveBuilder,
) -> None:
    assert json.loads(run(changing, mode="upsert", kill="executor"))["killed"] == 1
    assert_newest_row_of_each_key(changing)


def test_after_drivers_were_killed_at_any_time_the_next_upsert_completes_the_table(
    changing: ArchiveBuilder,
) -> None:
    for _ in range(3):
        run(changing, mode="upsert", kill="driver")
    for point in ("table.before-commit", "table.after-commit"):
        run(changing, mode="upsert", environment={"STRANDLINE_CRASH_AT": point})
    assert "rows" in json.loads(run(changing, mode="upsert"))
    assert_newest_row_of_each_key(changing)

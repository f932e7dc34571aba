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

import pytest
from pyiceberg.catalog import load_catalog

from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1200)]

JOB = Path(__file__).with_name("table_job.py")
PACKAGE = Path(__file__).parents[2] / ".namespace"
SEGMENTS = 8
SEGMENT_RECORDS = 400
# Some way into a round, which takes a second or two.
DELAY_S_MAX = 2.0


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


def run(
    archive: ArchiveBuilder, *, kill: str = "", environment: dict[str, str] | None = None
) -> str:
    """One life of the job: what it said last. `kill` is "executor", or "driver" after a while."""
    folder = archive.path.parent
    with open(folder / "stderr", "ab") as errors:
        job = subprocess.Popen(
            [sys.executable, str(JOB), archive.url, kill],
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


def assert_each_row_once(archive: ArchiveBuilder) -> None:
    uri = f"sqlite:///{archive.path.with_name('archive-tables')}/catalog.db"
    table = load_catalog("strandline", type="sql", uri=uri).load_table("lake.t")
    offsets = table.scan().to_arrow().column("_offset").to_pylist()
    assert Counter(offsets) == Counter(range(SEGMENTS * SEGMENT_RECORDS))


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

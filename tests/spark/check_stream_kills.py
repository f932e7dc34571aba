"""A stream whose driver is killed again and again gives every record exactly once.

Real processes: a Spark driver with its JVM and workers, killed with SIGKILL at once, in the middle
of a micro-batch, between a batch's rows and its commit, and between batches. The archive grows and
its open segment is archived meanwhile, so that what is repeated lies elsewhere than before.
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

import pyarrow.parquet as pq
import pytest

from tests.unit.lake.archive_builder import ArchiveBuilder, make_batches, make_records

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash,
    pytest.mark.timeout(600),
]

JOB = Path(__file__).with_name("stream_job.py")
PACKAGE = Path(__file__).parents[2] / ".namespace"
PARTITIONS = 2
LIMITS = {"maxOffsetsPerTrigger": "60"}
# What the job says when it is killed: a batch is being written; it is written, and not committed.
STRIKES = ("batch 1", "written 2", "batch 5")


def run(archive: ArchiveBuilder, folder: Path, kill_at: str | None = None) -> list[str]:
    """One life of the job: what it said until it ended, or was killed."""
    with open(folder / "stderr", "ab") as errors:
        job = subprocess.Popen(
            [sys.executable, str(JOB), archive.url, str(folder), json.dumps(LIMITS)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        )
    said: list[str] = []
    try:
        assert job.stdout is not None
        for line in job.stdout:
            said.append(line.strip())
            if said[-1] == kill_at:
                # Some way into it: a batch takes a few hundred ms.
                time.sleep(random.Random(kill_at).random() * 0.2)
                break
    finally:
        # The driver's Python, its JVM and its workers are one group.
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(30)
    assert kill_at is None or said[-1] == kill_at, (folder / "stderr").read_text()[-3000:]
    return said


def test_a_driver_killed_in_the_middle_of_batches_costs_no_row_and_doubles_none(
    tmp_path: Path,
) -> None:
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("t", partitions=PARTITIONS)
    expected: dict[tuple[int, int], bytes | None] = {}

    def grow(start: int, count: int, *, is_open: bool = False) -> None:
        for partition in range(PARTITIONS):
            records = make_records(count, base_offset=start, seed=partition)
            add = archive.add_piece if is_open else archive.add_segment
            add("t", make_batches(records), partition=partition)
            expected.update({(partition, one.offset): one.value for one in records})

    grow(0, 150)
    grow(150, 30, is_open=True)
    run(archive, tmp_path, STRIKES[0])
    run(archive, tmp_path, STRIKES[1])
    # The open segment is closed and archived, and its pieces are gone.
    grow(150, 60)
    for piece in archive.path.rglob("*.tail"):
        piece.unlink()
    run(archive, tmp_path, STRIKES[2])
    grow(210, 20, is_open=True)
    assert run(archive, tmp_path)[-1] == "ended"
    # A run takes what is there when it begins; another one finds nothing left.
    assert run(archive, tmp_path)[-1] == "ended"
    table = pq.read_table(tmp_path / "rows").to_pylist()
    found = Counter((row["partition"], row["offset"]) for row in table)
    assert found == Counter(expected.keys())
    assert all(expected[row["partition"], row["offset"]] == row["value"] for row in table)
    sizes = Counter(row["batch"] for row in table)
    assert max(sizes.values()) <= int(LIMITS["maxOffsetsPerTrigger"])
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    assert len(offsets) == len(sizes)

"""A stream whose driver is killed again and again gives every record exactly once.

Real processes: a Spark driver with its JVM and workers, killed with SIGKILL at once, in the middle
of a micro-batch, and behind each step of one:

    1 offsets/N is written    2 the batch begins    3 its rows are written    4 commits/N is written

The archive grows and its open segment is archived meanwhile, so that what is repeated lies
elsewhere than before.
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

from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash,
    pytest.mark.timeout(1200),
]

JOB = Path(__file__).with_name("stream_job.py")
PACKAGE = Path(__file__).parents[2] / ".namespace"
PARTITIONS = 2
LIMITS = {"maxOffsetsPerTrigger": "60"}
# What the job says, or the file of its checkpoint that is there, when it is killed.
STRIKES = ("offsets/1", "batch 1", "written 2", "commits/3", "batch 5", "offsets/6")
# Some way into a batch, which takes a few hundred ms; what lies between two files is hit at once.
DELAY_S_MAX = 0.2
RUN_S_MAX = 300.0


def run(
    archive: ArchiveBuilder, folder: Path, trigger: dict[str, object], kill_at: str | None = None
) -> list[str]:
    """One life of the job: what it said until it ended, or was killed."""
    arguments = [archive.url, str(folder), json.dumps(LIMITS), json.dumps(trigger)]
    with open(folder / "stderr", "ab") as errors:
        job = subprocess.Popen(
            [sys.executable, str(JOB), *arguments],
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
        if kill_at is not None and "/" in kill_at:
            _await_file(folder / "checkpoint" / kill_at, job)
            return [kill_at]
        for line in job.stdout:
            said.append(line.strip())
            if said[-1] == kill_at:
                time.sleep(random.Random(kill_at).random() * DELAY_S_MAX)
                break
    finally:
        # The driver's Python, its JVM and its workers are one group.
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(30)
    assert kill_at is None or said[-1] == kill_at, (folder / "stderr").read_text()[-3000:]
    return said


def _await_file(path: Path, job: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + RUN_S_MAX
    while not path.exists():
        assert job.poll() is None, f"it ended before {path}"
        assert time.monotonic() < deadline, path
        time.sleep(0.0005)


@pytest.mark.parametrize(
    "trigger", [{"availableNow": True}, {"processingTime": "50 milliseconds"}], ids=str
)
def test_a_driver_killed_behind_any_step_of_a_batch_costs_no_row_and_doubles_none(
    tmp_path: Path, trigger: dict[str, object]
) -> None:
    def lives(*strikes: str | None) -> list[str]:
        """What the last of them said."""
        return [run(archive, tmp_path, trigger, strike) for strike in strikes][-1]

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
    lives(*STRIKES[:3])
    # The open segment is closed and archived, and its pieces are gone.
    grow(150, 60)
    for piece in archive.path.rglob("*.tail"):
        piece.unlink()
    lives(*STRIKES[3:5])
    grow(210, 80, is_open=True)
    # A run takes what is there when it begins; another one finds nothing left.
    assert lives(STRIKES[5], None)[-1] == "ended"
    assert lives(None)[-1] == "ended"
    table = pq.read_table(tmp_path / "rows").to_pylist()
    found = Counter((row["partition"], row["offset"]) for row in table)
    assert found == Counter(expected.keys())
    assert all(expected[row["partition"], row["offset"]] == row["value"] for row in table)
    sizes = Counter(row["batch"] for row in table)
    assert max(sizes.values()) <= int(LIMITS["maxOffsetsPerTrigger"])
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    assert len(offsets) == len(sizes)

"""On a cluster of processes: the wheel is all executors need, and one that dies changes nothing.

Not part of `make test`, because it starts four Java processes: `make test-spark`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

ROOT = Path(__file__).resolve().parents[2]
SEGMENTS = 12
SEGMENT_RECORDS = 400

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_an_executor_killed_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("t")
    rows = offsets = checksums = 0
    for number in range(SEGMENTS):
        records = make_records(
            SEGMENT_RECORDS, base_offset=number * SEGMENT_RECORDS, value_bytes=10 * 1024
        )
        archive.add_segment("t", make_batches(records))
        rows += len(records)
        offsets += sum(record.offset for record in records)
        checksums += sum(zlib.crc32(one.value) for one in records if one.value is not None)
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", str(tmp_path), "."]
    subprocess.run(build, check=True, capture_output=True, cwd=ROOT, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    (tmp_path / "numba").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(wheel),
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
    }
    job = Path(__file__).with_name("cluster_job.py")
    done = subprocess.run(
        [sys.executable, str(job), archive.url, str(wheel)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    expected = [rows, offsets, checksums]
    assert said == {
        "from_wheel": True,
        "source, undisturbed": expected,
        "source, disturbed": expected,
        "source, killed": 1,
        "jvm, undisturbed": expected,
        "jvm, disturbed": expected,
        "jvm, killed": 1,
        "stream, undisturbed": expected,
        "stream, disturbed": expected,
        "stream, killed": 1,
    }

"""The memory of a sync in one process: bounded, whatever the archive's size."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strandline.spark_lake.table.buffers import FileBuffers
from strandline.spark_lake.table.store import PartitionRows, WrittenFile
from strandline.storage.records.batch.record import Record
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches

# Rows of a file, and archived bytes of a round: a sixteenth of the larger archive.
FILE_BYTES = 1_000_000
SYNC = """
import sys
import pyarrow
from strandline.spark_lake.table import sync
done = sync(
    None, sys.argv[1], "t", "lake.t", file_bytes=int(sys.argv[2]), round_bytes=2 * int(sys.argv[2]),
    options={"valueFormat": "json", "valueSchema": "id BIGINT, text STRING"},
)
print(done.rows, pyarrow.default_memory_pool().max_memory())
"""


class _Files:
    """A writer of one partition that keeps no row."""

    schema = pa.schema([pa.field("key", pa.binary())])

    def cut(self, rows: Any) -> Iterable[PartitionRows]:
        yield PartitionRows(key=(), rows=rows)

    def write(self, key: Any, batches: Sequence[Any]) -> WrittenFile:
        rows = sum(one.num_rows for one in batches)
        return WrittenFile(path="file", size_bytes=1, record_count=rows, entry=None)


def test_rows_that_wait_for_their_file_keep_none_of_the_memory_they_were_decoded_into() -> None:
    buffers = FileBuffers(_Files(), file_bytes=FILE_BYTES)  # type: ignore[arg-type]
    before = pa.total_allocated_bytes()
    decoded = np.zeros(2 * 1024 * 1024, np.uint8)
    is_freed = weakref.ref(decoded)
    ends = np.array([0, 60, 100], np.int32)
    keys = pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.py_buffer(ends), pa.py_buffer(decoded[:100])], 0
    )
    assert list(buffers.add(pa.RecordBatch.from_arrays([keys], schema=_Files.schema))) == []
    del decoded, keys
    assert is_freed() is None
    assert 100 <= pa.total_allocated_bytes() - before <= 1000
    assert [one.record_count for one in buffers.finish()] == [2]
    assert pa.total_allocated_bytes() == before


@pytest.mark.slow
@pytest.mark.heavy
def test_a_sync_of_four_times_the_archive_has_the_same_peak_of_arrows_memory(
    tmp_path: Path,
) -> None:
    small, large = (_peak(tmp_path / str(count), segment_count=count) for count in (8, 32))
    # All rows of the large one are 16 files.
    assert large < 1.3 * small, (small, large)
    assert large < 8 * FILE_BYTES


def _peak(folder: Path, *, segment_count: int) -> int:
    """The greatest size of Arrow's pool, in a process that syncs so many segments of 500 KB."""
    archive = ArchiveBuilder(folder)
    archive.add_topic("t")
    row_count = 500
    for number in range(segment_count):
        records = [
            Record(
                offset=offset,
                timestamp_ms=START_MS,
                key=b"k",
                value=json.dumps({"id": offset, "text": "x" * 1000}).encode(),
            )
            for offset in range(number * row_count, (number + 1) * row_count)
        ]
        archive.add_segment("t", make_batches(records))
    done = subprocess.run(
        [sys.executable, "-c", SYNC, archive.url, str(FILE_BYTES)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, peak = map(int, done.stdout.split())
    assert rows == segment_count * row_count
    return peak

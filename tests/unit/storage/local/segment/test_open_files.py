"""Open files of sealed segments are bounded, and who reads one keeps it."""

from __future__ import annotations

from pathlib import Path

from strandline.storage.local.segment.open_files import OpenSegments
from tests.unit.storage.local.builders import read_bytes
from tests.unit.storage.local.segment.reopened import (
    SEALED_COUNT,
    _open_logs,
    _piece,
    _reopened,
    _written,
)


def test_open_files_of_sealed_segments_have_a_bound(
    tmp_path: Path, two_at_most: OpenSegments
) -> None:
    log, content = _written(tmp_path)
    again = _reopened(tmp_path, log)
    for _ in range(3):
        assert read_bytes(again) == content
        assert _open_logs(tmp_path) == 3
    assert len(two_at_most) == 2


def test_segments_that_were_sealed_by_this_broker_count_too(
    tmp_path: Path, two_at_most: OpenSegments
) -> None:
    log, content = _written(tmp_path)
    # Not synced yet: their files stay open, so that the kernel can say what it could not write.
    assert _open_logs(tmp_path) == SEALED_COUNT + 1
    log.flush()
    assert _open_logs(tmp_path) == 3
    assert read_bytes(log) == content


def test_who_reads_a_segment_keeps_its_file(tmp_path: Path, two_at_most: OpenSegments) -> None:
    log, _ = _written(tmp_path)
    again = _reopened(tmp_path, log)
    first = again.read(0, bytes_max=1 << 20).range
    assert first is not None
    before = first.read()
    for segment in again.segments[1:]:
        _piece(again, segment.base_offset)
    assert _open_logs(tmp_path) == 4, "two segments, the active one, and the reader's"
    assert first.read() == before
    del first
    assert _open_logs(tmp_path) == 3, "its segment had given up the file"

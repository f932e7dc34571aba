"""The file that a cleaning writes takes the place of segments, or leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.crash_points import (
    CLEAN_AFTER_INDEXES,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.local.segment import swap
from tests.unit.storage.local.builders import log_files
from tests.unit.storage.local.compaction import CompactedLog


def test_small_segments_are_merged_and_their_old_files_go(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path)
    for number in range(6):
        log.append((b"k%d" % number, b"v" * 100))
        log.seal()
    assert len(log.log.segments) == 7
    log.clean()
    assert [s.base_offset for s in log.log.segments] == [0, 6]
    assert len(log.records()) == 6
    log.log.purge_deleted(log.clock.monotonic_s() + 1)
    assert [path.name[:20].lstrip("0") for path in log_files(log.directory)] == ["", "6"]
    assert not list(log.directory.glob("*.deleted"))


def test_a_reader_keeps_its_range_while_the_file_is_replaced(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path)
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.seal()
    held = log.log.read(0, bytes_max=1 << 20).range
    assert held is not None
    before = held.read()
    log.clean()
    log.log.purge_deleted(log.clock.monotonic_s() + 1)
    assert held.read() == before
    assert log.table() == {b"a": b"2"}


def test_a_cleaning_that_ends_early_leaves_no_file_behind(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path)
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.seal()
    # The index is renamed, then the log's new name cannot be made durable.
    with simulated_crash(CLEAN_AFTER_INDEXES), pytest.raises(SimulatedCrash):
        log.clean()
    swap.clear_unfinished(log.directory)
    assert not [p for p in log.directory.iterdir() if p.suffix in (".cleaned", ".swap")]
    assert [r.offset for r in log.records()] == [0, 1]

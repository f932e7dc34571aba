"""A log that is copied to another folder: what the copy is, and when it is not to be trusted."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError
from strandline.storage.local.formats.names import partition_of
from strandline.storage.local.log import diverged_records
from strandline.storage.local.log.diverged_records import SetAside
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs import move as log_move
from strandline.storage.local.log_dirs.move import LogMove, SourceChanged
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    batch,
    fill,
    offsets,
    open_log,
    read_bytes,
)
from tests.unit.storage.local.compaction import CompactedLog

SMALL_SEGMENTS = LogConfig(segment_bytes=4096)


def begin(source: LocalLog, target: Path) -> LogMove:
    """Steps 1 to 3."""
    move = LogMove(source, target, clock=ManualClock(NOW_MS))
    move.prepare()
    source.roll()
    move.copy_closed([segment for segment in source.segments if not segment.is_active])
    move.open_copy(source.active_segment.base_offset)
    return move


def bases(log: LocalLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_the_copy_has_the_same_bytes_in_the_same_segments(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a", config=SMALL_SEGMENTS)
    fill(source, 20)
    move = begin(source, tmp_path / "b")
    fill(source, 20)  # Appended while the copy is made, over the border of a segment.
    assert move.offset_lag == 200
    copy = move.take_over(log_start_offset=7)
    assert bases(copy) == bases(source)
    assert read_bytes(copy) == read_bytes(source)
    assert offsets(copy) == offsets(source)
    assert (copy.log_start_offset, copy.config) == (7, source.config)
    assert move.offset_lag == 0


def test_a_copy_that_was_interrupted_goes_on_from_the_segments_that_it_has(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a", config=SMALL_SEGMENTS)
    fill(source, 40)
    stopped = begin(source, tmp_path / "b")
    fill(source, 20)
    while (piece := stopped.next_piece(4096)) is not None:
        stopped.append(piece)
    files = sorted((tmp_path / "b").glob("*.log"))
    whole, damaged, longer = files[0], files[1], files[-1]
    with open(damaged, "r+b") as file:
        file.write(b"\xff")
    with open(longer, "ab") as file:
        file.write(bytes(100))
    (tmp_path / "b" / "00000000000000009999.log").write_bytes(b"of no segment")
    inodes = {path: path.stat().st_ino for path in files}

    again = begin(source, tmp_path / "b")
    copy = again.take_over(0)
    assert bases(copy) == bases(source)
    assert read_bytes(copy) == read_bytes(source)
    assert whole.stat().st_ino == inodes[whole]
    assert whole.stat().st_mtime_ns < damaged.stat().st_mtime_ns
    assert not (tmp_path / "b" / "00000000000000009999.log").exists()


def test_producers_and_lineage_go_with_the_log(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a", config=SMALL_SEGMENTS)
    append(source, batch(2, producer_id=9, producer_epoch=1, base_sequence=0), leader_epoch=3)
    move = begin(source, tmp_path / "b")
    append(source, batch(2, producer_id=9, producer_epoch=1, base_sequence=2), leader_epoch=5)
    copy = move.take_over(0)
    assert copy.leader_epochs.starts == source.leader_epochs.starts
    again = append(copy, batch(2, producer_id=9, producer_epoch=1, base_sequence=2))
    assert again.duplicate


@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_log_that_was_cut_and_went_on_makes_the_copy_worthless(
    tmp_path: Path, begins_anew: bool
) -> None:
    """The copy has what was cut off, where the log has other records by now."""
    source = open_log(tmp_path / "a", config=SMALL_SEGMENTS)
    fill(source, 20)
    move = begin(source, tmp_path / "b")
    if begins_anew:
        source.reset_to(source.end_offset + 5)
    else:
        source.truncate_to(source.segments[1].base_offset)
    fill(source, 40)
    with pytest.raises(SourceChanged):
        move.take_over(0)


def test_a_log_with_records_set_aside_does_not_move(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a")
    fill(source, 2)
    note = SetAside(start_offset=10, end_offset=20, leader_epoch=0)
    diverged_records.set_aside(source, note, source.segments)
    with pytest.raises(DiskError, match="set aside"):
        LogMove(source, tmp_path / "b", clock=ManualClock(NOW_MS)).prepare()
    diverged_records.remove(source)
    begin(source, tmp_path / "b")


def test_an_empty_log_moves_too(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a", log_start_offset=500)
    copy = begin(source, tmp_path / "b").take_over(500)
    assert (copy.start_offset, copy.end_offset) == (500, 500)
    append(copy, batch(1))
    assert copy.end_offset == 501


def test_retention_may_take_segments_off_the_front_meanwhile(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a", config=SMALL_SEGMENTS)
    fill(source, 20)
    move = begin(source, tmp_path / "b")
    source.delete_segments(source.segments[:1])
    fill(source, 5)
    assert move.take_over(source.start_offset).end_offset == source.end_offset


def test_a_replaced_segment_makes_the_copy_worthless(tmp_path: Path) -> None:
    """What compaction took out must not come back with the copy."""
    compacted = CompactedLog(tmp_path / "a")
    for round_ in range(40):
        compacted.append((b"key", b"%d" % round_ * 50))
    compacted.seal()
    move = begin(compacted.log, tmp_path / "b")
    assert compacted.clean() >= 1
    with pytest.raises(SourceChanged, match="replaced"):
        move.take_over(0)
    assert log_move.is_unfinished(tmp_path / "b")
    move.abandon()
    assert not (tmp_path / "b").exists()


def test_a_log_that_begins_behind_the_copy_is_begun_again(tmp_path: Path) -> None:
    """As retention leaves it that was faster than the copy."""
    source = open_log(tmp_path / "a", config=SMALL_SEGMENTS)
    fill(source, 20)
    move = begin(source, tmp_path / "b")
    fill(source, 40)
    source.delete_segments(source.segments[:-1])
    with pytest.raises(SourceChanged, match="behind"):
        move.next_piece()


def test_a_log_that_is_there_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    """That of a topic that was deleted and created again before its partition was moved."""
    fill(open_log(tmp_path / "b"), 3)
    there = sorted((tmp_path / "b").iterdir())
    move = LogMove(open_log(tmp_path / "a"), tmp_path / "b", clock=ManualClock(NOW_MS))
    with pytest.raises(DiskError, match="exists already"):
        move.prepare()
    move.abandon()
    assert sorted((tmp_path / "b").iterdir()) == there


def test_marks_say_which_folder_is_the_log(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a")
    fill(source, 3)
    target = tmp_path / "b"
    move = begin(source, target)
    assert log_move.is_unfinished(target)
    move.take_over(11)
    assert log_move.has_taken_over(target)
    assert not log_move.is_unfinished(target)
    assert log_move.marked_log_start(target) == 11
    log_move.remove_marks(target)
    assert not log_move.has_taken_over(target)
    assert not log_move.is_unfinished(target)
    log_move.remove_marks(target)


class _Dies(BaseException):
    """The process ends here."""


def partition_folders(folder: Path) -> list[Path]:
    """What a start would take for a partition's log, or for a copy of one."""
    return [path for path in folder.iterdir() if partition_of(path.name) is not None]


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_copy_whose_removal_was_interrupted_is_still_known_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """Without its mark it would be a second log of the partition, and no start would take it."""
    source = open_log(tmp_path / "a", config=SMALL_SEGMENTS)
    fill(source, 20)
    steps = 0
    for dies_at in range(1000):
        target = tmp_path / str(dies_at) / "t-0"
        move = begin(source, target) if is_begun else LogMove(source, target, clock=ManualClock())
        steps = 0

        def step(call: Callable[..., object], at: int, *given: object, **more: object) -> object:
            nonlocal steps
            steps += 1
            if steps > at:
                raise _Dies
            return call(*given, **more)

        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir", "open", "mkdir", "rename", "replace"):
                patch.setattr(os, name, partial(step, getattr(os, name), dies_at))
            try:
                move.abandon() if is_begun else move.prepare()
            except _Dies:
                pass
            else:
                break
        for path in partition_folders(target.parent) if target.parent.exists() else []:
            assert log_move.is_unfinished(path), sorted(f.name for f in path.iterdir())
    assert steps > 2
    assert target.exists() != is_begun

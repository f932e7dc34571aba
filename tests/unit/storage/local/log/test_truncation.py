"""What goes from a local log: old segments, what is truncated, and everything at a reset."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError, OffsetOutOfRange
from strandline.storage.model import EpochStart
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import (
    NOW_MS,
    TOPIC_ID,
    append,
    assert_dense,
    batch,
    fill,
    open_log,
)
from tests.unit.storage.local.log_folders import T0, kill, load_all, open_dirs

YEAR_MS = 365 * 86_400_000
SMALL = LogConfig(segment_bytes=10_000, index_interval_bytes=500)


def test_deleted_segments_are_renamed_at_once_and_unlinked_after_the_delay(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path, config=SMALL, clock=clock)
    fill(log, 60)
    gone = log.segments[:2]
    log.delete_segments(gone)
    assert log.start_offset == gone[-1].end_offset
    assert not gone[0].log_path.exists()
    assert len(list(tmp_path.glob("*.log.deleted"))) == 2
    assert log.purge_deleted(clock.monotonic_s()) == 0
    clock.advance_ms(SMALL.file_delete_delay_ms)
    assert log.purge_deleted(clock.monotonic_s()) == log_files_per_segment(2)
    assert not list(tmp_path.glob("*.deleted"))
    assert_dense(log)


def test_what_was_deleted_in_a_wrong_year_goes_when_the_clock_is_right_again(
    tmp_path: Path,
) -> None:
    clock = ManualClock(NOW_MS + YEAR_MS)
    log = open_log(tmp_path, config=SMALL, clock=clock)
    fill(log, 60)
    log.delete_segments(log.segments[:2])
    clock.advance_ms(-YEAR_MS)
    clock.advance_ms(SMALL.file_delete_delay_ms)
    assert log.purge_deleted(clock.monotonic_s()) == log_files_per_segment(2)
    assert not list(tmp_path.glob("*.deleted"))


def log_files_per_segment(segment_count: int) -> int:
    # .log, .index, .timeindex each; and the snapshot at a base, which the first segment has not.
    return segment_count * 4 - 1


@pytest.mark.parametrize("what", ["deleted", "truncated"])
def test_a_crash_between_the_files_that_go_leaves_a_log_without_a_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 80)
    first, second, third, *others = log.segments
    assert len(others) > 1
    drop = {
        "deleted": lambda: log.delete_segments([first, second, third]),
        "truncated": lambda: log.truncate_to(second.base_offset),
    }[what]
    rename, left = files.rename, 6

    def crash_in_the_second_segment(source: Path, target: Path, *, sync: bool = True) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        rename(source, target, sync=sync)

    monkeypatch.setattr(files, "rename", crash_in_the_second_segment)
    with pytest.raises(KeyboardInterrupt):
        drop()
    monkeypatch.undo()
    again = open_log(tmp_path, config=SMALL, clean_shutdown=False)
    assert len(again.segments) == len(others) + 1
    assert again.recovery_report.segments_removed == 0
    assert_dense(again)


def test_the_active_segment_is_never_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    with pytest.raises(AssertionError):
        log.delete_segments(log.segments)
    with pytest.raises(AssertionError):
        log.delete_segments(log.segments[1:2])


def test_truncating_inside_a_batch_drops_the_whole_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.truncate_to(35)
    assert log.end_offset == 30
    assert_dense(log)


@pytest.mark.parametrize("offset", [0, 10, 200, 333, 590])
def test_after_truncation_the_log_goes_on_without_a_gap(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    log.flush()
    log.truncate_to(offset)
    assert log.end_offset == log.recovery_point == offset // 10 * 10
    fill(log, 40)
    assert_dense(log)
    found = log.find_timestamp(NOW_MS + log.end_offset - 1)
    assert found is not None
    assert found.offset == log.end_offset - 1
    end_offset = log.end_offset
    log.close()
    reopened = open_log(tmp_path, config=SMALL)
    assert reopened.end_offset == end_offset
    assert not reopened.recovery_report.problems
    assert_dense(reopened)


@pytest.mark.parametrize("how", ["truncated", "reset", "lost", "lost while away"])
def test_what_takes_the_place_of_synced_records_is_not_trusted_before_it_is_synced(
    tmp_path: Path, how: str
) -> None:
    """The checkpoint in the folder would vouch for offsets that other bytes have by now."""
    dirs = open_dirs(tmp_path)
    load_all(dirs)
    log = dirs.create_log(T0, TOPIC_ID, SMALL)
    fill(log, 60)
    log.flush()
    assert not dirs.write_checkpoints({})
    second = log.segments[1]
    if how == "truncated":
        log.truncate_to(second.base_offset)
    elif how == "reset":
        log.reset_to(second.base_offset)
    else:
        # The device did not keep what it had called synced.
        for segment in log.segments[1:]:
            files.remove(segment.log_path)
        if how == "lost":
            kill(dirs)
            dirs = open_dirs(tmp_path)
            log = dirs.load(lambda _partition, _topic_id: SMALL)[T0]
        else:
            assert log.on_failure is not None
            log.on_failure(DiskError("the disk went away"))
            [revived] = dirs.revive()
            log = revived.new
    assert log.end_offset == second.base_offset
    fill(log, 50)
    damaged = next(s for s in log.segments if s.base_offset >= second.base_offset)
    assert not damaged.is_active
    # A loss of power: the folder has the file with its size, and the device has none of its end.
    content = bytearray(damaged.log_path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    damaged.log_path.write_bytes(content)
    kill(dirs)
    again = open_dirs(tmp_path)
    found = load_all(again)[T0]
    assert found.end_offset < damaged.end_offset
    assert_dense(found)
    again.close()


def test_a_flush_does_not_vouch_for_what_was_appended_behind_a_cut_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    sync_directory = files.sync_directory

    def cut_meanwhile(path: Path) -> None:
        sync_directory(path)
        monkeypatch.undo()
        log.truncate_to(300)
        fill(log, 10)

    monkeypatch.setattr(files, "sync_directory", cut_meanwhile)
    log.flush()
    assert (log.recovery_point, log.end_offset) == (0, 400)
    log.flush()
    assert log.recovery_point == 400


def test_a_flush_during_a_cut_does_not_vouch_for_what_is_cut_off(tmp_path: Path) -> None:
    """The loop waits for the note of the cut on the disk; a worker may flush meanwhile."""
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    log.flush()
    log.on_cut = log.flush
    log.truncate_to(300)
    assert (log.recovery_point, log.end_offset) == (300, 300)
    fill(log, 10)
    log.reset_to(100)
    assert (log.recovery_point, log.end_offset) == (100, 100)
    log.flush()
    fill(log, 1)
    log.flush()
    assert log.recovery_point == 110


def test_a_cut_that_was_noted_before_has_nothing_to_note_any_more(tmp_path: Path) -> None:
    """Also one within a batch: whole ones are cut."""
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    log.flush()
    noted: list[int] = []
    log.on_cut = lambda: noted.append(log.recovery_point)
    log.lower_recovery_point(305)
    assert (noted, log.end_offset) == ([300], 600)
    log.truncate_to(305)
    assert (noted, log.end_offset) == ([300], 300)


def test_a_cut_that_cannot_be_noted_changes_nothing(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    load_all(dirs)
    log = dirs.create_log(T0, TOPIC_ID, SMALL)
    fill(log, 60)
    log.flush()
    [directory] = dirs.directories
    directory.failure = DiskError("the disk went away")
    for cut in (log.truncate_to, log.reset_to):
        with pytest.raises(DiskError, match="went away"):
            cut(300)
        assert (log.recovery_point, log.end_offset) == (600, 600)
        assert_dense(log)
    directory.failure = None
    log.truncate_to(300)
    assert (log.recovery_point, log.end_offset) == (300, 300)
    dirs.close()


def test_truncation_below_the_start_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_start_offset=100)
    fill(log, 1)
    with pytest.raises(OffsetOutOfRange):
        log.truncate_to(99)


def test_truncation_forgets_later_epochs(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(10), leader_epoch=1)
    append(log, batch(10), leader_epoch=4)
    assert log.leader_epochs.starts == (EpochStart(1, 0), EpochStart(4, 10))
    log.truncate_to(10)
    assert log.leader_epochs.starts == (EpochStart(1, 0),)


def test_a_reset_log_begins_empty_at_its_new_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    log.reset_to(5000, leader_epochs=[EpochStart(0, 0), EpochStart(2, 4000)])
    assert log.start_offset == log.end_offset == log.recovery_point == log.log_start_offset == 5000
    assert log.read(5000, bytes_max=10) == (None, 5000, False)
    fill(log, 3)
    log.close()
    reopened = open_log(tmp_path, config=SMALL, log_start_offset=5000)
    assert (reopened.start_offset, reopened.end_offset) == (5000, 5030)
    assert reopened.leader_epochs.epoch_for(5000) == 2
    assert_dense(reopened)


def test_a_log_that_lies_below_its_log_start_is_emptied_when_opened(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.close()
    reopened = open_log(tmp_path, log_start_offset=1000)
    assert (reopened.start_offset, reopened.end_offset) == (1000, 1000)

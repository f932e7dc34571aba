"""When a local log closes its segment and begins another, and what is flushed then."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage import entropy
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.records.batch.any_batch import walk
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    assert_dense,
    batch,
    fill,
    offsets,
    open_log,
    patched,
    read_bytes,
)

YEAR_MS = 365 * 86_400_000
SMALL = LogConfig(segment_bytes=10_000, index_interval_bytes=500)


def test_a_segment_is_closed_before_it_exceeds_its_size(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    closed: list[LogSegment] = []
    log.on_segment_closed = closed.append
    fill(log, 60)
    assert closed == list(log.segments[:-1])
    assert all(segment.size_bytes <= 10_000 for segment in log.segments)
    assert sum(segment.size_bytes for segment in log.segments) == log.size_bytes
    for before, after in zip(log.segments, log.segments[1:], strict=False):
        assert before.end_offset == after.base_offset


def test_index_files_of_a_closed_segment_are_whole_before_the_hook_is_called(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, config=SMALL)
    found = []

    def look(segment: LogSegment) -> None:
        index = segment.index_path.read_bytes()
        times = segment.time_index_path.read_bytes()
        found.append((len(index) // 8, struct.unpack(">qI", times[-12:])))
        assert segment.snapshot_path.exists()
        assert not segment.is_active

    log.on_segment_closed = look
    fill(log, 60)
    assert len(found) == len(log.segments) - 1
    for segment, (entries, last_time) in zip(log.segments, found, strict=False):
        assert entries == segment.offset_index.entry_count > 10
        last = segment.end_offset - 1
        assert last_time == (NOW_MS + last, last - segment.base_offset)


def test_index_entries_name_the_last_offset_and_the_position_of_a_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=1000))
    fill(log, 30)
    log.roll()
    segment = log.segments[0]
    borders = {found.position: found.header.last_offset for found in walk(read_bytes(log))}
    entries = list(struct.iter_unpack(">II", segment.index_path.read_bytes()))
    assert entries
    assert all(borders[position] == last for last, position in entries)


def test_a_record_much_later_than_the_first_closes_the_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_ms=1000, message_timestamp_after_max_ms=9999))
    append(log, batch(timestamps_ms=[NOW_MS]))
    append(log, batch(timestamps_ms=[NOW_MS + 1000]))
    assert len(log.segments) == 1
    append(log, batch(timestamps_ms=[NOW_MS + 1001]))
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_jitter_only_shortens_a_segments_life(tmp_path: Path) -> None:
    config = LogConfig(segment_ms=1000, segment_jitter_ms=400, message_timestamp_after_max_ms=99999)
    log = open_log(tmp_path, config=config)
    for i in range(50):
        append(log, batch(timestamps_ms=[NOW_MS + i * 100]))
    lengths = [segment.end_offset - segment.base_offset for segment in log.segments[:-1]]
    assert all(6 <= length <= 11 for length in lengths)


def test_jitter_is_drawn_once_for_a_segment_whatever_is_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = iter([0.5, 0.9])
    monkeypatch.setattr(entropy, "fraction", lambda: next(draws))
    config = LogConfig(segment_ms=1000, segment_jitter_ms=400, message_timestamp_after_max_ms=99999)
    log = open_log(tmp_path, config=config)
    append(log, batch())
    segment = log.active_segment
    assert segment.roll_timestamp_ms == NOW_MS + 800
    for retention_ms in (1, 2, 3):
        log.update_config(replace(config, retention_ms=retention_ms))
        assert segment.roll_timestamp_ms == NOW_MS + 800
    log.update_config(replace(config, segment_jitter_ms=0))
    assert segment.roll_timestamp_ms == NOW_MS + 1000
    log.update_config(replace(config, segment_ms=2000))
    assert segment.roll_timestamp_ms == NOW_MS + 1800
    assert next(draws) == 0.9


def test_an_idle_segment_is_closed_by_the_clock(tmp_path: Path) -> None:
    """Kafka waits for the next record, which may never come, nor the last ones be archived."""
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path, config=LogConfig(segment_ms=1000), clock=clock)
    append(log, batch())
    clock.advance_ms(1000)
    assert not log.roll_if_expired(clock.now_ms())
    clock.advance_ms(1)
    assert log.roll_if_expired(clock.now_ms())
    clock.advance_ms(5000)
    assert not log.roll_if_expired(clock.now_ms())  # nothing in it
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_a_segment_of_a_wrong_year_is_closed_when_the_clock_is_right_again(tmp_path: Path) -> None:
    """Else what is written to it from then on is kept, and not archived, until that year."""
    clock = ManualClock(NOW_MS + YEAR_MS)
    log = open_log(tmp_path, config=LogConfig(segment_ms=1000), clock=clock)
    append(log, batch(timestamps_ms=[NOW_MS + YEAR_MS]))
    assert not log.roll_if_expired(clock.now_ms())
    clock.advance_ms(-YEAR_MS)
    append(log, batch(timestamps_ms=[NOW_MS]))
    assert not log.roll_if_expired(clock.now_ms())
    clock.advance_ms(1001)
    assert log.roll_if_expired(clock.now_ms())


def test_a_segment_that_was_empty_for_long_is_not_closed_for_its_first_record(
    tmp_path: Path,
) -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path, config=LogConfig(segment_ms=1000), clock=clock)
    clock.advance_ms(5000)
    append(log, batch(timestamps_ms=[clock.now_ms()]))
    assert not log.roll_if_expired(clock.now_ms())
    clock.advance_ms(1001)
    assert log.roll_if_expired(clock.now_ms())
    # What its records say of the time before it was there does not count.
    append(log, batch(timestamps_ms=[0]))
    assert not log.roll_if_expired(clock.now_ms())
    clock.advance_ms(1001)
    assert log.roll_if_expired(clock.now_ms())


def test_a_full_index_closes_the_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=0, segment_index_bytes=120))
    fill(log, 30)
    assert len(log.segments) == 3
    assert all(segment.index_path.stat().st_size <= 120 for segment in log.segments)
    assert all(segment.time_index_path.stat().st_size <= 120 for segment in log.segments)
    assert_dense(log)


def test_an_index_is_full_after_as_many_entries_as_kafkas(tmp_path: Path) -> None:
    """The time index keeps room for one more, and takes none of a time that stands still."""
    config = LogConfig(index_interval_bytes=0, segment_index_bytes=120)
    for name, step_ms, index_bytes in (("later", 1, 9 * 8), ("same", 0, 15 * 8)):
        log = open_log(tmp_path / name, config=config)
        for number in range(40):
            append(log, batch(timestamps_ms=[NOW_MS + step_ms * number]))
        log.close()
        sizes = [segment.index_path.stat().st_size for segment in log.segments]
        assert set(sizes[:-1]) == {index_bytes}
        again = open_log(tmp_path / name, config=config, clean_shutdown=False)
        for number in range(40, 80):
            append(again, batch(timestamps_ms=[NOW_MS + step_ms * number]))
        sizes = [segment.index_path.stat().st_size for segment in again.segments]
        assert set(sizes[:-1]) == {index_bytes}
        assert_dense(again)


def test_offsets_that_do_not_fit_31_bits_close_the_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    # A batch whose header says that compaction left one of two thousand million records.
    huge = patched(batch(1), 23, ">i", 2**31 - 2)
    for base_offset in (0, 2**31 - 1, 2**32 - 2):
        stamped = patched(huge, 0, ">q", base_offset)
        log.append(stamped, leader_epoch=0, origin=AppendOrigin.REPLICATION)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31 - 1, 2**32 - 2]
    assert log.end_offset == 3 * (2**31 - 1)
    assert offsets(log)[-1][0] == 2**32 - 2


def test_batches_that_claim_two_thousand_million_records_each_have_a_segment_of_their_own(
    tmp_path: Path,
) -> None:
    """Nobody counts the records of a producer's batch: what its header says has to fit."""
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, patched(patched(batch(1), 23, ">i", 2**31 - 2), 57, ">i", 2**31 - 1))
    assert [segment.base_offset for segment in log.segments] == [0, 2**31 - 1, 2**32 - 2]
    assert log.end_offset == 3 * (2**31 - 1)


def test_rolling_an_empty_segment_changes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.roll() is log.roll() is log.active_segment
    assert len(log.segments) == 1


def test_flush_is_due_after_so_many_records_or_so_long(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path, config=LogConfig(flush_messages=20, flush_ms=1000), clock=clock)
    assert not log.flush_is_due(clock.monotonic_s() + 10**9)
    fill(log, 1)
    assert not log.flush_is_due(clock.monotonic_s())
    assert log.flush_is_due(clock.monotonic_s() + 1)
    fill(log, 1)
    assert log.flush_is_due(clock.monotonic_s())
    log.flush()
    assert not log.flush_is_due(clock.monotonic_s() + 10**9)


def test_what_waits_for_a_flush_goes_by_the_limits_of_the_moment(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path, clock=clock)
    fill(log, 1)
    clock.advance_ms(1000)
    assert not log.flush_is_due(clock.monotonic_s())
    log.update_config(LogConfig(flush_ms=1000))
    assert log.flush_is_due(clock.monotonic_s())
    log.update_config(LogConfig(flush_messages=100))
    assert not log.flush_is_due(clock.monotonic_s())
    log.update_config(LogConfig(flush_messages=10))
    assert log.flush_is_due(clock.monotonic_s())


def test_a_clock_that_is_put_back_keeps_no_record_from_its_flush(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path, config=LogConfig(flush_ms=1000), clock=clock)
    fill(log, 1)
    clock.advance_ms(-2 * 3_600_000)
    clock.advance_ms(1000)
    assert log.flush_is_due(clock.monotonic_s())


def test_a_changed_index_size_holds_for_the_active_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 10)
    assert len(log.segments) == 1
    log.update_config(replace(SMALL, segment_index_bytes=24))
    fill(log, 10)
    assert len(log.segments) > 1
    assert_dense(log)


def test_a_changed_segment_size_holds_for_the_active_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    log.update_config(SMALL)
    fill(log, 50)
    assert len(log.segments) > 1
    assert_dense(log)

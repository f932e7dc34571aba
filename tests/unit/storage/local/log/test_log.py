"""Append, read and find in one partition's local log."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import CorruptFile, OffsetOutOfRange
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.model import TimestampType
from strandline.storage.records.batch.batch import check_crc, read_header
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.records.compression import Codec
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    batch,
    fill,
    headers,
    offsets,
    open_log,
    patched,
    read_bytes,
)

SMALL = LogConfig(segment_bytes=10_000, index_interval_bytes=500)


def test_the_bytes_stay_the_bytes_but_for_offset_and_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(3))
    sent = bytes(batch(5, codec=Codec.ZSTD))
    append(log, memoryview(bytearray(sent)), leader_epoch=7)
    stored = read_bytes(log, start_offset=3)
    assert stored[:8] == struct.pack(">q", 3)
    assert stored[8:12] == sent[8:12]
    assert stored[12:16] == struct.pack(">i", 7)
    assert stored[16:] == sent[16:]
    check_crc(stored, read_header(stored))


def test_append_says_where_the_batch_went(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(3))
    sent = batch(timestamps_ms=[NOW_MS, NOW_MS + 9, NOW_MS + 4])
    info = append(log, sent)
    assert (info.base_offset, info.last_offset) == (3, 5)
    assert info.max_timestamp_ms == NOW_MS + 9
    assert info.log_append_time_ms == -1
    assert not info.duplicate
    assert info.size_bytes == len(sent)
    assert log.end_offset == log.last_stable_offset == 6


def test_log_append_time_replaces_the_producers_time_and_keeps_the_crc_true(tmp_path: Path) -> None:
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    clock = ManualClock(NOW_MS + 5000)
    log = open_log(tmp_path, config=config, clock=clock)
    info = append(log, batch(3, timestamps_ms=[1, 2, 3]))
    assert info.log_append_time_ms == NOW_MS + 5000
    stored = read_bytes(log)
    header = read_header(stored)
    check_crc(stored, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {record.timestamp_ms for record in iter_records(stored, header)} == {NOW_MS + 5000}


@pytest.mark.parametrize("bytes_max", [1, 100, 700, 5000, 1 << 20])
@pytest.mark.parametrize("interval", [0, 500, 1 << 20])
def test_reads_of_any_size_give_whole_batches_without_gap(
    tmp_path: Path, bytes_max: int, interval: int
) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=10_000, index_interval_bytes=interval))
    fill(log, 60)
    assert len(log.segments) > 2
    expected = [(i * 10, i * 10 + 9) for i in range(60)]
    assert offsets(log, bytes_max=bytes_max) == expected
    log.close()
    assert offsets(open_log(tmp_path, config=SMALL), bytes_max=bytes_max) == expected


def test_a_read_from_inside_a_batch_begins_with_that_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 40)
    for offset in range(400):
        found = log.read(offset, bytes_max=100)
        assert found.range is not None
        assert read_header(found.range.read()).base_offset == offset // 10 * 10
        assert found.next_offset == offset // 10 * 10 + 10


def test_a_read_never_exceeds_its_bytes_unless_one_batch_does(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=500))
    fill(log, 40)
    batch_bytes = log.size_bytes // 40
    for bytes_max in range(0, 5 * batch_bytes, 97):
        found = log.read(0, bytes_max=bytes_max)
        assert found.range is not None
        assert found.range.length == max(1, bytes_max // batch_bytes) * batch_bytes
        assert found.is_cut
    assert not log.read(0, bytes_max=log.size_bytes).is_cut


@pytest.mark.parametrize("interval", [0, 500])
@pytest.mark.parametrize(("column", "by"), [(0, 1), (0, -1), (1, 1), (1, -7), (1, 200)])
def test_a_wrong_index_entry_cuts_no_batch(
    tmp_path: Path, interval: int, column: int, by: int
) -> None:
    """An entry is compared with the batch that it names."""
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=interval))
    fill(log, 40)
    batch_bytes = log.size_bytes // 40
    entries = log.segments[0].offset_index.columns()[column]
    for number in range(3, len(entries) - 1):
        right = entries[number]
        entries[number] += by
        for bytes_max in range(batch_bytes, 40 * batch_bytes, 331):
            found = log.read(0, bytes_max=bytes_max)
            assert found.range is not None
            assert found.range.length == bytes_max // batch_bytes * batch_bytes
            assert found.next_offset == bytes_max // batch_bytes * 10
        entries[number] = right


def test_an_index_entry_that_names_a_batch_inside_a_record_cuts_no_batch(tmp_path: Path) -> None:
    """Records may hold whatever clients like, another log's batches too."""
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=0))
    inner = bytes(batch(2, value_bytes=50))
    for _ in range(20):
        records = [Record(offset=0, timestamp_ms=NOW_MS, key=None, value=inner)]
        append(log, memoryview(bytearray(encode_batch(records))))
    batch_bytes = log.size_bytes // 20
    positions = log.segments[0].offset_index.columns()[1]
    inside = log.segments[0].log_path.read_bytes().index(inner, 15 * batch_bytes)
    positions[15] = inside
    found = log.read(0, bytes_max=inside + 10)
    assert found.range is not None
    assert (found.range.length, found.next_offset) == (15 * batch_bytes, 15)


def test_a_client_that_reads_before_a_wrong_index_entry_again_and_again_does_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=0))
    fill(log, 40)
    segment = log.segments[0]
    segment.offset_index.columns()[0][20] += 1
    segment.time_index.columns()[1][20] += 1
    times = segment.time_index.columns()[0]
    for _ in range(5):
        assert log.read(0, bytes_max=log.size_bytes // 2 + 10).range is not None
        assert log.find_timestamp(times[20]) is not None
    assert sorted(record.message for record in caplog.records) == [
        "index entry does not fit the log",
        "time index entry does not fit the log",
    ]


def test_who_may_read_nothing_is_told_what_there_is_without_a_look_into_the_file(
    tmp_path: Path,
) -> None:
    """The end of a fetch of thousands of partitions, whose answer is full."""
    log = open_log(tmp_path)
    fill(log, 2)
    log.segments[0].log_path.write_bytes(bytes(log.size_bytes))
    for offset, is_cut in ((0, True), (15, True), (20, False)):
        found = log.read(offset, bytes_max=0, at_least_one_batch=False)
        assert found == (None, offset, is_cut)
    with pytest.raises(OffsetOutOfRange):
        log.read(21, bytes_max=0, at_least_one_batch=False)
    with pytest.raises(CorruptFile):
        log.read(15, bytes_max=1, at_least_one_batch=False)


@pytest.mark.parametrize("bytes_max", [1, 2000, 1 << 20])
@pytest.mark.parametrize("damage", ["zeros", "noise", "another place's batch"])
def test_a_segment_whose_beginning_the_disk_lost_is_an_error_from_its_first_offset_on(
    tmp_path: Path, damage: str, bytes_max: int
) -> None:
    """A client that does not check CRCs would take what is there for records, or stop."""
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    assert len(log.segments) > 2
    for segment in log.segments[:2]:
        content = segment.log_path.read_bytes()
        begun = {
            "zeros": bytes(4096),
            "noise": random.Random(3).randbytes(4096),
            "another place's batch": log.segments[2].log_path.read_bytes()[:4096],
        }[damage]
        segment.log_path.write_bytes(begun + content[4096:])
        with pytest.raises(CorruptFile):
            log.read(segment.base_offset, bytes_max=bytes_max)
    whole = log.segments[2]
    assert log.read(whole.base_offset, bytes_max=bytes_max).next_offset > whole.base_offset


def test_a_batch_that_does_not_fit_is_left_out_if_the_caller_has_others(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 2)
    assert log.read(0, bytes_max=10, at_least_one_batch=False) == (None, 0, True)
    assert log.read(0, bytes_max=10).range is not None


def test_nothing_is_read_at_or_behind_the_limit(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    for limit in (0, 5, 10, 11, 299, 300, 301, 600):
        read = []
        offset = 0
        while (found := log.read(offset, bytes_max=3000, end_offset=limit)).range is not None:
            read += [header.last_offset for header in headers(found.range.read())]
            offset = found.next_offset
        assert read == [last for last in range(9, 600, 10) if last < limit]


def test_reading_at_the_end_gives_nothing_and_then_what_was_appended(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 3)
    assert log.read(30, bytes_max=1000) == (None, 30, False)
    fill(log, 1)
    found = log.read(30, bytes_max=1000)
    assert found.range is not None
    assert found.next_offset == 40


@pytest.mark.parametrize("offset", [-1, 9, 31, 2**62])
def test_offsets_outside_the_log_are_refused(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path, log_start_offset=10)
    fill(log, 2)
    with pytest.raises(OffsetOutOfRange):
        log.read(offset, bytes_max=1)


def test_a_range_stays_readable_after_its_segment_was_deleted_and_purged(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path, config=SMALL, clock=clock)
    fill(log, 60)
    expected = read_bytes(log)
    held = log.read(0, bytes_max=1 << 20).range
    assert held is not None
    log.delete_segments(log.segments[:1])
    clock.advance_ms(SMALL.file_delete_delay_ms)
    assert log.purge_deleted(clock.monotonic_s()) > 0
    assert held.read() == expected[: held.length]


# --- by time -----------------------------------------------------------------------------------


def test_a_timestamp_is_found_to_the_record(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    for wanted in range(-5, 600):
        found = log.find_timestamp(NOW_MS + wanted)
        assert found == (NOW_MS + max(wanted, 0), max(wanted, 0), 0)
    assert log.find_timestamp(NOW_MS + 600) is None


@pytest.mark.parametrize("codec", list(Codec))
def test_timestamps_out_of_order_and_compressed_are_found_to_the_record(
    tmp_path: Path, codec: Codec
) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=3000, index_interval_bytes=100))
    times = [(i * 7919) % 1000 for i in range(300)]
    for i in range(0, 300, 5):
        chunk = [NOW_MS + time for time in times[i : i + 5]]
        append(log, batch(timestamps_ms=chunk, codec=codec, value_bytes=40))
    assert len(log.segments) > 2
    for wanted in range(0, 1000, 13):
        expected = next((i for i, time in enumerate(times) if time >= wanted), None)
        found = log.find_timestamp(NOW_MS + wanted)
        assert (found.offset if found else None) == expected
    latest = log.max_timestamp()
    assert latest is not None
    assert latest.offset == times.index(max(times))


def test_a_timestamp_search_can_begin_inside_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    found = log.find_timestamp(NOW_MS, start_offset=333)
    assert found is not None
    assert found.offset == 333


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_latest_record_is_searched_for_from_any_offset(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=3000, index_interval_bytes=100))
    times = [(i * 7919) % 1000 for i in range(300)]
    for i in range(0, 300, 5):
        chunk = [NOW_MS + time for time in times[i : i + 5]]
        append(log, batch(timestamps_ms=chunk, codec=codec, value_bytes=40))
    for start in range(300):
        found = log.max_timestamp(start_offset=start)
        assert found is not None
        assert found.offset == times.index(max(times[start:]), start)
    assert log.max_timestamp(start_offset=300) is None


def test_times_are_found_again_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    log.close()
    reopened = open_log(tmp_path, config=SMALL)
    assert reopened.find_timestamp(NOW_MS + 123) == (NOW_MS + 123, 123, 0)
    assert reopened.max_timestamp() == (NOW_MS + 599, 599, 0)


def test_a_log_without_timestamps_has_no_latest_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.max_timestamp() is None
    append(log, batch(timestamps_ms=[-1, -1]))
    assert log.max_timestamp() is None
    assert log.find_timestamp(0) is None


# --- replication ---------------------------------------------------------------------------------


def test_replicated_batches_keep_offsets_and_epochs(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader")
    append(leader, batch(10), leader_epoch=3)
    append(leader, batch(10), leader_epoch=5)
    content = read_bytes(leader)
    follower = open_log(tmp_path / "follower")
    info = follower.append(
        memoryview(bytearray(content)), leader_epoch=9, origin=AppendOrigin.REPLICATION
    )
    assert (info.base_offset, info.last_offset) == (0, 19)
    assert read_bytes(follower) == content
    assert follower.leader_epochs.starts == leader.leader_epochs.starts


def test_a_reader_crosses_a_gap_that_compaction_left(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(cleanup_policy=("compact",)))
    for base_offset in (0, 50):
        records = patched(batch(10), 0, ">q", base_offset)
        log.append(records, leader_epoch=0, origin=AppendOrigin.REPLICATION)
        log.roll()
    assert offsets(log) == [(0, 9), (50, 59)]
    found = log.read(20, bytes_max=1)
    assert found.next_offset == 60
    log.close()
    assert offsets(open_log(tmp_path, clean_shutdown=False, config=log.config)) == [
        (0, 9),
        (50, 59),
    ]


def test_its_text_shows_the_state(tmp_path: Path) -> None:
    log: LocalLog = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    assert "[0,600)" in repr(log)

"""Idempotent producers and transactions, as a partition's log sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import InvalidProducerEpoch, OutOfOrderSequence, RecordsRejected
from strandline.storage.local.log.log import AppendInfo, AppendOrigin, LocalLog
from strandline.storage.local.segment import earlier_batches
from strandline.storage.model import AbortedTransaction, Isolation
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.tiering.log.unified_log import UnifiedLog
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    append_marker,
    batch,
    fill,
    marker,
    open_log,
    read_bytes,
)


def send(
    log: LocalLog,
    sequence: int,
    record_count: int = 5,
    *,
    producer_id: int = 1,
    epoch: int = 0,
    transactional: bool = False,
) -> AppendInfo:
    return append(
        log,
        batch(
            record_count,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        ),
    )


def restarted(log: LocalLog, *, clean: bool) -> LocalLog:
    recovery_point = log.recovery_point
    if clean:
        log.close()
    return open_log(
        log.directory, clean_shutdown=clean, recovery_point=recovery_point, config=log.config
    )


def test_each_of_the_last_five_batches_is_known_again_at_its_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 1)
    for i in range(7):
        send(log, i * 5)
    before = read_bytes(log)
    for i in range(2, 7):
        info = send(log, i * 5)
        assert info.duplicate
        assert (info.base_offset, info.last_offset) == (10 + i * 5, 14 + i * 5)
        assert info.size_bytes == 0
    assert read_bytes(log) == before
    with pytest.raises(OutOfOrderSequence):
        send(log, 5)


def test_a_gap_in_the_sequence_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0)
    with pytest.raises(OutOfOrderSequence) as raised:
        send(log, 6)
    assert raised.value.kafka_code == 45
    assert not send(log, 5).duplicate


def test_a_repeat_of_another_length_is_not_taken_for_the_same(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, 5)
    with pytest.raises(OutOfOrderSequence):
        send(log, 0, 4)


def test_an_older_epoch_is_fenced(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, epoch=3)
    with pytest.raises(InvalidProducerEpoch) as raised:
        send(log, 5, epoch=2)
    assert raised.value.kafka_code == 47


def test_a_new_epoch_begins_with_sequence_zero(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0)
    with pytest.raises(OutOfOrderSequence):
        send(log, 5, epoch=1)
    assert not send(log, 0, epoch=1).duplicate
    assert send(log, 0, epoch=1).duplicate


def test_a_producer_that_is_not_known_may_begin_anywhere(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert send(log, 4711).base_offset == 0
    assert not send(log, 4716).duplicate


def test_sequences_wrap_after_the_largest_int(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 2**31 - 7)  # ends at 2^31 - 3
    send(log, 2**31 - 2)  # 2^31 - 2, 2^31 - 1, 0, 1, 2
    assert send(log, 2**31 - 2).duplicate
    send(log, 3)
    with pytest.raises(OutOfOrderSequence):
        send(log, 0)


def test_producers_do_not_disturb_each_other(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for i in range(20):
        for producer_id in range(5):
            assert not send(log, i * 5, producer_id=producer_id).duplicate


@pytest.mark.parametrize("clean", [True, False])
def test_the_last_batch_is_known_again_after_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path)
    for i in range(7):
        send(log, i * 5)
    log = restarted(log, clean=clean)
    assert send(log, 30).duplicate
    assert not send(log, 35).duplicate


def test_the_whole_window_is_known_again_after_a_crash(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for i in range(7):
        send(log, i * 5)
    log = restarted(log, clean=False)
    for i in range(2, 7):
        assert send(log, i * 5).base_offset == i * 5


@pytest.mark.parametrize("rolls", [{6}, {3, 5}, {2, 3, 4, 5, 6, 7}, {7}])
@pytest.mark.parametrize("how", ["clean", "killed", "truncated"])
def test_the_whole_window_is_known_again_where_a_snapshot_has_its_last_batch_alone(
    tmp_path: Path, how: str, rolls: set[int]
) -> None:
    log = open_log(tmp_path)
    for i in range(8):
        if i in rolls:
            log.roll()
        if i < 7:
            send(log, i * 5)
            send(log, i * 5, producer_id=2)
    log.flush()
    if how == "truncated":
        send(log, 35)
        log.roll()
        log.truncate_to(70)
    else:
        log = restarted(log, clean=how == "clean")
    for i in range(2, 7):
        assert send(log, i * 5).base_offset == i * 10
        assert send(log, i * 5, producer_id=2).base_offset == i * 10 + 5
    with pytest.raises(OutOfOrderSequence):
        send(log, 5)
    with pytest.raises(OutOfOrderSequence):
        send(log, 40)
    assert send(log, 35).base_offset == 70


def test_the_whole_window_is_known_although_its_segments_are_freed(tmp_path: Path) -> None:
    """They are archived: the client has not been told, and sends its batches again."""
    log = open_log(tmp_path)
    for i in range(7):
        send(log, i * 5)
        if i in (3, 5):
            log.roll()
    log = restarted(log, clean=True)
    log.roll()
    for count in (1, 2):
        log.delete_segments(log.segments[:count])
    assert log.start_offset == 35
    for i in range(2, 7):
        again = send(log, i * 5)
        assert (again.duplicate, again.base_offset) == (True, i * 5)


def test_segments_far_before_the_window_are_freed_without_a_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    sizes = []
    for i in range(7):
        sizes.append(send(log, i * 5).size_bytes)
        log.roll()
    log = restarted(log, clean=True)
    monkeypatch.setattr(earlier_batches, "READ_BYTES_MAX", sum(sizes[-5:]))
    log.delete_segments(log.segments[:2])
    assert log.producers.unread_before == 35
    log.delete_segments(log.segments[:1])
    assert log.producers.unread_before == 0
    assert all(send(log, i * 5).duplicate for i in range(2, 7))


def test_batches_in_flight_of_an_older_epoch_are_not_looked_for(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0)
    send(log, 0, epoch=1)
    send(log, 5, epoch=1)
    log = restarted(log, clean=True)
    assert send(log, 0, epoch=1).base_offset == 5
    with pytest.raises(InvalidProducerEpoch):
        send(log, 0)


def test_what_was_in_flight_is_looked_for_once_and_in_the_last_bytes_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=1))
    sizes = [send(log, i * 5).size_bytes for i in range(5)]
    log = restarted(log, clean=True)
    monkeypatch.setattr(earlier_batches, "READ_BYTES_MAX", sum(sizes[-2:]))
    assert send(log, 15).duplicate
    with pytest.raises(OutOfOrderSequence):
        send(log, 10)
    assert not earlier_batches.read_earlier_batches(log.producers, log.segments)


@pytest.mark.parametrize("interval_bytes", [1, 200])
def test_what_was_in_flight_is_found_over_windows_and_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_bytes: int
) -> None:
    monkeypatch.setattr(earlier_batches, "WINDOW_BYTES", 100)
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=interval_bytes))
    for i in range(5):
        for producer_id in range(4):
            send(log, i * 5, producer_id=producer_id)
        if i in (1, 3):
            log.roll()
    log = restarted(log, clean=True)
    for i in range(5):
        for producer_id in range(4):
            assert (
                send(log, i * 5, producer_id=producer_id).base_offset == (4 * i + producer_id) * 5
            )


def test_of_many_small_batches_the_last_ones_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done on the event loop."""
    monkeypatch.setattr(earlier_batches, "WINDOW_BYTES", 1)
    monkeypatch.setattr(earlier_batches, "BATCHES_MAX", 2)
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=1))
    for i in range(5):
        send(log, i * 5)
    log = restarted(log, clean=True)
    assert send(log, 15).duplicate
    with pytest.raises(OutOfOrderSequence):
        send(log, 10)


def test_a_log_whose_index_has_no_entries_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=2**30))
    for i in range(5):
        send(log, i * 5)
    log = restarted(log, clean=True)
    monkeypatch.setattr(earlier_batches, "READ_BYTES_MAX", log.size_bytes - 1)
    assert send(log, 20).duplicate
    with pytest.raises(OutOfOrderSequence):
        send(log, 15)


def test_silent_producers_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, producer_id=1)
    send(log, 0, producer_id=2, transactional=True)
    assert log.producers.expire(NOW_MS + 999, 1000) == 0
    # The one with an open transaction stays: its marker is still to come.
    assert log.producers.expire(NOW_MS + 2000, 1000) == 1
    assert list(log.producers.entries) == [2]


# --- transactions --------------------------------------------------------------------------------


def test_an_open_transaction_holds_the_last_stable_offset_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 1)
    send(log, 0, transactional=True)
    fill(log, 1)
    assert log.last_stable_offset == 10
    append_marker(log, MarkerType.COMMIT, producer_id=1)
    assert log.last_stable_offset == log.end_offset == 26
    assert log.aborted_transactions(0, 26) == []


def test_a_transaction_whose_begin_was_deleted_holds_readers_back_no_further_than_there(
    tmp_path: Path,
) -> None:
    """Else the end that a read_committed consumer is told would be out of range."""
    log = open_log(tmp_path)
    send(log, 0, transactional=True)
    fill(log, 2)
    unified_log = UnifiedLog(log)
    assert unified_log.local.last_stable_offset == 0
    assert unified_log.delete_records(12) == 12
    assert unified_log.local.last_stable_offset == 12
    found = unified_log.read(12, bytes_max=1000, isolation=Isolation.READ_COMMITTED)
    assert found is not None
    assert (found.range, found.next_offset) == (None, 12)
    append_marker(log, MarkerType.COMMIT, producer_id=1)
    assert unified_log.local.last_stable_offset == log.end_offset


def test_the_oldest_of_several_open_transactions_counts(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, producer_id=1, transactional=True)  # 0
    send(log, 0, producer_id=2, transactional=True)  # 5
    send(log, 5, producer_id=1, transactional=True)  # 10
    assert log.last_stable_offset == 0
    append_marker(log, MarkerType.ABORT, producer_id=1)  # 15
    assert log.last_stable_offset == 5
    append_marker(log, MarkerType.ABORT, producer_id=2)  # 16
    assert log.last_stable_offset == 17
    assert log.aborted_transactions(0, 17) == [
        AbortedTransaction(1, 0, 15, 5),
        AbortedTransaction(2, 5, 16, 17),
    ]


def test_only_aborted_transactions_of_the_range_are_listed(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=1000))
    expected = []
    for i in range(30):
        first = log.end_offset
        send(log, i // 3 * 5, producer_id=i % 3, transactional=True)
        last = append_marker(log, MarkerType.ABORT, producer_id=i % 3).last_offset
        expected.append(AbortedTransaction(i % 3, first, last, last + 1))
    assert len(log.segments) > 3
    assert log.aborted_transactions(0, log.end_offset) == expected
    for start in range(0, log.end_offset, 7):
        end = start + 20
        assert log.aborted_transactions(start, end) == [
            entry for entry in expected if entry.last_offset >= start and entry.first_offset < end
        ]


@pytest.mark.parametrize("clean", [True, False])
def test_open_and_aborted_transactions_survive_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=700))
    send(log, 0, producer_id=1, transactional=True)
    fill(log, 3, record_count=2)
    append_marker(log, MarkerType.ABORT, producer_id=1)
    send(log, 0, producer_id=2, transactional=True)
    fill(log, 3, record_count=2)
    first_open = log.last_stable_offset
    aborted = log.aborted_transactions(0, log.end_offset)
    assert len(log.segments) > 2
    log = restarted(log, clean=clean)
    assert log.last_stable_offset == first_open < log.end_offset
    assert log.aborted_transactions(0, log.end_offset) == aborted != []
    append_marker(log, MarkerType.COMMIT, producer_id=2)
    assert log.last_stable_offset == log.end_offset


def test_segments_with_aborted_transactions_say_so(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, transactional=True)
    log.roll()
    append_marker(log, MarkerType.ABORT, producer_id=1)
    log.roll()
    assert [bool(segment.txn_index) for segment in log.segments] == [False, True, False]
    assert [segment.txn_index_path.exists() for segment in log.segments] == [False, True, False]


def test_truncation_takes_markers_and_open_transactions_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, transactional=True)
    append_marker(log, MarkerType.ABORT, producer_id=1)
    send(log, 5, transactional=True)
    log.truncate_to(6)
    assert log.last_stable_offset == 6
    log.truncate_to(5)
    assert log.last_stable_offset == 0
    assert log.aborted_transactions(0, 5) == []
    assert not log.active_segment.txn_index_path.exists()


def test_a_plain_batch_inside_of_a_transaction_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, transactional=True)
    with pytest.raises(RecordsRejected) as raised:
        send(log, 5)
    assert raised.value.kafka_code == 48


def test_a_marker_fences_older_epochs_and_is_fenced_itself(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, transactional=True)
    log.append(
        marker(MarkerType.ABORT, producer_id=1, producer_epoch=2),
        leader_epoch=0,
        origin=AppendOrigin.COORDINATOR,
    )
    with pytest.raises(InvalidProducerEpoch):
        send(log, 5, transactional=True)
    with pytest.raises(InvalidProducerEpoch):
        append_marker(log, MarkerType.ABORT, producer_id=1)
    with pytest.raises(OutOfOrderSequence):
        send(log, 5, epoch=2, transactional=True)
    assert send(log, 0, epoch=2, transactional=True).base_offset == 6


def test_a_marker_for_nothing_is_stored_and_aborts_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_marker(log, MarkerType.ABORT, producer_id=9)
    assert log.end_offset == log.last_stable_offset == 1
    assert log.aborted_transactions(0, 1) == []


def test_a_restored_snapshot_brings_producers_back(tmp_path: Path) -> None:
    log = open_log(tmp_path / "old")
    send(log, 0)
    send(log, 0, producer_id=2, transactional=True)
    log.roll()
    snapshot = log.segments[0].snapshot_path.read_bytes()
    other = open_log(tmp_path / "new")
    other.reset_to(10, producer_snapshot=snapshot)
    assert other.last_stable_offset == 10
    # As the owner of both tiers says it, when the archive has what lies below.
    other.log_start_offset = 0
    assert other.last_stable_offset == 5
    assert send(other, 0).duplicate
    assert send(other, 5).base_offset == 10

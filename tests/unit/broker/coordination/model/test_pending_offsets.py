"""Offsets of open transactions: seen by nobody, and never over a later commit."""

from __future__ import annotations

from strandline.broker.coordination.model.offset_messages import OffsetRecord
from strandline.broker.coordination.model.pending_offsets import PendingOffsets
from strandline.broker.protocol.formats.offsets_topic import OffsetCommitValue

PRODUCER, OTHER = 7, 8


def record(offset: int | None, *, group: str = "g", topic: str = "t") -> OffsetRecord:
    value = None if offset is None else OffsetCommitValue(offset=offset, committed_ms=1)
    return OffsetRecord(group, topic, 0, value)


def test_the_last_offset_of_a_transaction_counts_when_it_ends() -> None:
    pending = PendingOffsets()
    pending.add(PRODUCER, record(1))
    pending.add(PRODUCER, record(2))
    assert pending.has("g", "t", 0)
    assert pending.has_group("g")
    assert pending.end(PRODUCER, is_commit=True) == [record(2)]
    assert not pending.has("g", "t", 0)
    assert not pending.has_group("g")
    assert pending.end(PRODUCER, is_commit=True) == []


def test_a_later_commit_outside_wins_and_the_partition_stays_unstable() -> None:
    pending = PendingOffsets()
    pending.add(PRODUCER, record(1))
    pending.overtake(record(9))
    assert pending.has("g", "t", 0)
    assert pending.end(PRODUCER, is_commit=True) == []


def test_a_commit_of_the_transaction_after_one_outside_wins() -> None:
    pending = PendingOffsets()
    pending.add(PRODUCER, record(1))
    pending.overtake(record(9))
    pending.add(PRODUCER, record(2))
    assert pending.end(PRODUCER, is_commit=True) == [record(2)]


def test_a_partition_is_unstable_until_its_last_transaction_ends() -> None:
    pending = PendingOffsets()
    pending.add(PRODUCER, record(1))
    pending.add(OTHER, record(2))
    pending.end(PRODUCER, is_commit=True)
    assert pending.has("g", "t", 0)
    pending.end(OTHER, is_commit=True)
    assert not pending.has("g", "t", 0)
    assert len(pending) == 0


def test_pending_offsets_of_a_deleted_topic_are_overtaken_by_tombstones() -> None:
    pending = PendingOffsets()
    pending.add(PRODUCER, record(1))
    pending.add(PRODUCER, record(2, topic="other"))
    tombstones = list(pending.tombstones(lambda one: one.topic == "t"))
    assert tombstones == [record(None)]
    for tombstone in tombstones:
        pending.overtake(tombstone)
    assert pending.end(PRODUCER, is_commit=True) == [record(2, topic="other")]


def test_the_later_of_two_transactions_wins_whichever_ends_first() -> None:
    pending = PendingOffsets()
    pending.add(PRODUCER, record(5))
    pending.add(OTHER, record(7))
    assert pending.end(OTHER, is_commit=True) == [record(7)]
    assert pending.has("g", "t", 0)
    assert pending.end(PRODUCER, is_commit=True) == []


def test_a_transaction_that_aborts_overtakes_nothing() -> None:
    pending = PendingOffsets()
    pending.add(PRODUCER, record(5))
    pending.add(OTHER, record(7))
    assert pending.end(OTHER, is_commit=False) == []
    assert pending.end(PRODUCER, is_commit=True) == [record(5)]

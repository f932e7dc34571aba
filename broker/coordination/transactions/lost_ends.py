"""Ends of transactions that a loss of power took: what a start writes in their place.

    partition     [ batch of T .......... | marker of T ]      what was not synced is lost from
                    first_offset          ^ end at the start   some place on, file by file
    transactions  [ ... ONGOING, PREPARE, COMPLETE with the place of each marker ]

The log of a partition and the log of the transactions lose different parts of their ends. So a
transaction may be open in a partition although the coordinator has completed it, or does not know
it at all, and nobody would ever end it. The first start after that does:

    a record of COMPLETE has a marker of T        that end, once more
    an id has T open, or is ending it             the coordinator ends it, as ever
    nobody knows T                                it aborts, and its producer is fenced

A marker is T's if it is the first of T's producer behind T's first batch, in T's leader epoch or a
later one. An earlier epoch may have had the same offsets for other records, which were lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strandline.broker.coordination.records.offset_records import TransactionEnd
from strandline.broker.coordination.transactions.transaction import (
    PRODUCER_EPOCH_MAX,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from strandline.storage.model import Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class MarkerPlace:
    """Where a marker was written."""

    partition: TopicPartition
    leader_epoch: int
    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that was open in a partition when its log was opened after an unclean stop.

    `leader_epoch` is that of its first batch.
    """

    partition: TopicPartition
    producer: ProducerIdentity
    first_offset: Offset
    leader_epoch: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class WrittenEnd:
    """A marker that a record of a completed transaction names."""

    place: MarkerPlace
    producer_id: int
    is_commit: bool
    bumps_epoch: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """How an open transaction ends: a marker with this producer."""

    producer: ProducerIdentity
    end: TransactionEnd


def ends_of(transaction: Transaction, markers: Iterable[MarkerPlace]) -> Iterable[WrittenEnd]:
    """Returns the markers of a completed transaction."""
    for place in markers:
        yield WrittenEnd(
            place,
            # Completed with the last epoch, it goes on under another id.
            producer_id=transaction.previous_producer_id,
            is_commit=transaction.state is TransactionState.COMPLETE_COMMIT,
            bumps_epoch=transaction.client_version.bumps_epoch,
        )


def end_again(opened: OpenTransaction, written: Iterable[WrittenEnd]) -> Ending | None:
    """Returns the end that is lost, None if no record of one is known."""
    lost = [
        one
        for one in written
        if one.place.partition == opened.partition
        and one.producer_id == opened.producer.producer_id
        and one.place.offset > opened.first_offset
        and one.place.leader_epoch >= opened.leader_epoch
    ]
    if not lost:
        return None
    first = min(lost, key=lambda one: (one.place.leader_epoch, one.place.offset))
    return Ending(
        _next_epoch(opened.producer) if first.bumps_epoch else opened.producer,
        TransactionEnd.COMMIT if first.is_commit else TransactionEnd.ABORT,
    )


def abort_unknown(opened: OpenTransaction) -> Ending:
    """Returns the end of a transaction that nobody knows: its producer may write no more to it."""
    return Ending(_next_epoch(opened.producer), TransactionEnd.ABORT)


def is_coordinated(opened: OpenTransaction, transaction: Transaction) -> bool:
    """Whether the coordinator has this transaction open, or is ending it."""
    if (
        transaction.producer_id != opened.producer.producer_id
        or opened.partition not in transaction.partitions
    ):
        return False
    if transaction.state is TransactionState.ONGOING:
        return transaction.epoch == opened.producer.epoch
    # A new epoch may have fenced the producer.
    epochs = (opened.producer.epoch, _next_epoch(opened.producer).epoch)
    return transaction.state.is_ending and transaction.epoch in epochs


def _next_epoch(producer: ProducerIdentity) -> ProducerIdentity:
    return ProducerIdentity(producer.producer_id, min(producer.epoch + 1, PRODUCER_EPOCH_MAX))

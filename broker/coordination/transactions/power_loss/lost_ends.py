"""Ends of transactions that a loss of power took: what a start writes in their place.

    partition     [ batch of T ....... ][ marker of T ]        what was not synced is lost from
                    first_offset        log end of T           some place on, file by file
    transactions  [ ... ONGOING, PREPARE with the log ends, COMPLETE ]

The log of a partition and the log of the transactions lose different parts of their ends. So a
transaction may be open in a partition although the coordinator has decided or completed it, or does
not know it at all, and nobody would ever end it. The first start after that does:

    a record of PREPARE decided on T              that end, once more
    an id has T open                              the coordinator ends it, as ever
    nobody knows T                                it aborts, and its producer is fenced

A record of PREPARE is T's if it is the first of T's producer whose log end lies behind T's first
batch, in the same topic (a later one of its name has the same offsets again), and in T's leader
epoch or a later one. An earlier epoch may have had the same offsets for other records, which were
lost. A transaction that began behind the log end is a later one of the same producer, whose own
record is lost. In version 2 the epoch must fit too: T's own record may be compacted away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strandline.broker.coordination.transactions.transaction import (
    PRODUCER_EPOCH_MAX,
    LogEnd,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from strandline.storage.model import Offset, TopicId, TopicPartition
from strandline.storage.records.batch.marker import MarkerType


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that is open in a partition, by the log of the partition.

    `leader_epoch` is that of its first batch.
    """

    partition: TopicPartition
    topic_id: TopicId
    producer: ProducerIdentity
    first_offset: Offset
    leader_epoch: int
    coordinator_epoch: int

    def is_in_log_of(self, end: LogEnd) -> bool:
        return self.partition == end.partition and self.topic_id == end.topic_id

    def began_before(self, end: LogEnd) -> bool:
        """Whether its first batch was in its partition when that ended there."""
        return (
            self.is_in_log_of(end)
            and self.first_offset < end.offset
            and self.leader_epoch <= end.leader_epoch
        )


@dataclass(frozen=True, slots=True)
class Ending:
    """How an open transaction ends: a marker with this producer."""

    producer: ProducerIdentity
    end: MarkerType


@dataclass(frozen=True, slots=True)
class DecidedEnd:
    """How a record of PREPARE ends its transaction in a partition that ended at `log_end`."""

    log_end: LogEnd
    ending: Ending
    bumps_epoch: bool

    def may_be_of(self, producer: ProducerIdentity) -> bool:
        """Whether the transaction may be one of this producer, in this epoch."""
        decided = self.ending.producer
        if decided.producer_id != producer.producer_id:
            return False
        epochs = (*_ending_epochs(producer, bumps_epoch=self.bumps_epoch), PRODUCER_EPOCH_MAX)
        return decided.epoch in epochs


def decided_ends(transaction: Transaction) -> Iterable[DecidedEnd]:
    """Returns the ends of a transaction that is ending."""
    is_commit = transaction.state is TransactionState.PREPARE_COMMIT
    end = MarkerType.COMMIT if is_commit else MarkerType.ABORT
    for log_end in transaction.log_ends:
        yield DecidedEnd(
            log_end,
            Ending(transaction.identity, end),
            bumps_epoch=transaction.client_version.bumps_epoch,
        )


def may_end(decided: DecidedEnd, opened: OpenTransaction) -> bool:
    """Whether an open transaction may have lost the marker of this end."""
    return decided.may_be_of(opened.producer) and opened.began_before(decided.log_end)


def end_again(opened: OpenTransaction, decided: Iterable[DecidedEnd]) -> Ending | None:
    """Returns the end that was decided, None if no record of one is known."""
    later = [one for one in decided if may_end(one, opened)]
    if not later:
        return None
    return min(later, key=lambda one: (one.log_end.leader_epoch, one.log_end.offset)).ending


def abort_unknown(opened: OpenTransaction) -> Ending:
    """Returns the end of a transaction that nobody knows: its producer may write no more to it."""
    return Ending(_next_epoch(opened.producer), MarkerType.ABORT)


def is_coordinated(opened: OpenTransaction, transaction: Transaction) -> bool:
    """Whether the coordinator has this transaction open, or is ending it."""
    if (
        transaction.producer_id != opened.producer.producer_id
        or opened.partition not in transaction.partitions
    ):
        return False
    if transaction.state is TransactionState.ONGOING:
        return transaction.epoch == opened.producer.epoch
    return (
        transaction.state.is_ending
        and transaction.epoch
        in _ending_epochs(opened.producer, bumps_epoch=transaction.client_version.bumps_epoch)
        and not is_later(opened, transaction)
    )


def is_later(opened: OpenTransaction, ending: Transaction) -> bool:
    """Whether it is known that one began after the other of its producer was decided."""
    return any(opened.is_in_log_of(one) and not opened.began_before(one) for one in ending.log_ends)


def _ending_epochs(producer: ProducerIdentity, *, bumps_epoch: bool) -> tuple[int, ...]:
    """Returns the epochs in which a transaction of this producer ends."""
    next_epoch = _next_epoch(producer).epoch
    # Without a new epoch for each end, one may still have fenced the producer.
    return (next_epoch,) if bumps_epoch else (producer.epoch, next_epoch)


def _next_epoch(producer: ProducerIdentity) -> ProducerIdentity:
    return ProducerIdentity(producer.producer_id, min(producer.epoch + 1, PRODUCER_EPOCH_MAX))

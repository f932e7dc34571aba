"""Which end a transaction gets that lost its own with the power."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from strandline.broker.coordination.transactions.power_loss.lost_ends import (
    Ending,
    OpenTransaction,
    abort_unknown,
    decided_ends,
    end_again,
    is_coordinated,
)
from strandline.broker.coordination.transactions.transaction import (
    PRODUCER_EPOCH_MAX,
    LogEnd,
    ProducerIdentity,
    Transaction,
    TransactionState,
    TransactionVersion,
)
from strandline.storage.model import ZERO_TOPIC_ID, TopicId, TopicPartition
from strandline.storage.records.batch.marker import MarkerType

TOPIC_ID = uuid.UUID(int=1)
HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
COMMIT, ABORT = MarkerType.COMMIT, MarkerType.ABORT
OPEN = OpenTransaction(
    partition=HERE,
    topic_id=TOPIC_ID,
    producer=ProducerIdentity(7, 3),
    first_offset=100,
    leader_epoch=5,
    coordinator_epoch=0,
)
COMMITS = Transaction(
    transactional_id="tx",
    producer_id=7,
    previous_producer_id=7,
    epoch=3,
    timeout_ms=1,
    state=TransactionState.PREPARE_COMMIT,
    partitions=frozenset({HERE, THERE}),
    updated_ms=0,
)
ABORTS = COMMITS._replace(state=TransactionState.PREPARE_ABORT)
BUMPED = COMMITS._replace(epoch=4, client_version=TransactionVersion.V2)


def log_end(
    offset: int,
    *,
    epoch: int = 5,
    partition: TopicPartition = HERE,
    topic_id: TopicId = TOPIC_ID,
) -> LogEnd:
    return LogEnd(partition, topic_id, epoch, offset)


def decided(transaction: Transaction, *ends: LogEnd) -> Transaction:
    return transaction._replace(log_ends=ends)


def test_the_first_decision_behind_the_first_batch_is_the_one_that_is_lost() -> None:
    records = [
        decided(ABORTS, log_end(110)),
        decided(COMMITS, log_end(105)),
        decided(ABORTS, log_end(100)),
    ]
    ends = [end for record in records for end in decided_ends(record)]
    assert end_again(OPEN, ends) == Ending(ProducerIdentity(7, 3), COMMIT)


def test_an_end_has_the_identity_that_its_marker_had() -> None:
    lost = end_again(OPEN, decided_ends(decided(BUMPED, log_end(105))))
    assert lost == Ending(ProducerIdentity(7, 4), COMMIT)


@pytest.mark.parametrize(
    ("transaction", "end"),
    [
        (COMMITS, log_end(100)),
        (COMMITS, log_end(105, partition=THERE)),
        (COMMITS._replace(producer_id=8, previous_producer_id=8), log_end(105)),
        # Of a time when other records had these offsets; those are lost.
        (COMMITS, log_end(105, epoch=4)),
        # In a deleted topic of that name.
        (COMMITS, log_end(105, topic_id=ZERO_TOPIC_ID)),
        # Of the transaction before, and of the one after it.
        (BUMPED._replace(epoch=3), log_end(105)),
        (BUMPED._replace(epoch=5), log_end(105)),
        (COMMITS._replace(epoch=2), log_end(105)),
    ],
)
def test_the_decision_on_another_transaction_proves_nothing(
    transaction: Transaction, end: LogEnd
) -> None:
    assert end_again(OPEN, decided_ends(decided(transaction, end))) is None


def test_a_decision_of_a_later_start_may_be_the_one_and_the_earliest_start_goes_first() -> None:
    later = list(decided_ends(decided(ABORTS, log_end(101, epoch=6))))
    assert end_again(OPEN, later) == Ending(ProducerIdentity(7, 3), ABORT)
    earlier = decided_ends(decided(COMMITS, log_end(120)))
    assert end_again(OPEN, [*later, *earlier]) == Ending(ProducerIdentity(7, 3), COMMIT)


def test_what_nobody_knows_aborts_and_fences() -> None:
    assert abort_unknown(OPEN) == Ending(ProducerIdentity(7, 4), ABORT)
    last = replace(OPEN, producer=ProducerIdentity(7, PRODUCER_EPOCH_MAX))
    assert abort_unknown(last) == Ending(ProducerIdentity(7, PRODUCER_EPOCH_MAX), ABORT)


@pytest.mark.parametrize(
    ("state", "epoch", "partitions", "is_its"),
    [
        (TransactionState.ONGOING, 3, {HERE, THERE}, True),
        (TransactionState.ONGOING, 3, {THERE}, False),
        (TransactionState.ONGOING, 4, {HERE}, False),
        (TransactionState.PREPARE_COMMIT, 3, {HERE}, True),
        (TransactionState.PREPARE_ABORT, 4, {HERE}, True),
        (TransactionState.PREPARE_COMMIT, 5, {HERE}, False),
        (TransactionState.COMPLETE_COMMIT, 3, {HERE}, False),
    ],
)
def test_the_coordinator_ends_what_it_has_in_the_producers_epoch(
    state: TransactionState, epoch: int, partitions: set[TopicPartition], is_its: bool
) -> None:
    known = COMMITS._replace(state=state, epoch=epoch, partitions=frozenset(partitions))
    assert is_coordinated(OPEN, known) is is_its
    assert not is_coordinated(OPEN, known._replace(producer_id=8))


def test_an_end_in_the_producers_own_epoch_is_that_of_its_transaction_before_in_version_2() -> None:
    assert is_coordinated(OPEN, BUMPED)
    assert not is_coordinated(OPEN, BUMPED._replace(epoch=3))


def test_a_decision_on_a_retired_producer_is_that_on_its_transaction() -> None:
    retired = decided(ABORTS._replace(epoch=PRODUCER_EPOCH_MAX), log_end(105))
    assert end_again(OPEN, decided_ends(retired)) == Ending(
        ProducerIdentity(7, PRODUCER_EPOCH_MAX), ABORT
    )


@pytest.mark.parametrize(
    ("end", "is_its"),
    [
        (log_end(101), True),
        (log_end(100), False),
        (log_end(101, epoch=4), False),
        # Its own partition was offline when that was decided: it cannot have a later one.
        (log_end(100, partition=THERE), True),
        (log_end(100, topic_id=ZERO_TOPIC_ID), True),
    ],
)
def test_what_began_after_the_decision_is_not_what_the_coordinator_is_ending(
    end: LogEnd, is_its: bool
) -> None:
    assert is_coordinated(OPEN, decided(COMMITS, end)) is is_its
    assert is_coordinated(OPEN, decided(BUMPED, end)) is is_its

"""Which end a transaction gets that lost its own with the power."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.broker.coordination.records.offset_records import TransactionEnd
from strandline.broker.coordination.transactions.lost_ends import (
    Ending,
    MarkerPlace,
    OpenTransaction,
    abort_unknown,
    end_again,
    ends_of,
    is_coordinated,
)
from strandline.broker.coordination.transactions.transaction import (
    PRODUCER_EPOCH_MAX,
    ProducerIdentity,
    Transaction,
    TransactionState,
    TransactionVersion,
)
from strandline.storage.model import TopicPartition

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
COMMIT, ABORT = TransactionEnd.COMMIT, TransactionEnd.ABORT
OPEN = OpenTransaction(
    partition=HERE,
    producer=ProducerIdentity(7, 3),
    first_offset=100,
    leader_epoch=5,
    coordinator_epoch=0,
)
COMPLETED = Transaction(
    transactional_id="tx",
    producer_id=7,
    previous_producer_id=7,
    epoch=3,
    timeout_ms=1,
    state=TransactionState.COMPLETE_COMMIT,
    updated_ms=0,
)
ABORTED = replace(COMPLETED, state=TransactionState.COMPLETE_ABORT)
BUMPED = replace(COMPLETED, epoch=4, client_version=TransactionVersion.V2)


def place(offset: int, *, epoch: int = 5, partition: TopicPartition = HERE) -> MarkerPlace:
    return MarkerPlace(partition, epoch, offset)


def test_the_first_marker_behind_the_first_batch_is_the_one_that_is_lost() -> None:
    written = [
        *ends_of(ABORTED, [place(110)]),
        *ends_of(COMPLETED, [place(105)]),
        *ends_of(ABORTED, [place(99)]),
    ]
    assert end_again(OPEN, written) == Ending(ProducerIdentity(7, 3), COMMIT)


def test_an_end_of_version_2_has_the_next_epoch() -> None:
    lost = end_again(OPEN, ends_of(BUMPED, [place(105)]))
    assert lost == Ending(ProducerIdentity(7, 4), COMMIT)
    moved_on = replace(BUMPED, producer_id=8, epoch=0)
    assert end_again(OPEN, ends_of(moved_on, [place(105)])) == lost


@pytest.mark.parametrize(
    ("transaction", "marker"),
    [
        (COMPLETED, place(100)),
        (COMPLETED, place(105, partition=THERE)),
        (replace(COMPLETED, producer_id=8, previous_producer_id=8), place(105)),
        # Of a time when other records had these offsets; those are lost.
        (COMPLETED, place(105, epoch=4)),
    ],
)
def test_the_marker_of_another_transaction_proves_nothing(
    transaction: Transaction, marker: MarkerPlace
) -> None:
    assert end_again(OPEN, ends_of(transaction, [marker])) is None


def test_a_marker_of_a_later_start_may_be_the_one_and_the_earliest_start_goes_first() -> None:
    later = ends_of(ABORTED, [place(101, epoch=6)])
    assert end_again(OPEN, later) == Ending(ProducerIdentity(7, 3), ABORT)
    earlier = ends_of(COMPLETED, [place(120)])
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
    known = replace(COMPLETED, state=state, epoch=epoch, partitions=frozenset(partitions))
    assert is_coordinated(OPEN, known) is is_its
    assert not is_coordinated(OPEN, replace(known, producer_id=8))

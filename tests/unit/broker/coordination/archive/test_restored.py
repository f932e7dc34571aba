"""What a restore makes of transactions: never a commit that nobody decided."""

from __future__ import annotations

import pytest

from strandline.broker.coordination.archive.restored import end_of_open
from strandline.broker.coordination.transactions.power_loss.lost_ends import OpenTransaction
from strandline.broker.coordination.transactions.transaction import (
    PRODUCER_EPOCH_MAX,
    LogEnd,
    ProducerIdentity,
    Transaction,
    TransactionState,
    TransactionVersion,
)
from strandline.storage.model import ZERO_TOPIC_ID, TopicPartition
from strandline.storage.records.batch.marker import MarkerType

V1, V2 = TransactionVersion.V0, TransactionVersion.V2
PREPARE_COMMIT, COMPLETE_COMMIT = (
    TransactionState.PREPARE_COMMIT,
    TransactionState.COMPLETE_COMMIT,
)
KNOWN = Transaction(
    transactional_id="tx",
    producer_id=7,
    epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("t", 0)}),
    started_ms=1,
    updated_ms=1,
    client_version=V2,
)


def opened(epoch: int) -> OpenTransaction:
    return OpenTransaction(
        partition=TopicPartition("t", 0),
        topic_id=ZERO_TOPIC_ID,
        producer=ProducerIdentity(KNOWN.producer_id, epoch),
        first_offset=100,
        leader_epoch=0,
        coordinator_epoch=0,
    )


@pytest.mark.parametrize(
    ("state", "version", "epoch", "is_committed"),
    [
        (PREPARE_COMMIT, V2, 2, True),
        (COMPLETE_COMMIT, V2, 2, True),
        # Of an earlier transaction, or of one that began later.
        (PREPARE_COMMIT, V2, 1, False),
        (COMPLETE_COMMIT, V2, 3, False),
        (PREPARE_COMMIT, V1, 3, True),
        (PREPARE_COMMIT, V1, 2, False),
        # It may be an earlier one of the same epoch, which was aborted.
        (COMPLETE_COMMIT, V1, 3, False),
        (TransactionState.ONGOING, V2, 3, False),
        (TransactionState.PREPARE_ABORT, V2, 2, False),
        (TransactionState.COMPLETE_ABORT, V2, 2, False),
        (TransactionState.EMPTY, V2, 2, False),
    ],
)
def test_what_is_open_in_a_log_commits_only_if_that_is_proven(
    state: TransactionState, version: TransactionVersion, epoch: int, is_committed: bool
) -> None:
    known = KNOWN._replace(state=state, client_version=version)
    expected = MarkerType.COMMIT if is_committed else MarkerType.ABORT
    assert end_of_open(known, opened(epoch)) is expected


def test_what_nobody_knows_aborts() -> None:
    assert end_of_open(None, opened(0)) is MarkerType.ABORT


@pytest.mark.parametrize(("end_offset", "is_committed"), [(101, True), (100, False)])
def test_what_began_after_the_decision_aborts(end_offset: int, is_committed: bool) -> None:
    known = KNOWN._replace(
        state=PREPARE_COMMIT,
        client_version=V1,
        log_ends=(LogEnd(TopicPartition("t", 0), ZERO_TOPIC_ID, 0, end_offset),),
    )
    expected = MarkerType.COMMIT if is_committed else MarkerType.ABORT
    assert end_of_open(known, opened(KNOWN.epoch)) is expected


@pytest.mark.parametrize(
    ("state", "epoch", "expected"),
    [
        (COMPLETE_COMMIT, PRODUCER_EPOCH_MAX - 1, MarkerType.COMMIT),
        (COMPLETE_COMMIT, PRODUCER_EPOCH_MAX - 2, MarkerType.ABORT),
        (TransactionState.COMPLETE_ABORT, PRODUCER_EPOCH_MAX - 1, MarkerType.ABORT),
    ],
)
def test_a_commit_with_the_last_epoch_is_proven_by_the_state_of_the_next_id(
    state: TransactionState, epoch: int, expected: MarkerType
) -> None:
    known = KNOWN._replace(state=state, epoch=0, producer_id=8, previous_producer_id=7)
    assert end_of_open(known, opened(epoch)) is expected

"""A restore ends the transactions that its logs have open, and aborts those of the coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.broker.coordination.archive.restored_transactions import (
    end_open_transactions,
    restored_transactions,
    transactions_by_producer,
)
from strandline.broker.coordination.archive.state_archive import (
    LiveRecord,
    LiveRecords,
    encode_live,
)
from strandline.broker.coordination.transactions.power_loss.lost_ends import OpenTransaction
from strandline.broker.coordination.transactions.records import (
    decode_transaction,
    encode_transaction,
)
from strandline.broker.coordination.transactions.transaction import (
    PRODUCER_EPOCH_MAX,
    Transaction,
    TransactionState,
    TransactionVersion,
)
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC, encode_key
from strandline.storage.model import TopicPartition
from tests.unit.storage.local.builders import append, batch, open_log

NOW_MS = 1_700_000_000_000
PRODUCER = 7
KNOWN = Transaction(
    transactional_id="tx",
    producer_id=PRODUCER,
    epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("t", 0)}),
    started_ms=1,
    updated_ms=1,
    client_version=TransactionVersion.V2,
)


def live_of(transaction: Transaction) -> LiveRecords:
    """What the bucket has of this state."""
    record = LiveRecord(
        key=encode_key(transaction.transactional_id),
        value=encode_transaction(transaction, TransactionVersion.V2),
        timestamp_ms=1,
    )
    live = LiveRecords()
    live.take(encode_live([record]), 0)
    return live


def unknown(_opened: OpenTransaction) -> None:
    """The archive does not know how it ended."""


@pytest.mark.parametrize("is_committed", [True, False])
def test_every_open_transaction_of_a_log_gets_its_end(tmp_path: Path, is_committed: bool) -> None:
    log = open_log(tmp_path)
    for producer_id, epoch in ((PRODUCER, 2), (8, 0)):
        sent = batch(
            2,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
        append(log, sent)
    state = TransactionState.COMPLETE_COMMIT if is_committed else TransactionState.COMPLETE_ABORT
    coordinated = {TopicPartition(TRANSACTION_TOPIC, 4): live_of(KNOWN._replace(state=state))}
    end_open_transactions(log, transactions_by_producer(coordinated), NOW_MS, unknown)
    assert log.last_stable_offset == log.end_offset == 6
    aborted = {one.producer_id for one in log.aborted_transactions(0, 6)}
    assert aborted == ({8} if is_committed else {PRODUCER, 8})
    end_open_transactions(log, {}, NOW_MS, unknown)
    assert log.end_offset == 6


def test_a_commit_that_used_up_the_epochs_of_its_id_is_a_commit_in_a_restored_log(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    sent = batch(
        2,
        producer_id=PRODUCER,
        producer_epoch=PRODUCER_EPOCH_MAX - 1,
        base_sequence=0,
        transactional=True,
    )
    append(log, sent)
    goes_on = KNOWN._replace(
        state=TransactionState.COMPLETE_COMMIT,
        producer_id=PRODUCER + 1,
        previous_producer_id=PRODUCER,
        epoch=0,
    )
    coordinated = {TopicPartition(TRANSACTION_TOPIC, 4): live_of(goes_on)}
    end_open_transactions(log, transactions_by_producer(coordinated), NOW_MS, unknown)
    assert log.last_stable_offset == log.end_offset == 3
    assert not log.aborted_transactions(0, 3)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_that_the_archive_has_decided_ends_so_whatever_the_snapshot_says(
    tmp_path: Path, is_committed: bool
) -> None:
    log = open_log(tmp_path)
    append(
        log,
        batch(2, producer_id=PRODUCER, producer_epoch=2, base_sequence=0, transactional=True),
    )
    state = TransactionState.COMPLETE_ABORT if is_committed else TransactionState.COMPLETE_COMMIT
    coordinated = {TopicPartition(TRANSACTION_TOPIC, 4): live_of(KNOWN._replace(state=state))}
    transactions = transactions_by_producer(coordinated)
    end_open_transactions(log, transactions, NOW_MS, lambda _: is_committed)
    assert (not log.aborted_transactions(0, 3)) is is_committed


def test_an_open_transactional_id_begins_as_one_that_aborts() -> None:
    (record,) = restored_transactions(live_of(KNOWN), TransactionVersion.V2, NOW_MS)
    restored = decode_transaction("tx", record.value)
    assert (restored.state, restored.epoch) == (TransactionState.PREPARE_ABORT, PRODUCER_EPOCH_MAX)
    assert restored.partitions == KNOWN.partitions


def test_a_record_of_an_unknown_kind_is_kept() -> None:
    strange = LiveRecord(key=b"\0\x09later", value=b"\0\x09", timestamp_ms=1)
    assert list(restored_transactions([strange], TransactionVersion.V2, NOW_MS)) == [strange]

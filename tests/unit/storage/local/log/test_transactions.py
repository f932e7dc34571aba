"""Which transactional batches and markers a log takes, and from whom (KIP-890)."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.errors import InvalidProducerEpoch, RecordsRejected
from strandline.storage.local.formats.producer_state import (
    NO_SEQUENCE,
    PRODUCER_EPOCH_MAX,
    CoordinatorFenced,
    InvalidTransactionState,
    ProducerState,
)
from strandline.storage.local.log.log import AppendInfo, AppendOrigin, LocalLog
from strandline.storage.records.batch.marker import MarkerType
from tests.support.lone_replica import append_alone
from tests.unit.storage.local.builders import batch, marker, open_log

CLIENT, VERIFIED, COORDINATOR = (
    AppendOrigin.CLIENT,
    AppendOrigin.VERIFIED,
    AppendOrigin.COORDINATOR,
)


def send(
    log: LocalLog, sequence: int, origin: AppendOrigin, *, epoch: int = 0, count: int = 2
) -> AppendInfo:
    return append_alone(
        log,
        batch(
            count,
            producer_id=1,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        ),
        leader_epoch=0,
        origin=origin,
    )


def end(
    log: LocalLog,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    kind: MarkerType = MarkerType.COMMIT,
) -> AppendInfo:
    return append_alone(
        log,
        marker(kind, producer_id=1, producer_epoch=epoch, coordinator_epoch=coordinator_epoch),
        leader_epoch=0,
        origin=COORDINATOR,
    )


def test_only_a_confirmed_batch_begins_a_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(InvalidTransactionState) as refused:
        send(log, 0, CLIENT)
    assert refused.value.kafka_code == 48
    send(log, 0, VERIFIED)
    # The log knows from here on that the transaction is open.
    assert send(log, 2, CLIENT).base_offset == 2
    assert log.last_stable_offset == 0


def test_a_late_batch_of_a_transaction_that_ended_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, VERIFIED)
    end(log)
    with pytest.raises(InvalidTransactionState):
        send(log, 2, CLIENT)
    assert log.last_stable_offset == log.end_offset


def test_a_repeated_batch_is_answered_even_after_the_transaction_ended(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, VERIFIED)
    end(log)
    repeated = send(log, 0, CLIENT)
    assert (repeated.duplicate, repeated.base_offset) == (True, 0)


def test_a_batch_of_another_epoch_is_no_part_of_the_open_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, VERIFIED, epoch=3)
    with pytest.raises(InvalidProducerEpoch):
        send(log, 0, CLIENT, epoch=2)
    with pytest.raises(InvalidTransactionState):
        send(log, 0, CLIENT, epoch=4)


def test_a_coordinators_batch_needs_no_sequence_and_opens_a_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, NO_SEQUENCE, COORDINATOR)
    send(log, NO_SEQUENCE, COORDINATOR)
    assert log.last_stable_offset == 0
    with pytest.raises(InvalidProducerEpoch):
        send(log, NO_SEQUENCE, COORDINATOR, epoch=-1)
    content = log.producers.encode_snapshot()
    loaded = ProducerState()
    loaded.load_snapshot(content)
    assert loaded.has_open_transaction(1, 0)
    assert loaded.encode_snapshot() == content
    end(log)
    assert log.last_stable_offset == log.end_offset


def test_a_coordinator_that_was_replaced_is_fenced(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, VERIFIED)
    end(log, coordinator_epoch=5)
    with pytest.raises(CoordinatorFenced) as refused:
        end(log, coordinator_epoch=4)
    assert refused.value.kafka_code == 52
    assert end(log, coordinator_epoch=5).base_offset == 3


def test_a_marker_of_version_2_must_have_a_new_epoch_or_repeat_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, VERIFIED, epoch=2)
    check = log.producers.check_marker_of_new_epoch
    for late in (1, 2):
        with pytest.raises(InvalidProducerEpoch):
            check(1, late)
    check(1, 3)
    end(log, epoch=3)
    check(1, 3)
    check(9, 0)


def test_the_last_epoch_of_all_may_end_its_own_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, VERIFIED, epoch=PRODUCER_EPOCH_MAX)
    log.producers.check_marker_of_new_epoch(1, PRODUCER_EPOCH_MAX)


def test_the_oldest_open_transaction_holds_the_log_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.producers.oldest_open() is None
    send(log, 0, VERIFIED)
    oldest = log.producers.oldest_open()
    assert oldest is not None
    assert (oldest.producer_id, oldest.transaction_first_offset) == (1, 0)


def test_a_transactional_batch_needs_a_producer(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for origin in (CLIENT, VERIFIED, COORDINATOR):
        with pytest.raises(RecordsRejected) as refused:
            log.append(batch(1, transactional=True), leader_epoch=0, origin=origin)
        assert refused.value.kafka_code == 87

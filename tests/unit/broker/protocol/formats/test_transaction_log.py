"""Records of `__transaction_state`, byte for byte as Kafka's own classes write them.

The bytes were written once by the classes of Apache Kafka 4.4.0: TransactionLogKey and
TransactionLogValue of kafka-transaction-coordinator, filled by their setters from the values below,
by MessageUtil.toCoordinatorTypePrefixedBytes and toVersionPrefixedBytes. The same classes read
MARKED, and wrote the same bytes again from what they had read.
"""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.protocol.formats.transaction_log import (
    LoggedEnd,
    LoggedEnds,
    LoggedPartitions,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from strandline.broker.protocol.schema.errors import MalformedRequest

EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT = 0, 1, 2, 4

TRANSACTIONAL_ID = "zahlung-ü"
KEY = bytes.fromhex("0000000a7a61686c756e672dc3bc")

ONE = TransactionLogValue(
    producer_id=4711,
    producer_epoch=7,
    transaction_timeout_ms=60_000,
    transaction_status=ONGOING,
    transaction_partitions=(
        LoggedPartitions(topic="__consumer_offsets", partition_ids=(12,)),
        LoggedPartitions(topic="flüge", partition_ids=(0, 3)),
    ),
    transaction_last_update_timestamp_ms=1_700_000_001_000,
    transaction_start_timestamp_ms=1_700_000_000_000,
)
# A transaction of version 2 that ends with the last epoch of its producer id: every tag is there.
LAST_EPOCH = ONE.replaced(
    transaction_status=PREPARE_COMMIT,
    previous_producer_id=4711,
    next_producer_id=4712,
    producer_epoch=32767,
    next_producer_epoch=0,
    client_transaction_version=2,
)
NO_TRANSACTION = ONE.replaced(
    transaction_status=EMPTY, transaction_partitions=None, transaction_start_timestamp_ms=-1
)
COMPLETE = ONE.replaced(transaction_status=COMPLETE_COMMIT, transaction_partitions=())

WRITTEN_BY_KAFKA = [
    pytest.param(
        NO_TRANSACTION,
        0,
        "0000000000000000126700070000ea6000ffffffff0000018bcfe56be8ffffffffffffffff",
        id="no transaction, version 0",
    ),
    pytest.param(
        NO_TRANSACTION,
        1,
        "0001000000000000126700070000ea6000000000018bcfe56be8ffffffffffffffff00",
        id="no transaction, version 1",
    ),
    pytest.param(
        ONE,
        0,
        "0000000000000000126700070000ea60010000000200125f5f636f6e73756d65725f6f6666736574730000"
        "00010000000c0006666cc3bc67650000000200000000000000030000018bcfe56be80000018bcfe56800",
        id="open, version 0",
    ),
    pytest.param(
        ONE,
        1,
        "0001000000000000126700070000ea600103135f5f636f6e73756d65725f6f666673657473020000000c00"
        "07666cc3bc6765030000000000000003000000018bcfe56be80000018bcfe5680000",
        id="open, version 1",
    ),
    pytest.param(
        COMPLETE,
        0,
        "0000000000000000126700070000ea6004000000000000018bcfe56be80000018bcfe56800",
        id="complete, version 0",
    ),
    pytest.param(
        COMPLETE,
        1,
        "0001000000000000126700070000ea6004010000018bcfe56be80000018bcfe5680000",
        id="complete, version 1",
    ),
    pytest.param(
        LAST_EPOCH,
        1,
        "000100000000000012677fff0000ea600203135f5f636f6e73756d65725f6f666673657473020000000c00"
        "07666cc3bc6765030000000000000003000000018bcfe56be80000018bcfe5680004000800000000000012"
        "67010800000000000012680202000203020000",
        id="the last epoch, version 1",
    ),
]
LOG_ENDS = (
    LoggedEnds(
        topic="flüge",
        topic_id=uuid.UUID(int=5),
        ends=(LoggedEnd(partition_id=3, leader_epoch=1, offset=9),),
    ),
)
WITH_LOG_ENDS = (
    "000100000000000012677fff0000ea600203135f5f636f6e73756d65725f6f666673657473020000000c00"
    "07666cc3bc6765030000000000000003000000018bcfe56be80000018bcfe5680005000800000000000012"
    "67010800000000000012680202000203020000e9072b0207666cc3bc676500000000000000000000000000"
    "00000502000000030000000100000000000000090000"
)


def test_a_key_is_kafkas() -> None:
    assert encode_key(TRANSACTIONAL_ID) == KEY
    assert decode_key(KEY) == TRANSACTIONAL_ID


@pytest.mark.parametrize("raw", [b"", b"\0", KEY[:3], KEY[:-1]])
def test_a_key_that_is_cut_is_unreadable(raw: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_key(raw)


def test_a_key_of_another_kind_is_told_from_ours() -> None:
    assert decode_key(b"\0\x09" + KEY[2:]) is None


@pytest.mark.parametrize(("value", "version", "golden"), WRITTEN_BY_KAFKA)
def test_a_value_is_kafkas(value: TransactionLogValue, version: int, golden: str) -> None:
    assert encode_value(value, version).hex() == golden
    assert decode_value(bytes.fromhex(golden)) == value


def test_version_0_says_nothing_of_other_producer_ids() -> None:
    """Kafka refuses to write these values in version 0; nothing reads them at its level."""
    plain = ONE.replaced(transaction_status=PREPARE_COMMIT, producer_epoch=32767)
    assert encode_value(LAST_EPOCH, 0) == encode_value(plain, 0)


def test_where_logs_ended_is_a_tag_that_kafka_skips_and_keeps() -> None:
    decided = LAST_EPOCH.replaced(log_ends=LOG_ENDS)
    assert encode_value(decided, 1).hex() == WITH_LOG_ENDS
    assert decode_value(bytes.fromhex(WITH_LOG_ENDS)) == decided


@pytest.mark.parametrize(
    "golden", [*(param.values[2] for param in WRITTEN_BY_KAFKA), WITH_LOG_ENDS]
)
def test_a_value_that_is_cut_is_unreadable(golden: str) -> None:
    raw = bytes.fromhex(golden)
    for length in range(len(raw)):
        with pytest.raises(MalformedRequest):
            decode_value(raw[:length])

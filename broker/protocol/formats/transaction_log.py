"""The records of `__transaction_state`, in Kafka's formats.

key     version i16 (0) | transactional id
value   version i16 | TransactionLogValue, or null: a tombstone

TransactionLogValue    v0  plain    v1  flexible; the producer ids before and after, and the
                                        transaction version of the client (KIP-890); under a tag
                                        that Kafka skips, where the logs ended
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from strandline.broker.protocol.formats.versioned import read_struct, read_version, write_struct
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import OWN_TAG_MIN, Struct

TRANSACTION_TOPIC: Final = "__transaction_state"

_KEY_VERSION: Final = 0
_VALUE_VERSION_MAX: Final = 1
_VALUE_FLEXIBLE_FROM: Final = 1
# The tag before it had log ends without the topic's id.
_LOG_ENDS_TAG: Final = OWN_TAG_MIN + 1


class _TransactionLogKey(Struct):
    transactional_id: str = wire.string()


class LoggedPartitions(Struct):
    """Partitions of one topic in a transaction."""

    topic: str = wire.string()
    partition_ids: Sequence[int] = wire.array(wire.int32)


class LoggedEnd(Struct):
    """Where the log of a partition ended when its transaction was decided."""

    partition_id: int = wire.int32()
    leader_epoch: int = wire.int32()
    offset: int = wire.int64()


class LoggedEnds(Struct):
    """Where the logs of one topic ended; a later topic of its name has another id."""

    topic: str = wire.string()
    topic_id: uuid.UUID = wire.uuid_()
    ends: Sequence[LoggedEnd] = wire.array(LoggedEnd)


class TransactionLogValue(Struct):
    """One transactional id; times are in ms since 1970.

    `transaction_partitions` is None while no transaction was begun.
    """

    producer_id: int = wire.int64()
    previous_producer_id: int = wire.int64("1+", tag=0, default=-1)
    next_producer_id: int = wire.int64("1+", tag=1, default=-1)
    producer_epoch: int = wire.int16()
    next_producer_epoch: int = wire.int16("1+", tag=3, default=-1)
    transaction_timeout_ms: int = wire.int32()
    transaction_status: int = wire.int8()
    transaction_partitions: Sequence[LoggedPartitions] | None = wire.array(
        LoggedPartitions, nullable="0+", default=None
    )
    transaction_last_update_timestamp_ms: int = wire.int64()
    transaction_start_timestamp_ms: int = wire.int64()
    client_transaction_version: int = wire.int16("1+", tag=2, default=0)
    log_ends: Sequence[LoggedEnds] = wire.array(LoggedEnds, "1+", tag=_LOG_ENDS_TAG, default=())


# Three records of each transaction ask.
@lru_cache(maxsize=1000)
def encode_key(transactional_id: str) -> bytes:
    """Encodes a key, whose bytes compaction compares."""
    return write_struct(_TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION)


def decode_key(key: wire.Buffer) -> str | None:
    """Returns the transactional id, None for another kind of key. Raises MalformedRequest."""
    encoded = memoryview(key)
    if read_version(encoded) != _KEY_VERSION:
        return None
    return read_struct(_TransactionLogKey, _KEY_VERSION, encoded)[0].transactional_id


def encode_value(value: TransactionLogValue, version: int) -> bytes:
    """Encodes a value in version 0 or 1."""
    return write_struct(value, version, flexible_from=_VALUE_FLEXIBLE_FROM)


def decode_value(value: wire.Buffer) -> TransactionLogValue:
    """Decodes a value of any known version. Raises MalformedRequest."""
    encoded = memoryview(value)
    version = read_version(encoded)
    if not 0 <= version <= _VALUE_VERSION_MAX:
        raise MalformedRequest(f"a transaction of version {version}, where we know 0 and 1")
    return read_struct(TransactionLogValue, version, encoded, flexible_from=_VALUE_FLEXIBLE_FROM)[0]

"""AddPartitionsToTxn: partitions join a transaction before a producer writes to them.

v0-3  from clients: one transaction          v2  PRODUCER_FENCED    v3  flexible
v4    from brokers: several transactions, and a check whether partitions are in them (KIP-890)
v5    TRANSACTION_ABORTABLE
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class AddPartitionsToTxnTopic(Struct):
    name: str = wire.string()
    partitions: Sequence[int] = wire.array(wire.int32)


class AddPartitionsToTxnTransaction(Struct):
    """One transaction with its partitions; `verify_only` only checks that they are in it."""

    transactional_id: str = wire.string()
    producer_id: int = wire.int64()
    producer_epoch: int = wire.int16()
    verify_only: bool = wire.boolean(default=False)
    topics: Sequence[AddPartitionsToTxnTopic] = wire.array(AddPartitionsToTxnTopic)


class AddPartitionsToTxnRequest(Request, api=ApiKey.ADD_PARTITIONS_TO_TXN):
    """Partitions to add: in `transactions` from v4 on, in the other fields before."""

    transactions: Sequence[AddPartitionsToTxnTransaction] = wire.array(
        AddPartitionsToTxnTransaction, "4+", default=()
    )
    transactional_id: str = wire.string("0-3", default="")
    producer_id: int = wire.int64("0-3", default=-1)
    producer_epoch: int = wire.int16("0-3", default=-1)
    topics: Sequence[AddPartitionsToTxnTopic] = wire.array(
        AddPartitionsToTxnTopic, "0-3", default=()
    )


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = wire.int32()
    partition_error_code: int = wire.int16(default=0)


class AddPartitionsToTxnTopicResult(Struct):
    name: str = wire.string()
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = wire.array(
        AddPartitionsToTxnPartitionResult
    )


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = wire.string()
    topic_results: Sequence[AddPartitionsToTxnTopicResult] = wire.array(
        AddPartitionsToTxnTopicResult
    )


class AddPartitionsToTxnResponse(Response, api=ApiKey.ADD_PARTITIONS_TO_TXN):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16("4+", default=0)
    results_by_transaction: Sequence[AddPartitionsToTxnResult] = wire.array(
        AddPartitionsToTxnResult, "4+", default=()
    )
    results_by_topic: Sequence[AddPartitionsToTxnTopicResult] = wire.array(
        AddPartitionsToTxnTopicResult, "0-3", default=()
    )

"""DescribeTransactions: the state of transactional ids (KIP-664)."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class DescribeTransactionsRequest(Request, api=ApiKey.DESCRIBE_TRANSACTIONS):
    transactional_ids: Sequence[str] = wire.array(wire.string)


class DescribedTransactionTopic(Struct):
    topic: str = wire.string()
    partitions: Sequence[int] = wire.array(wire.int32)


class DescribedTransaction(Struct):
    """One transactional id; `transaction_start_time_ms` is -1 without a transaction."""

    error_code: int = wire.int16(default=0)
    transactional_id: str = wire.string()
    transaction_state: str = wire.string(default="")
    transaction_timeout_ms: int = wire.int32(default=0)
    transaction_start_time_ms: int = wire.int64(default=0)
    producer_id: int = wire.int64(default=0)
    producer_epoch: int = wire.int16(default=0)
    topics: Sequence[DescribedTransactionTopic] = wire.array(DescribedTransactionTopic, default=())


class DescribeTransactionsResponse(Response, api=ApiKey.DESCRIBE_TRANSACTIONS):
    throttle_time_ms: int = wire.int32(default=0)
    transaction_states: Sequence[DescribedTransaction] = wire.array(DescribedTransaction)

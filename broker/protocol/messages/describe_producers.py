"""DescribeProducers: the active idempotent producers of a partition. Flexible from v0."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class DescribeProducersTopic(Struct):
    name: str = wire.string()
    partition_indexes: Sequence[int] = wire.array(wire.int32)


class DescribeProducersRequest(Request, api=ApiKey.DESCRIBE_PRODUCERS):
    topics: Sequence[DescribeProducersTopic] = wire.array(DescribeProducersTopic)


class ActiveProducer(Struct):
    """One active producer; -1 means an unknown `last_timestamp` (ms), or no transaction."""

    producer_id: int = wire.int64()
    producer_epoch: int = wire.int32()
    last_sequence: int = wire.int32(default=-1)
    last_timestamp: int = wire.int64(default=-1)
    coordinator_epoch: int = wire.int32(default=-1)
    current_txn_start_offset: int = wire.int64(default=-1)


class DescribeProducersPartition(Struct):
    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    active_producers: Sequence[ActiveProducer] = wire.array(ActiveProducer, default=())


class DescribeProducersTopicResult(Struct):
    name: str = wire.string()
    partitions: Sequence[DescribeProducersPartition] = wire.array(DescribeProducersPartition)


class DescribeProducersResponse(Response, api=ApiKey.DESCRIBE_PRODUCERS):
    throttle_time_ms: int = wire.int32(default=0)
    topics: Sequence[DescribeProducersTopicResult] = wire.array(DescribeProducersTopicResult)

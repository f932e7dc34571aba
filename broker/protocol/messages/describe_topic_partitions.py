"""DescribeTopicPartitions: partitions of topics, page by page (KIP-966). Flexible from v0."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.messages.metadata import OPERATIONS_UNKNOWN
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class DescribeTopicPartitionsTopic(Struct):
    name: str = wire.string()


class Cursor(Struct):
    """The first partition of the next page."""

    topic_name: str = wire.string()
    partition_index: int = wire.int32()


class DescribeTopicPartitionsRequest(Request, api=ApiKey.DESCRIBE_TOPIC_PARTITIONS):
    """The topics to describe; an empty list requests all of them."""

    topics: Sequence[DescribeTopicPartitionsTopic] = wire.array(DescribeTopicPartitionsTopic)
    response_partition_limit: int = wire.int32(default=2000)
    cursor: Cursor | None = wire.struct(Cursor, nullable="0+", default=None)


class DescribedTopicPartition(Struct):
    """One partition; its eligible leaders (ELR) are None where the broker tracks none."""

    error_code: int = wire.int16(default=0)
    partition_index: int = wire.int32()
    leader_id: int = wire.int32()
    leader_epoch: int = wire.int32(default=-1)
    replica_nodes: Sequence[int] = wire.array(wire.int32)
    isr_nodes: Sequence[int] = wire.array(wire.int32)
    eligible_leader_replicas: Sequence[int] | None = wire.array(
        wire.int32, nullable="0+", default=None
    )
    last_known_elr: Sequence[int] | None = wire.array(wire.int32, nullable="0+", default=None)
    offline_replicas: Sequence[int] = wire.array(wire.int32, default=())


class DescribedTopic(Struct):
    error_code: int = wire.int16(default=0)
    name: str | None = wire.string(nullable="0+")
    topic_id: uuid.UUID = wire.uuid_(default=wire.ZERO_UUID)
    is_internal: bool = wire.boolean(default=False)
    partitions: Sequence[DescribedTopicPartition] = wire.array(DescribedTopicPartition, default=())
    topic_authorized_operations: int = wire.int32(default=OPERATIONS_UNKNOWN)


class DescribeTopicPartitionsResponse(Response, api=ApiKey.DESCRIBE_TOPIC_PARTITIONS):
    """One page; `next_cursor` is None on the last one."""

    throttle_time_ms: int = wire.int32(default=0)
    topics: Sequence[DescribedTopic] = wire.array(DescribedTopic)
    next_cursor: Cursor | None = wire.struct(Cursor, nullable="0+", default=None)

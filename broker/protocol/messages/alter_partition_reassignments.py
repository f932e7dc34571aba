"""AlterPartitionReassignments: moves partitions to other brokers. Flexible from v0.

v1  a changed replication factor can be refused
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ReassignablePartition(Struct):
    """One partition with its new replicas; None cancels its running reassignment."""

    partition_index: int = wire.int32()
    replicas: Sequence[int] | None = wire.array(wire.int32, nullable="0+", default=None)


class ReassignableTopic(Struct):
    name: str = wire.string()
    partitions: Sequence[ReassignablePartition] = wire.array(ReassignablePartition)


class AlterPartitionReassignmentsRequest(Request, api=ApiKey.ALTER_PARTITION_REASSIGNMENTS):
    timeout_ms: int = wire.int32(default=60_000)
    allow_replication_factor_change: bool = wire.boolean("1+", default=True)
    topics: Sequence[ReassignableTopic] = wire.array(ReassignableTopic)


class ReassignablePartitionResponse(Struct):
    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)


class ReassignableTopicResponse(Struct):
    name: str = wire.string()
    partitions: Sequence[ReassignablePartitionResponse] = wire.array(ReassignablePartitionResponse)


class AlterPartitionReassignmentsResponse(Response, api=ApiKey.ALTER_PARTITION_REASSIGNMENTS):
    throttle_time_ms: int = wire.int32(default=0)
    allow_replication_factor_change: bool = wire.boolean("1+", default=True)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    responses: Sequence[ReassignableTopicResponse] = wire.array(ReassignableTopicResponse)

"""ListPartitionReassignments: the ongoing reassignments of partitions. Flexible from v0."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ListPartitionReassignmentsTopic(Struct):
    name: str = wire.string()
    partition_indexes: Sequence[int] = wire.array(wire.int32)


class ListPartitionReassignmentsRequest(Request, api=ApiKey.LIST_PARTITION_REASSIGNMENTS):
    """The partitions to list; `topics` None requests all of them."""

    timeout_ms: int = wire.int32(default=60_000)
    topics: Sequence[ListPartitionReassignmentsTopic] | None = wire.array(
        ListPartitionReassignmentsTopic, nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    partition_index: int = wire.int32()
    replicas: Sequence[int] = wire.array(wire.int32)
    adding_replicas: Sequence[int] = wire.array(wire.int32, default=())
    removing_replicas: Sequence[int] = wire.array(wire.int32, default=())


class OngoingTopicReassignment(Struct):
    name: str = wire.string()
    partitions: Sequence[OngoingPartitionReassignment] = wire.array(OngoingPartitionReassignment)


class ListPartitionReassignmentsResponse(Response, api=ApiKey.LIST_PARTITION_REASSIGNMENTS):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    topics: Sequence[OngoingTopicReassignment] = wire.array(OngoingTopicReassignment, default=())

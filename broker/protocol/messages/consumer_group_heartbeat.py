"""ConsumerGroupHeartbeat: the whole group protocol of KIP-848 in one request. Flexible from v0.

v1  regular expressions; the member makes its own id
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class HeartbeatTopicPartitions(Struct):
    topic_id: uuid.UUID = wire.uuid_()
    partitions: Sequence[int] = wire.array(wire.int32)


class ConsumerGroupHeartbeatRequest(Request, api=ApiKey.CONSUMER_GROUP_HEARTBEAT):
    """One heartbeat. Epoch 0 joins, -1 leaves, -2 leaves temporarily as a static member.

    A field that is None, and a timeout of -1, are as in the last heartbeat.
    """

    group_id: str = wire.string()
    member_id: str = wire.string()
    member_epoch: int = wire.int32()
    instance_id: str | None = wire.string(nullable="0+", default=None)
    rack_id: str | None = wire.string(nullable="0+", default=None)
    rebalance_timeout_ms: int = wire.int32(default=-1)
    subscribed_topic_names: Sequence[str] | None = wire.array(
        wire.string, nullable="0+", default=None
    )
    subscribed_topic_regex: str | None = wire.string("1+", nullable="1+", default=None)
    server_assignor: str | None = wire.string(nullable="0+", default=None)
    topic_partitions: Sequence[HeartbeatTopicPartitions] | None = wire.array(
        HeartbeatTopicPartitions, nullable="0+", default=None
    )


class HeartbeatAssignment(Struct):
    topic_partitions: Sequence[HeartbeatTopicPartitions] = wire.array(HeartbeatTopicPartitions)


class ConsumerGroupHeartbeatResponse(Response, api=ApiKey.CONSUMER_GROUP_HEARTBEAT):
    """The member's epoch and assignment; `assignment` None means unchanged."""

    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    member_id: str | None = wire.string(nullable="0+", default=None)
    member_epoch: int = wire.int32(default=0)
    heartbeat_interval_ms: int = wire.int32(default=0)
    assignment: HeartbeatAssignment | None = wire.struct(
        HeartbeatAssignment, nullable="0+", default=None
    )

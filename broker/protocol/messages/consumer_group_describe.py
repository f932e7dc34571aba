"""ConsumerGroupDescribe: groups of the KIP-848 protocol with their members. Flexible from v0.

v1  member type
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from enum import IntEnum

from strandline.broker.protocol.messages.metadata import OPERATIONS_UNKNOWN
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ConsumerMemberType(IntEnum):
    UNKNOWN = -1
    CLASSIC = 0
    CONSUMER = 1


class ConsumerGroupDescribeRequest(Request, api=ApiKey.CONSUMER_GROUP_DESCRIBE):
    group_ids: Sequence[str] = wire.array(wire.string)
    include_authorized_operations: bool = wire.boolean(default=False)


class AssignedTopicPartitions(Struct):
    topic_id: uuid.UUID = wire.uuid_()
    topic_name: str = wire.string()
    partitions: Sequence[int] = wire.array(wire.int32)


class MemberAssignment(Struct):
    topic_partitions: Sequence[AssignedTopicPartitions] = wire.array(
        AssignedTopicPartitions, default=()
    )


class ConsumerGroupMember(Struct):
    """A member with its current `assignment` and the computed `target_assignment`."""

    member_id: str = wire.string()
    instance_id: str | None = wire.string(nullable="0+", default=None)
    rack_id: str | None = wire.string(nullable="0+", default=None)
    member_epoch: int = wire.int32()
    client_id: str = wire.string()
    client_host: str = wire.string()
    subscribed_topic_names: Sequence[str] = wire.array(wire.string, default=())
    subscribed_topic_regex: str | None = wire.string(nullable="0+", default=None)
    assignment: MemberAssignment = wire.struct(MemberAssignment)
    target_assignment: MemberAssignment = wire.struct(MemberAssignment)
    member_type: int = wire.int8("1+", default=ConsumerMemberType.UNKNOWN)


class DescribedConsumerGroup(Struct):
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    group_id: str = wire.string()
    group_state: str = wire.string(default="")
    group_epoch: int = wire.int32(default=0)
    assignment_epoch: int = wire.int32(default=0)
    assignor_name: str = wire.string(default="")
    members: Sequence[ConsumerGroupMember] = wire.array(ConsumerGroupMember, default=())
    authorized_operations: int = wire.int32(default=OPERATIONS_UNKNOWN)


class ConsumerGroupDescribeResponse(Response, api=ApiKey.CONSUMER_GROUP_DESCRIBE):
    throttle_time_ms: int = wire.int32(default=0)
    groups: Sequence[DescribedConsumerGroup] = wire.array(DescribedConsumerGroup)

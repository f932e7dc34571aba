"""DescribeGroups: classic groups with their members.

v1  throttle time    v3  authorized operations    v4  static members    v5  flexible
v6  error message, and GROUP_ID_NOT_FOUND instead of a group in state Dead
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.messages.metadata import OPERATIONS_UNKNOWN
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class DescribeGroupsRequest(Request, api=ApiKey.DESCRIBE_GROUPS):
    groups: Sequence[str] = wire.array(wire.string)
    include_authorized_operations: bool = wire.boolean("3+", default=False)


class DescribedGroupMember(Struct):
    """A member; its metadata and assignment are empty while the group is not stable."""

    member_id: str = wire.string()
    group_instance_id: str | None = wire.string("4+", nullable="4+", default=None)
    client_id: str = wire.string()
    client_host: str = wire.string()
    member_metadata: bytes = wire.byte_string(default=b"")
    member_assignment: bytes = wire.byte_string(default=b"")


class DescribedGroup(Struct):
    """A classic group; `protocol_data` names the chosen protocol, and is empty without one."""

    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string("6+", nullable="6+", default=None)
    group_id: str = wire.string()
    group_state: str = wire.string(default="")
    protocol_type: str = wire.string(default="")
    protocol_data: str = wire.string(default="")
    members: Sequence[DescribedGroupMember] = wire.array(DescribedGroupMember, default=())
    authorized_operations: int = wire.int32("3+", default=OPERATIONS_UNKNOWN)


class DescribeGroupsResponse(Response, api=ApiKey.DESCRIBE_GROUPS):
    throttle_time_ms: int = wire.int32("1+", default=0)
    groups: Sequence[DescribedGroup] = wire.array(DescribedGroup)

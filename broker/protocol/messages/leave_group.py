"""LeaveGroup: members leave a group before their session timeout.

v1  throttle time    v3  several members, static ones by instance id    v4  flexible    v5  reason
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class MemberIdentity(Struct):
    """One member; a static one may be named by its instance id alone."""

    member_id: str = wire.string("3+", default="")
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)
    reason: str | None = wire.string("5+", nullable="5+", default=None)


class LeaveGroupRequest(Request, api=ApiKey.LEAVE_GROUP):
    """The members that leave: `member_id` up to v2, `members` from v3 on."""

    group_id: str = wire.string()
    member_id: str = wire.string("0-2", default="")
    members: Sequence[MemberIdentity] = wire.array(MemberIdentity, "3+", default=())


class MemberResponse(Struct):
    member_id: str = wire.string("3+")
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)
    error_code: int = wire.int16("3+", default=0)


class LeaveGroupResponse(Response, api=ApiKey.LEAVE_GROUP):
    throttle_time_ms: int = wire.int32("1+", default=0)
    error_code: int = wire.int16(default=0)
    members: Sequence[MemberResponse] = wire.array(MemberResponse, "3+", default=())

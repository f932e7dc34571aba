"""JoinGroup: a member joins or rejoins a classic group; answered when all members have joined.

v1  rebalance timeout        v6  flexible
v2  throttle time            v7  protocol type and a nullable protocol in the answer
v4  MEMBER_ID_REQUIRED       v8  reason
v5  static members           v9  skip_assignment, for a leader that rejoins statically
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class JoinGroupRequestProtocol(Struct):
    name: str = wire.string()
    metadata: bytes = wire.byte_string()


class JoinGroupRequest(Request, api=ApiKey.JOIN_GROUP):
    """One join. `rebalance_timeout_ms` is -1 in v0: the session timeout applies."""

    group_id: str = wire.string()
    session_timeout_ms: int = wire.int32()
    rebalance_timeout_ms: int = wire.int32("1+", default=-1)
    member_id: str = wire.string()
    group_instance_id: str | None = wire.string("5+", nullable="5+", default=None)
    protocol_type: str = wire.string()
    protocols: Sequence[JoinGroupRequestProtocol] = wire.array(JoinGroupRequestProtocol)
    reason: str | None = wire.string("8+", nullable="8+", default=None)


class JoinGroupResponseMember(Struct):
    member_id: str = wire.string()
    group_instance_id: str | None = wire.string("5+", nullable="5+", default=None)
    metadata: bytes = wire.byte_string()


class JoinGroupResponse(Response, api=ApiKey.JOIN_GROUP):
    """The new generation. Only the leader gets `members`.

    Before v7 `protocol_name` is not null, but may be empty.
    """

    throttle_time_ms: int = wire.int32("2+", default=0)
    error_code: int = wire.int16(default=0)
    generation_id: int = wire.int32(default=-1)
    protocol_type: str | None = wire.string("7+", nullable="7+", default=None)
    protocol_name: str | None = wire.string(nullable="7+")
    leader: str = wire.string(default="")
    skip_assignment: bool = wire.boolean("9+", default=False)
    member_id: str = wire.string(default="")
    members: Sequence[JoinGroupResponseMember] = wire.array(JoinGroupResponseMember, default=())

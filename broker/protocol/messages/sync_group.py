"""SyncGroup: the leader sends the assignments of a generation, and each member receives its own.

v1  throttle time    v3  static members    v4  flexible    v5  protocol type and name, checked
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class SyncGroupRequestAssignment(Struct):
    member_id: str = wire.string()
    assignment: bytes = wire.byte_string()


class SyncGroupRequest(Request, api=ApiKey.SYNC_GROUP):
    """The request of one member; only the leader fills `assignments`."""

    group_id: str = wire.string()
    generation_id: int = wire.int32()
    member_id: str = wire.string()
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)
    protocol_type: str | None = wire.string("5+", nullable="5+", default=None)
    protocol_name: str | None = wire.string("5+", nullable="5+", default=None)
    assignments: Sequence[SyncGroupRequestAssignment] = wire.array(
        SyncGroupRequestAssignment, default=()
    )


class SyncGroupResponse(Response, api=ApiKey.SYNC_GROUP):
    throttle_time_ms: int = wire.int32("1+", default=0)
    error_code: int = wire.int16(default=0)
    protocol_type: str | None = wire.string("5+", nullable="5+", default=None)
    protocol_name: str | None = wire.string("5+", nullable="5+", default=None)
    assignment: bytes = wire.byte_string(default=b"")

"""Heartbeat: a member of a classic group reports that it is alive.

v1  throttle time    v3  static members    v4  flexible
"""

from __future__ import annotations

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class HeartbeatRequest(Request, api=ApiKey.HEARTBEAT):
    group_id: str = wire.string()
    generation_id: int = wire.int32()
    member_id: str = wire.string()
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)


class HeartbeatResponse(Response, api=ApiKey.HEARTBEAT):
    throttle_time_ms: int = wire.int32("1+", default=0)
    error_code: int = wire.int16(default=0)

"""FindCoordinator: the broker that coordinates a group or a transactional id.

v1  key type, throttle time, message    v3  flexible
v4  several keys: `coordinator_keys` and `coordinators` replace the single-key fields
v5  TRANSACTION_ABORTABLE               v6  share groups
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class FindCoordinatorRequest(Request, api=ApiKey.FIND_COORDINATOR):
    """The keys to look up. `key_type`: 0 group, 1 transactional id, 2 share group (v6)."""

    key: str = wire.string("0-3", default="")
    key_type: int = wire.int8("1+", default=0)
    coordinator_keys: Sequence[str] = wire.array(wire.string, "4+", default=())


class Coordinator(Struct):
    key: str = wire.string()
    node_id: int = wire.int32()
    host: str = wire.string()
    port: int = wire.int32()
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)


class FindCoordinatorResponse(Response, api=ApiKey.FIND_COORDINATOR):
    throttle_time_ms: int = wire.int32("1+", default=0)
    error_code: int = wire.int16("0-3", default=0)
    error_message: str | None = wire.string("1-3", nullable="1-3", default=None)
    node_id: int = wire.int32("0-3", default=-1)
    host: str = wire.string("0-3", default="")
    port: int = wire.int32("0-3", default=-1)
    coordinators: Sequence[Coordinator] = wire.array(Coordinator, "4+", default=())

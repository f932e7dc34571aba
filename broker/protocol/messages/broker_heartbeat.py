"""BrokerHeartbeat: a broker says that it lives, and hears what it is to do (KIP-631).

v1  log folders that failed (KIP-858)    v2  log folders that take no new replicas (KIP-1066)
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class BrokerHeartbeatRequest(Request, api=ApiKey.BROKER_HEARTBEAT):
    """`current_metadata_offset` is that of the last record that the broker applied."""

    broker_id: int = wire.int32()
    broker_epoch: int = wire.int64(default=-1)
    current_metadata_offset: int = wire.int64()
    want_fence: bool = wire.boolean()
    want_shut_down: bool = wire.boolean()
    offline_log_dirs: Sequence[uuid.UUID] = wire.array(wire.uuid_, "1+", tag=0, default=())
    cordoned_log_dirs: Sequence[uuid.UUID] | None = wire.array(
        wire.uuid_, "2+", nullable="2+", tag=1, default=None
    )


class BrokerHeartbeatResponse(Response, api=ApiKey.BROKER_HEARTBEAT):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    is_caught_up: bool = wire.boolean(default=False)
    is_fenced: bool = wire.boolean(default=True)
    should_shut_down: bool = wire.boolean(default=False)

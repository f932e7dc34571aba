"""UnregisterBroker: removes a broker from the cluster. Flexible from v0."""

from __future__ import annotations

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class UnregisterBrokerRequest(Request, api=ApiKey.UNREGISTER_BROKER):
    broker_id: int = wire.int32()


class UnregisterBrokerResponse(Response, api=ApiKey.UNREGISTER_BROKER):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)

"""ControllerRegistration: a controller process tells its addresses and features (KIP-919)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    string,
    uint16,
    uuid_,
    wire,
)


class ControllerListener(Struct):
    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)
    security_protocol: int = wire(int16)


class ControllerFeatureRange(Struct):
    name: str = wire(string)
    min_supported_version: int = wire(int16)
    max_supported_version: int = wire(int16)


class ControllerRegistrationRequest(Request, api=ApiKey.CONTROLLER_REGISTRATION):
    controller_id: int = wire(int32)
    incarnation_id: uuid.UUID = wire(uuid_)
    zk_migration_ready: bool = wire(boolean, default=False)
    listeners: Sequence[ControllerListener] = wire(array(ControllerListener))
    features: Sequence[ControllerFeatureRange] = wire(array(ControllerFeatureRange))


class ControllerRegistrationResponse(Response, api=ApiKey.CONTROLLER_REGISTRATION):
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16, default=0)
    error_message: str | None = wire(string, nullable="0+", default=None)

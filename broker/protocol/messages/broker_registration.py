"""BrokerRegistration: a broker process tells the controller that it is there (KIP-631).

v1  brokers under ZooKeeper    v3  the epoch before a clean stop (KIP-966)
v2  log folders (KIP-858)      v4  features of minimum 0 (before, a broker leaves them out)
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class RegisteringListener(Struct):
    """An address of the broker; `security_protocol` is Kafka's number of it."""

    name: str = wire.string()
    host: str = wire.string()
    port: int = wire.uint16()
    security_protocol: int = wire.int16()


class RegisteringFeature(Struct):
    """The levels of a feature that the process knows."""

    name: str = wire.string()
    min_supported_version: int = wire.int16()
    max_supported_version: int = wire.int16()


class BrokerRegistrationRequest(Request, api=ApiKey.BROKER_REGISTRATION):
    """Each run of a process has its own `incarnation_id`."""

    broker_id: int = wire.int32()
    cluster_id: str = wire.string()
    incarnation_id: uuid.UUID = wire.uuid_()
    listeners: Sequence[RegisteringListener] = wire.array(RegisteringListener)
    features: Sequence[RegisteringFeature] = wire.array(RegisteringFeature)
    rack: str | None = wire.string(nullable="0+", default=None)
    is_migrating_zk_broker: bool = wire.boolean("1+", default=False)
    log_dirs: Sequence[uuid.UUID] = wire.array(wire.uuid_, "2+", default=())
    previous_broker_epoch: int = wire.int64("3+", default=-1)


class BrokerRegistrationResponse(Response, api=ApiKey.BROKER_REGISTRATION):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    broker_epoch: int = wire.int64(default=-1)

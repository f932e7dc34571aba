"""InitProducerId: an id and epoch for an idempotent or transactional producer.

v2  flexible    v3  the producer sends its current id and epoch (KIP-360)
v4  PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH    v5  TRANSACTION_ABORTABLE
"""

from __future__ import annotations

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class InitProducerIdRequest(Request, api=ApiKey.INIT_PRODUCER_ID):
    """One producer; without a `transactional_id` it is idempotent only."""

    transactional_id: str | None = wire.string(nullable="0+", default=None)
    transaction_timeout_ms: int = wire.int32()
    producer_id: int = wire.int64("3+", default=-1)
    producer_epoch: int = wire.int16("3+", default=-1)


class InitProducerIdResponse(Response, api=ApiKey.INIT_PRODUCER_ID):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    producer_id: int = wire.int64(default=-1)
    producer_epoch: int = wire.int16(default=-1)

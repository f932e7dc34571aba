"""AllocateProducerIds: a block of producer ids for one broker (KIP-730)."""

from __future__ import annotations

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class AllocateProducerIdsRequest(Request, api=ApiKey.ALLOCATE_PRODUCER_IDS):
    broker_id: int = wire.int32()
    broker_epoch: int = wire.int64(default=-1)


class AllocateProducerIdsResponse(Response, api=ApiKey.ALLOCATE_PRODUCER_IDS):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    producer_id_start: int = wire.int64(default=0)
    producer_id_len: int = wire.int32(default=0)

"""AddOffsetsToTxn: a producer adds the offsets of a group to its transaction.

v2  PRODUCER_FENCED    v3  flexible    v4  TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class AddOffsetsToTxnRequest(Request, api=ApiKey.ADD_OFFSETS_TO_TXN):
    transactional_id: str = wire.string()
    producer_id: int = wire.int64()
    producer_epoch: int = wire.int16()
    group_id: str = wire.string()


class AddOffsetsToTxnResponse(Response, api=ApiKey.ADD_OFFSETS_TO_TXN):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)

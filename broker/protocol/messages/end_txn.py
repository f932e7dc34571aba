"""EndTxn: a producer commits or aborts its transaction.

v2  PRODUCER_FENCED    v3  flexible    v4  TRANSACTION_ABORTABLE    v5  a new epoch at each end,
in the response (KIP-890)
"""

from __future__ import annotations

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class EndTxnRequest(Request, api=ApiKey.END_TXN):
    """The end of one transaction; `committed` False aborts it."""

    transactional_id: str = wire.string()
    producer_id: int = wire.int64()
    producer_epoch: int = wire.int16()
    committed: bool = wire.boolean()


class EndTxnResponse(Response, api=ApiKey.END_TXN):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    producer_id: int = wire.int64("5+", default=-1)
    producer_epoch: int = wire.int16("5+", default=-1)

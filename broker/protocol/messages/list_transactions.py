"""ListTransactions: the transactional ids of a broker (KIP-664).

v1  filter by duration (KIP-994)    v2  filter by a pattern of the id (KIP-1152)
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class ListTransactionsRequest(Request, api=ApiKey.LIST_TRANSACTIONS):
    """The filters. An empty one matches all ids; `duration_filter` is in ms, -1 for any."""

    state_filters: Sequence[str] = wire.array(wire.string)
    producer_id_filters: Sequence[int] = wire.array(wire.int64)
    duration_filter: int = wire.int64("1+", default=-1)
    transactional_id_pattern: str | None = wire.string("2+", nullable="2+", default=None)


class ListedTransaction(Struct):
    transactional_id: str = wire.string()
    producer_id: int = wire.int64()
    transaction_state: str = wire.string()


class ListTransactionsResponse(Response, api=ApiKey.LIST_TRANSACTIONS):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    unknown_state_filters: Sequence[str] = wire.array(wire.string, default=())
    transaction_states: Sequence[ListedTransaction] = wire.array(ListedTransaction, default=())

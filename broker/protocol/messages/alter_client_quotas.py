"""AlterClientQuotas: sets and removes quotas. Flexible from v1."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class EntityData(Struct):
    """One part of an entity; `entity_name` None is the default entity of its type."""

    entity_type: str = wire.string()
    entity_name: str | None = wire.string(nullable="0+")


class QuotaOperation(Struct):
    """One quota to set, or to remove: its `value` is ignored then."""

    key: str = wire.string()
    value: float = wire.float64(default=0.0)
    remove: bool = wire.boolean(default=False)


class AlterQuotaEntry(Struct):
    entity: Sequence[EntityData] = wire.array(EntityData)
    ops: Sequence[QuotaOperation] = wire.array(QuotaOperation)


class AlterClientQuotasRequest(Request, api=ApiKey.ALTER_CLIENT_QUOTAS):
    entries: Sequence[AlterQuotaEntry] = wire.array(AlterQuotaEntry)
    validate_only: bool = wire.boolean(default=False)


class AlterQuotaResult(Struct):
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    entity: Sequence[EntityData] = wire.array(EntityData)


class AlterClientQuotasResponse(Response, api=ApiKey.ALTER_CLIENT_QUOTAS):
    throttle_time_ms: int = wire.int32(default=0)
    entries: Sequence[AlterQuotaResult] = wire.array(AlterQuotaResult)

"""DescribeClientQuotas: quotas by user, client id, address and defaults. Flexible from v1."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class QuotaMatchType(IntEnum):
    """The match of a component: a name, the default entity, or any entity of the type."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class QuotaComponent(Struct):
    """One condition of the filter; `match` is None unless the match is exact."""

    entity_type: str = wire.string()
    match_type: int = wire.int8()
    match: str | None = wire.string(nullable="0+", default=None)


class DescribeClientQuotasRequest(Request, api=ApiKey.DESCRIBE_CLIENT_QUOTAS):
    """The filter; `strict` excludes entities with other types than the requested ones."""

    components: Sequence[QuotaComponent] = wire.array(QuotaComponent)
    strict: bool = wire.boolean(default=False)


class DescribedQuotaEntity(Struct):
    """One part of an entity; `entity_name` None is the default entity of its type."""

    entity_type: str = wire.string()
    entity_name: str | None = wire.string(nullable="0+")


class QuotaValue(Struct):
    key: str = wire.string()
    value: float = wire.float64()


class DescribedQuota(Struct):
    entity: Sequence[DescribedQuotaEntity] = wire.array(DescribedQuotaEntity)
    quotas: Sequence[QuotaValue] = wire.array(QuotaValue)


class DescribeClientQuotasResponse(Response, api=ApiKey.DESCRIBE_CLIENT_QUOTAS):
    """The matching quotas; `entries` is None with an error."""

    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    entries: Sequence[DescribedQuota] | None = wire.array(DescribedQuota, nullable="0+")

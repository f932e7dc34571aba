"""DescribeDelegationToken. Flexible from v2; 3 has who asked for a token (KIP-373)."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class DescribeDelegationTokenOwner(Struct):
    principal_type: str = wire.string()
    principal_name: str = wire.string()


class DescribeDelegationTokenRequest(Request, api=ApiKey.DESCRIBE_DELEGATION_TOKEN):
    owners: Sequence[DescribeDelegationTokenOwner] | None = wire.array(
        DescribeDelegationTokenOwner, nullable="0+"
    )


class DescribedDelegationTokenRenewer(Struct):
    principal_type: str = wire.string()
    principal_name: str = wire.string()


class DescribedDelegationToken(Struct):
    principal_type: str = wire.string()
    principal_name: str = wire.string()
    token_requester_principal_type: str = wire.string(versions="3+", default="")
    token_requester_principal_name: str = wire.string(versions="3+", default="")
    issue_timestamp: int = wire.int64()
    expiry_timestamp: int = wire.int64()
    max_timestamp: int = wire.int64()
    token_id: str = wire.string()
    hmac: bytes = wire.byte_string()
    renewers: Sequence[DescribedDelegationTokenRenewer] = wire.array(
        DescribedDelegationTokenRenewer
    )


class DescribeDelegationTokenResponse(Response, api=ApiKey.DESCRIBE_DELEGATION_TOKEN):
    error_code: int = wire.int16(default=0)
    tokens: Sequence[DescribedDelegationToken] = wire.array(DescribedDelegationToken, default=())
    throttle_time_ms: int = wire.int32(default=0)

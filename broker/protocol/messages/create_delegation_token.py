"""CreateDelegationToken. Flexible from v2; 3 for another owner (KIP-373)."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class CreatableRenewers(Struct):
    principal_type: str = wire.string()
    principal_name: str = wire.string()


class CreateDelegationTokenRequest(Request, api=ApiKey.CREATE_DELEGATION_TOKEN):
    owner_principal_type: str | None = wire.string(versions="3+", nullable="3+", default=None)
    owner_principal_name: str | None = wire.string(versions="3+", nullable="3+", default=None)
    renewers: Sequence[CreatableRenewers] = wire.array(CreatableRenewers)
    max_lifetime_ms: int = wire.int64()


class CreateDelegationTokenResponse(Response, api=ApiKey.CREATE_DELEGATION_TOKEN):
    error_code: int = wire.int16(default=0)
    principal_type: str = wire.string()
    principal_name: str = wire.string()
    token_requester_principal_type: str = wire.string(versions="3+", default="")
    token_requester_principal_name: str = wire.string(versions="3+", default="")
    issue_timestamp_ms: int = wire.int64(default=-1)
    expiry_timestamp_ms: int = wire.int64(default=-1)
    max_timestamp_ms: int = wire.int64(default=-1)
    token_id: str = wire.string(default="")
    hmac: bytes = wire.byte_string(default=b"")
    throttle_time_ms: int = wire.int32(default=0)

"""RenewDelegationToken. Flexible from v2."""

from __future__ import annotations

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class RenewDelegationTokenRequest(Request, api=ApiKey.RENEW_DELEGATION_TOKEN):
    hmac: bytes = wire.byte_string()
    renew_period_ms: int = wire.int64()


class RenewDelegationTokenResponse(Response, api=ApiKey.RENEW_DELEGATION_TOKEN):
    error_code: int = wire.int16(default=0)
    expiry_timestamp_ms: int = wire.int64(default=-1)
    throttle_time_ms: int = wire.int32(default=0)

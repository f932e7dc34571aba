"""SaslAuthenticate: exchanges the messages of a SASL mechanism. Flexible from v2."""

from __future__ import annotations

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class SaslAuthenticateRequest(Request, api=ApiKey.SASL_AUTHENTICATE):
    auth_bytes: bytes = wire.byte_string()


class SaslAuthenticateResponse(Response, api=ApiKey.SASL_AUTHENTICATE):
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string(nullable="0+", default=None)
    auth_bytes: bytes = wire.byte_string(default=b"")
    # How long the client may use the connection before it re-authenticates; 0 is unlimited.
    session_lifetime_ms: int = wire.int64("1+", default=0)

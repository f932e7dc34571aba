"""SaslHandshake: the client chooses a SASL mechanism. Never flexible.

After version 0 the bytes of the mechanism follow in frames without any header; after version 1 in
SaslAuthenticate requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class SaslHandshakeRequest(Request, api=ApiKey.SASL_HANDSHAKE):
    mechanism: str = wire.string()


class SaslHandshakeResponse(Response, api=ApiKey.SASL_HANDSHAKE):
    error_code: int = wire.int16(default=0)
    mechanisms: Sequence[str] = wire.array(wire.string, default=())

"""Envelope: a broker forwards a request of a client to the controller (KIP-590)."""

from __future__ import annotations

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response


class EnvelopeRequest(Request, api=ApiKey.ENVELOPE):
    """The request with its header, the principal as Kafka's DefaultPrincipalData, the address.

    The address is that of the client, in 4 or 16 bytes.
    """

    request_data: bytes = wire.byte_string()
    request_principal: bytes | None = wire.byte_string(nullable="0+", default=None)
    client_host_address: bytes = wire.byte_string()


class EnvelopeResponse(Response, api=ApiKey.ENVELOPE):
    """The answer with its header, in the client's version; none if there is an error."""

    response_data: bytes | None = wire.byte_string(nullable="0+", default=None)
    error_code: int = wire.int16(default=0)

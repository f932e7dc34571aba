"""Envelope: a broker hands on the request of a client, and gets its answer (KIP-590).

The broker has checked who the client is, and says so; it needs the right to act for the cluster.
The request is judged as that of the client, from its address, and answered in its version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from ipaddress import ip_address
from typing import Final

from strandline.broker.authorization.authorizer import EVERY_RIGHT, Authorizer
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.network.responses import CloseConnectionError
from strandline.broker.protocol.codec.codec import decode_request, encode, join, request_class
from strandline.broker.protocol.formats.principal_data import read_principal
from strandline.broker.protocol.header import (
    decode_request_header,
    frame_response,
    routes_of,
)
from strandline.broker.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from strandline.broker.protocol.schema.api import EVERY_SPEC, ApiKey
from strandline.broker.protocol.schema.errors import (
    ErrorCode,
    MalformedRequest,
    UnsupportedVersion,
)
from strandline.broker.security.identity import ClientIdentity, java_address

# In front of a frame; an envelope has the rest.
_LENGTH_BYTES: Final = 4


class EnvelopeHandler:
    """Handler of envelopes around requests that the controller decides on."""

    def __init__(self, handlers: Mapping[ApiKey, Handler], authorizer: Authorizer | None) -> None:
        """`handlers` answer what may be in an envelope."""
        self._handlers = handlers
        self._routes = routes_of(EVERY_SPEC[key] for key in handlers)
        self._authorizer = authorizer

    async def handle(self, request: EnvelopeRequest, context: RequestContext) -> EnvelopeResponse:
        try:
            caller = _caller(request, context.caller.listener)
        except (MalformedRequest, ValueError):
            return EnvelopeResponse(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
        data = memoryview(request.request_data)
        try:
            header = decode_request_header(data, self._routes)
            inner = decode_request(
                request_class(header.api_key), header.api_version, data[header.body_position :]
            )
        except UnsupportedVersion:
            return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        except MalformedRequest:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        access = EVERY_RIGHT
        if self._authorizer is not None:
            access = self._authorizer.access(caller.principal, caller.address)
        forwarded = RequestContext(
            api_version=header.api_version,
            client_id=header.client_id,
            caller=caller,
            access=access,
        )
        try:
            response = self._handlers[header.api_key](inner, forwarded)
            if isinstance(response, Awaitable):
                response = await response
        except CloseConnectionError:
            # Not the connection of the broker, which has requests of other clients.
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        body = encode(response, header.api_version)
        framed = frame_response(header.api_key, header.api_version, header.correlation_id, body)
        return EnvelopeResponse(response_data=join(framed)[_LENGTH_BYTES:])


def _caller(request: EnvelopeRequest, listener: str) -> ClientIdentity:
    """Raises MalformedRequest, or ValueError."""
    if request.request_principal is None:
        raise MalformedRequest("an envelope without a principal")
    principal = read_principal(memoryview(request.request_principal))
    address = java_address(str(ip_address(bytes(request.client_host_address))))
    return ClientIdentity(
        user=principal.name,
        principal_type=principal.principal_type,
        address=address,
        listener=listener,
    )

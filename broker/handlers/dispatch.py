"""From a frame to its handler and back to a frame.

Produce and Fetch are called directly and may answer without a coroutine. Everything else is a
function from request to response, plain or `async`, found by API key.

An unknown API or version closes the connection: its answer's layout is what could not be agreed
on. ApiVersions is the exception, see `api_versions.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from strandline.broker.answers import Answer, CloseConnectionError, Parts
from strandline.broker.handlers.api_versions import api_versions, unsupported_api_versions
from strandline.broker.handlers.fetch import FetchHandler
from strandline.broker.handlers.produce import ProduceHandler
from strandline.broker.handlers.services import RequestContext
from strandline.broker.protocol.api import ApiKey
from strandline.broker.protocol.codec import decode_request, encode_response
from strandline.broker.protocol.errors import MalformedRequest, UnsupportedVersion
from strandline.broker.protocol.fetch import decode_fetch_request
from strandline.broker.protocol.header import (
    RequestHeader,
    decode_request_header,
    frame_response,
)
from strandline.broker.protocol.produce import decode_produce_request
from strandline.broker.protocol.schema import Response

log = logging.getLogger(__name__)

# A handler takes the request class of its API; the table below is where the two are matched.
Handler: TypeAlias = Callable[..., Response | Awaitable[Response]]


class Dispatcher:
    """Answers frames; the server's request handler."""

    def __init__(
        self, produce: ProduceHandler, fetch: FetchHandler, others: Mapping[ApiKey, Handler]
    ) -> None:
        self._produce = produce
        self._fetch = fetch
        self._others: dict[ApiKey, Handler] = {ApiKey.API_VERSIONS: api_versions, **others}

    def handle(self, frame: memoryview, peer: str) -> Answer:
        """See `network.connection.RequestHandler`."""
        try:
            header = decode_request_header(frame)
            return self._dispatch(header, frame[header.body_position :], peer)
        except MalformedRequest as error:
            raise CloseConnectionError(f"malformed request: {error}") from error
        except UnsupportedVersion as error:
            if error.api_key == ApiKey.API_VERSIONS:
                body = encode_response(unsupported_api_versions(), 0)
                return _framed(ApiKey.API_VERSIONS, 0, error.correlation_id, body)
            raise CloseConnectionError(str(error)) from error

    def _dispatch(self, header: RequestHeader, body: memoryview, peer: str) -> Answer:
        version = header.api_version
        if header.api_key is ApiKey.PRODUCE:
            return self._produce.handle(decode_produce_request(version, body), header)
        if header.api_key is ApiKey.FETCH:
            return self._fetch.handle(decode_fetch_request(version, body), header)
        context = RequestContext(api_version=version, client_id=header.client_id, peer=peer)
        handler = self._others.get(header.api_key)
        if handler is None:
            raise CloseConnectionError(f"{header.api_key.name} is not served")
        response = handler(decode_request(header.api_key, version, body), context)
        if isinstance(response, Response):
            return _framed(
                header.api_key, version, header.correlation_id, encode_response(response, version)
            )
        return self._encode_later(header, response)

    async def _encode_later(self, header: RequestHeader, response: Awaitable[Response]) -> Parts:
        body = encode_response(await response, header.api_version)
        return _framed(header.api_key, header.api_version, header.correlation_id, body)


def _framed(api_key: int, version: int, correlation_id: int, body: Parts) -> Parts:
    return frame_response(api_key, version, correlation_id, body)

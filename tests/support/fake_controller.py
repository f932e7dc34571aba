"""A controller whose answers a test decides: real frames on a real socket.

async with FakeController({ApiKey.FETCH: answer}) as controller:
    ... controller.address, controller.requests
"""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from strandline.broker.peers.address import Address
from strandline.broker.protocol.codec.codec import decode_request, encode, join, request_class
from strandline.broker.protocol.header import decode_request_header, frame_response, routes_of
from strandline.broker.protocol.messages.api_versions import ApiVersionRange, ApiVersionsResponse
from strandline.broker.protocol.schema.api import EVERY_SPEC, ApiKey
from strandline.broker.protocol.schema.schema import Request, Response

Answer: TypeAlias = Callable[[Any], Response | Awaitable[Response]]
ROUTES = routes_of(EVERY_SPEC.values())


class FakeController:
    """Answers by API key; a request without an answer ends its connection."""

    def __init__(self, answers: Mapping[ApiKey, Answer]) -> None:
        self.answers = dict(answers)
        # What it says that it takes.
        self.ranges = list(RANGES)
        self.requests: list[Request] = []
        # Since the beginning.
        self.connection_count = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> Address:
        assert self._server is not None
        return Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    def of(self, kind: type[Request]) -> list[Any]:
        """The requests of one kind that came, in their order."""
        return [one for one in self.requests if isinstance(one, kind)]

    async def __aenter__(self) -> FakeController:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connection_count += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                parts = await self._answer(memoryview(await reader.readexactly(size)))
                writer.write(parts)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, KeyError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, frame: memoryview) -> bytes:
        header = decode_request_header(frame, ROUTES)
        kind = request_class(header.api_key)
        request = decode_request(kind, header.api_version, frame[header.body_position :])
        if header.api_key is ApiKey.API_VERSIONS:
            response: Any = ApiVersionsResponse(api_keys=self.ranges)
        else:
            self.requests.append(request)
            response = self.answers[header.api_key](request)
            if inspect.isawaitable(response):
                response = await response
        body = encode(response, header.api_version)
        return join(frame_response(header.api_key, header.api_version, header.correlation_id, body))


RANGES = [
    ApiVersionRange(
        api_key=spec.key, min_version=spec.supported.lowest, max_version=spec.supported.highest
    )
    for spec in EVERY_SPEC.values()
]

"""Answers request frames on the listeners of a controller.

What it serves is a table (`ON_CONTROLLERS`): the requests of brokers among each other, and those of
clients that change the metadata, which also come in envelopes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from concurrent.futures import Executor
from functools import partial

from strandline.broker.authorization.authorizer import EVERY_RIGHT, Authorizer
from strandline.broker.handlers.dispatch.api_versions import (
    answer_unreadable,
    api_versions,
    ranges_of,
)
from strandline.broker.handlers.dispatch.dispatch import DECODED_AT_ONCE_BYTES_MAX, Handler
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.network.responses import Answer, DeferredAnswer, Parts
from strandline.broker.protocol.codec.codec import decode_request, encode, request_class
from strandline.broker.protocol.header import (
    RequestHeader,
    Routes,
    decode_request_header,
    frame_response,
    routes_of,
)
from strandline.broker.protocol.schema.api import EVERY_SPEC, ON_CONTROLLERS, ApiKey
from strandline.broker.protocol.schema.errors import MalformedRequest, UnsupportedVersion
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.broker.security.identity import ANONYMOUS_CLIENT, ClientIdentity
from strandline.broker.telemetry.requests import ApiTraffic, count_errors
from strandline.storage.concurrency.tasks import RunningTasks, eager_start


class ControllerDispatcher:
    """The request handler of the listeners of a controller."""

    def __init__(
        self, services: NodeServices, handlers: Mapping[ApiKey, Handler], *, decoding: Executor
    ) -> None:
        """`handlers` are those of what is served beside ApiVersions; `decoding` has one thread."""
        assert {ApiKey.API_VERSIONS, *handlers} == ON_CONTROLLERS
        specs = [EVERY_SPEC[key] for key in sorted(ON_CONTROLLERS)]
        self._handlers: dict[ApiKey, Handler] = {
            ApiKey.API_VERSIONS: partial(api_versions, services, ranges=ranges_of(specs)),
            **handlers,
        }
        self._routes: Routes = routes_of(specs)
        self._services = services
        self._authorizer: Authorizer | None = services.authorizer
        self._traffic = services.traffic
        self._decoding = decoding
        self._now_s = services.clock.monotonic_s
        self._running = RunningTasks()
        self.run = self._running.run

    def traffic_of(self, api_key: ApiKey) -> ApiTraffic:
        """Returns the counters of one API, for requests that a gate answers."""
        return self._traffic.apis[api_key]

    def handle(
        self,
        frame: memoryview,
        peer: str,
        received_s: float,
        caller: ClientIdentity = ANONYMOUS_CLIENT,
    ) -> Answer:
        """Handles a frame as RequestHandler does; the client may be authenticated as `caller`."""
        started_s = self._now_s()
        try:
            header = decode_request_header(frame, self._routes)
            self.traffic_of(header.api_key).started(
                header.api_version, len(frame), started_s - received_s
            )
            context = self._context(header, caller, peer)
            body = frame[header.body_position :]
            if len(body) > DECODED_AT_ONCE_BYTES_MAX:
                return self._handle_large(header, bytes(body), context, started_s)
            request = decode_request(request_class(header.api_key), header.api_version, body)
        except (MalformedRequest, UnsupportedVersion) as error:
            return answer_unreadable(error, self._traffic)
        return self._dispatch(header, request, context, started_s)

    def _context(self, header: RequestHeader, caller: ClientIdentity, peer: str) -> RequestContext:
        access = EVERY_RIGHT
        if self._authorizer is not None:
            access = self._authorizer.access(caller.principal, caller.address)
        return RequestContext(
            api_version=header.api_version,
            client_id=header.client_id,
            caller=caller,
            access=access,
            peer=peer,
        )

    async def _handle_large(
        self, header: RequestHeader, body: bytes, context: RequestContext, started_s: float
    ) -> Parts | None:
        loop = asyncio.get_running_loop()
        try:
            request = await loop.run_in_executor(
                self._decoding,
                decode_request,
                request_class(header.api_key),
                header.api_version,
                memoryview(body),
            )
        except MalformedRequest as error:
            return answer_unreadable(error, self._traffic)
        response = self._handlers[header.api_key](request, context)
        if isinstance(response, Awaitable):
            response = await response
        return self._finish(header, response, started_s)

    def _dispatch(
        self, header: RequestHeader, request: Request, context: RequestContext, started_s: float
    ) -> Answer:
        response = self._handlers[header.api_key](request, context)
        if isinstance(response, Response):
            return self._finish(header, response, started_s)
        task = eager_start(response)
        if task.done():
            return self._finish(header, task.result(), started_s)
        late = DeferredAnswer()
        late.cancel_hook = partial(_cancel, task)
        self._running.add(task)
        task.add_done_callback(partial(self._finish_late, late, header, started_s))
        return late

    def _finish_late(
        self,
        late: DeferredAnswer,
        header: RequestHeader,
        started_s: float,
        task: asyncio.Task[Response],
    ) -> None:
        if task.cancelled():
            return  # The client is gone, or the controller is stopping.
        try:
            parts = self._finish(header, task.result(), started_s)
        except Exception as error:
            late.fail(error)
        else:
            late.complete(parts)

    def _finish(self, header: RequestHeader, response: Response, started_s: float) -> Parts:
        traffic = self.traffic_of(header.api_key)
        count_errors(response, traffic)
        body = encode(response, header.api_version)
        parts = frame_response(header.api_key, header.api_version, header.correlation_id, body)
        traffic.answered(parts, self._now_s() - started_s)
        return parts


def _cancel(task: asyncio.Task[Response]) -> None:
    task.cancel()

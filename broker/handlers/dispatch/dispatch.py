"""Dispatches request frames to handlers and encodes their responses.

Produce and Fetch are called directly and may answer without a coroutine. Everything else is a
function from request to response, plain or `async`, found by API key.

An unknown API or version closes the connection: client and broker share no layout for its answer.
ApiVersions is the exception, see `api_versions.py`.

A large request without records is decoded in a thread: two MiB of the smallest elements take a
second, in which no other client would be served. Its handler bounds the number of items
(`limits.py`).

The dispatcher also counts requests, and throttles a client whose requests exceed its
`request_percentage` of the broker's time. Produce and Fetch have further quotas and enforce all of
theirs themselves; other handlers that find a quota exceeded set `throttle_time_ms`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Protocol, TypeAlias, TypeVar, cast

from strandline.broker.authorization.authorizer import EVERY_RIGHT, Access
from strandline.broker.handlers.dispatch.api_versions import answer_unreadable, api_versions
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.produce.produce import ProduceHandler
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.network.responses import (
    Answer,
    CloseConnectionError,
    DeferredAnswer,
    LateParts,
    Parts,
    ThrottledParts,
)
from strandline.broker.protocol.codec.codec import decode_request, encode, request_class
from strandline.broker.protocol.header import (
    RequestHeader,
    decode_request_header,
    frame_response,
)
from strandline.broker.protocol.messages.fetch import FetchRequest
from strandline.broker.protocol.messages.produce import ProduceRequest
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import MalformedRequest, UnsupportedVersion
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.broker.security.identity import ANONYMOUS, ANONYMOUS_CLIENT, ClientIdentity
from strandline.broker.telemetry.requests import ApiTraffic, count_errors
from strandline.storage.concurrency.tasks import RunningTasks, eager_start

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# A handler takes the request class of its API; the table below matches the two.
Handler: TypeAlias = Callable[..., Response | Coroutine[object, None, Response]]

# The length field in front of a frame.
LENGTH_BYTES = 4
# Decoding takes half a microsecond per byte at worst; up to here that is 16 ms of the loop.
DECODED_AT_ONCE_BYTES_MAX = 32 * 1024
# Exceptions. A fetch of two thousand partitions takes 2 ms, and its client waits; on a busy machine
# a round trip to a thread takes as long. Of a produce the records are not decoded, and the rest is
# bounded by its elements.
DECODED_AT_ONCE_OTHERS: Mapping[ApiKey, int] = {
    ApiKey.FETCH: 64 * 1024,
    ApiKey.PRODUCE: sys.maxsize,
}
# The loop does not notice that the client of a large fetch is gone, so the wait is bounded.
LARGE_FETCH_WAIT_MS_MAX = 60_000


class RequestDispatcher(Protocol):
    """What answers the frames of all connections of a node."""

    def handle(
        self,
        frame: memoryview,
        peer: str,
        received_s: float,
        caller: ClientIdentity = ...,
    ) -> Answer:
        """As RequestHandler; the client may be authenticated as `caller`."""

    def traffic_of(self, api_key: ApiKey) -> ApiTraffic:
        """Returns the counters of one API."""


class Dispatcher:
    """Answers request frames; the server's request handler."""

    def __init__(
        self,
        services: Services,
        produce: ProduceHandler,
        fetch: FetchHandler,
        others: Mapping[ApiKey, Handler],
        *,
        decoding: Executor,
    ) -> None:
        """`decoding` has one thread, for large requests."""
        self._decoding = decoding
        self._produce = produce
        self._fetch = fetch
        self._others: dict[ApiKey, Handler] = {
            ApiKey.API_VERSIONS: partial(api_versions, services),
            **others,
        }
        self._quotas = services.quotas
        self._authorizer = services.authorizer
        self._traffic = services.traffic
        self._apis = services.traffic.apis
        self._now_s = services.clock.monotonic_s
        self._running = RunningTasks()
        self.run = self._running.run

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
            header = decode_request_header(frame)
            if caller.user is not ANONYMOUS:
                header = header._replace(user=caller.user)
            access = None
            if self._authorizer is not None:
                access = self._authorizer.access(caller.principal, caller.address)
            traffic = self._apis[header.api_key]
            size_bytes = len(frame) + LENGTH_BYTES
            traffic.started(header.api_version, size_bytes, started_s - received_s)
            body = frame[header.body_position :]
            if size_bytes > DECODED_AT_ONCE_BYTES_MAX and size_bytes > DECODED_AT_ONCE_OTHERS.get(
                header.api_key, 0
            ):
                return self._handle_large(header, body, peer, started_s, caller, access)
            answer: Answer
            if header.api_key is ApiKey.PRODUCE:
                produce = decode_request(ProduceRequest, header.api_version, body)
                answer = self._produce.handle(
                    produce, header, size_bytes, started_s, peer, access, caller.listener
                )
            elif header.api_key is ApiKey.FETCH:
                answer = self._fetch.handle_body(
                    body, header, peer, started_s, access, caller.listener
                )
            else:
                request = decode_request(request_class(header.api_key), header.api_version, body)
                return self._dispatch(header, request, peer, started_s, caller, access)
        except (MalformedRequest, UnsupportedVersion) as error:
            return answer_unreadable(error, self._traffic)
        return self._counted(answer, traffic, started_s)

    def traffic_of(self, api_key: ApiKey) -> ApiTraffic:
        """Returns the counters of one API, for requests that a gate answers."""
        return self._apis[api_key]

    # --- Produce and Fetch -------------------------------------------------------------------

    def _counted(self, answer: Answer, traffic: ApiTraffic, started_s: float) -> Answer:
        """Counts the answer, at once or when it is complete."""
        local_s = self._now_s() - started_s
        if isinstance(answer, list):
            traffic.answered(answer, local_s)
            if isinstance(answer, ThrottledParts):
                traffic.add_throttle(answer.throttle_ms)
        elif answer is None:
            traffic.answered((), local_s)
        elif isinstance(answer, DeferredAnswer):
            answer.watcher = partial(self._note_late, traffic, started_s, local_s)
        else:
            assert isinstance(answer, Awaitable), answer
            return self._count_later(answer, traffic, started_s, local_s)
        return answer

    def _note_late(
        self, traffic: ApiTraffic, started_s: float, local_s: float, parts: Parts, busy_s: float
    ) -> None:
        total_s = self._now_s() - started_s
        local_s = min(local_s + busy_s, total_s)
        traffic.answered_late(parts, local_s=local_s, remote_s=total_s - local_s)
        if isinstance(parts, ThrottledParts):
            traffic.add_throttle(parts.throttle_ms)

    async def _count_later(
        self,
        answer: Awaitable[Parts | LateParts | None],
        traffic: ApiTraffic,
        started_s: float,
        local_s: float,
    ) -> Parts | None:
        work = _Measured(answer.__await__(), self._now_s)
        parts = await work
        assert not isinstance(parts, LateParts), parts
        self._note_late(traffic, started_s, local_s, parts or (), work.busy_s)
        return parts

    # --- everything else ---------------------------------------------------------------------

    async def _handle_large(
        self,
        header: RequestHeader,
        body: memoryview,
        peer: str,
        started_s: float,
        caller: ClientIdentity,
        access: Access | None,
    ) -> Parts | LateParts | None:
        """Decodes in a thread; the frame is in use until then, and so `body` stays valid."""
        loop = asyncio.get_running_loop()
        try:
            request = await loop.run_in_executor(
                self._decoding,
                decode_request,
                request_class(header.api_key),
                header.api_version,
                body,
            )
        except MalformedRequest as error:
            return answer_unreadable(error, self._traffic)
        answer: Answer
        if isinstance(request, FetchRequest):
            wait_ms = min(request.max_wait_ms, LARGE_FETCH_WAIT_MS_MAX)
            request.max_wait_ms = wait_ms  # type: ignore[misc]  # not shared yet
            answer = self._fetch.handle(request, header, self._now_s(), access, caller.listener)
            answer = self._counted(answer, self._apis[header.api_key], started_s)
        else:
            answer = self._dispatch(header, request, peer, started_s, caller, access)
        if isinstance(answer, DeferredAnswer):
            coming: asyncio.Future[Parts] = loop.create_future()
            answer.attach(coming.set_result, coming.set_exception)
            return LateParts(coming)
        return await answer if isinstance(answer, Awaitable) else answer

    def _dispatch(
        self,
        header: RequestHeader,
        request: Request,
        peer: str,
        started_s: float,
        caller: ClientIdentity,
        access: Access | None,
    ) -> Answer:
        version = header.api_version
        context = RequestContext(
            api_version=version,
            client_id=header.client_id,
            caller=caller,
            access=access or EVERY_RIGHT,
        )
        handler = self._others.get(header.api_key)
        if handler is None:
            raise CloseConnectionError(f"{header.api_key.name} is not served")
        response = handler(request, context)
        if isinstance(response, Response):
            return self._finish(header, response, self._now_s() - started_s, 0.0)
        work = _Measured(response, self._now_s)
        task = eager_start(work)
        if task.done():
            return self._finish(header, task.result(), self._now_s() - started_s, 0.0)
        overhead_s = self._now_s() - started_s - work.busy_s
        late = DeferredAnswer()
        self._running.add(task)
        task.add_done_callback(
            partial(self._finish_late, late, header, work, started_s, overhead_s)
        )
        return late

    def _finish_late(
        self,
        late: DeferredAnswer,
        header: RequestHeader,
        work: _Measured[Response],
        started_s: float,
        overhead_s: float,
        task: asyncio.Task[Response],
    ) -> None:
        if task.cancelled():
            return  # The broker is stopping.
        local_s = overhead_s + work.busy_s
        remote_s = self._now_s() - started_s - local_s
        try:
            parts = self._finish(header, task.result(), local_s, remote_s)
        except Exception as error:
            late.fail(error)
        else:
            late.complete(parts)

    def _finish(
        self, header: RequestHeader, response: Response, local_s: float, remote_s: float
    ) -> Parts:
        """Encodes and counts the response; throttles the client if it exceeded its time quota."""
        traffic = self._apis[header.api_key]
        throttle_ms: int = getattr(response, "throttle_time_ms", 0)
        if self._quotas.is_active:
            asked_ms = self._quotas.requested(header.user, header.client_id, local_s)
            if asked_ms > throttle_ms:
                throttle_ms = asked_ms
                if hasattr(response, "throttle_time_ms"):
                    response.throttle_time_ms = throttle_ms
        began_s = self._now_s()
        count_errors(response, traffic)
        body = encode(response, header.api_version)
        parts = frame_response(header.api_key, header.api_version, header.correlation_id, body)
        local_s += self._now_s() - began_s
        if remote_s > 0:
            traffic.answered_late(parts, local_s=local_s, remote_s=remote_s)
        else:
            traffic.answered(parts, local_s)
        if throttle_ms > 0:
            traffic.add_throttle(throttle_ms)
            return ThrottledParts(parts, throttle_ms)
        return parts


class _Measured(Coroutine[object, None, _T]):
    """A coroutine whose time on the loop is measured: its steps, without its waits."""

    __slots__ = ("_now_s", "_steps", "busy_s")

    def __init__(
        self,
        work: Generator[object, None, _T] | Coroutine[object, None, _T],
        now_s: Callable[[], float],
    ) -> None:
        self._steps = work
        self._now_s = now_s
        self.busy_s = 0.0

    def send(self, value: None) -> object:
        began_s = self._now_s()
        try:
            return self._steps.send(value)
        finally:
            self.busy_s += self._now_s() - began_s

    def throw(self, error: BaseException) -> object:  # type: ignore[override]  # as asyncio calls it
        began_s = self._now_s()
        try:
            return self._steps.throw(error)
        finally:
            self.busy_s += self._now_s() - began_s

    def close(self) -> None:
        self._steps.close()

    def __await__(self) -> Generator[object, None, _T]:
        return cast("Generator[object, None, _T]", self)  # which has what `await` calls

    def __next__(self) -> object:
        return self.send(None)

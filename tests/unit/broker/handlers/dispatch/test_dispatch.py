"""Handlers that wait are tasks of the dispatcher from their first step on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeAlias, cast

import pytest

from strandline.broker.handlers.dispatch.dispatch import Dispatcher
from strandline.broker.network.responses import (
    Answer,
    CloseConnectionError,
    DeferredAnswer,
    Parts,
)
from strandline.broker.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from strandline.broker.protocol.schema.api import ApiKey
from tests.support.wire import encode_request_header
from tests.unit.broker.handlers.fetch.fetch_rig import services_over

VERSION = 2
Handle: TypeAlias = Callable[[ListGroupsRequest, object], Coroutine[object, object, object]]


def dispatcher_of(handle: Handle) -> Dispatcher:
    """Serves one API; made within a running loop."""
    none = cast("None", None)
    return Dispatcher(
        services_over(),
        none,  # type: ignore[arg-type]
        none,  # type: ignore[arg-type]
        {ApiKey.LIST_GROUPS: handle},  # type: ignore[dict-item]
        decoding=none,  # type: ignore[arg-type]
    )


def ask(dispatcher: Dispatcher) -> Answer:
    header = encode_request_header(ApiKey.LIST_GROUPS, VERSION, 7, "client")
    return dispatcher.handle(memoryview(header), "peer", 0.0)


async def found(answer: Answer) -> Parts:
    """What a connection gets of a late answer."""
    assert isinstance(answer, DeferredAnswer)
    coming: asyncio.Future[Parts] = asyncio.get_running_loop().create_future()
    answer.attach(coming.set_result, coming.set_exception)
    return await asyncio.wait_for(coming, 60)


def empty() -> ListGroupsResponse:
    return ListGroupsResponse(error_code=0, groups=[])


def test_a_handler_that_waits_for_nothing_is_answered_at_once() -> None:
    async def handle(_request: object, _context: object) -> ListGroupsResponse:
        return empty()

    async def main() -> None:
        assert isinstance(ask(dispatcher_of(handle)), list)

    asyncio.run(main())


def test_a_time_limit_is_the_first_thing_that_a_handler_may_wait_within() -> None:
    """A connection calls from no task."""

    async def handle(_request: object, _context: object) -> ListGroupsResponse:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        return empty()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        dispatcher = dispatcher_of(handle)
        asked: asyncio.Future[Answer] = loop.create_future()
        loop.call_soon(lambda: asked.set_result(ask(dispatcher)))
        assert await found(await asked)

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, 1])
@pytest.mark.parametrize("kind", [CloseConnectionError, ValueError])
def test_what_a_handler_raises_is_told_at_once_or_late(turns: int, kind: type[Exception]) -> None:
    async def handle(_request: object, _context: object) -> ListGroupsResponse:
        for _ in range(turns):
            await asyncio.sleep(0)
        raise kind("no such thing")

    async def main() -> None:
        with pytest.raises(kind, match="no such thing"):
            await found(ask(dispatcher_of(handle)))

    asyncio.run(main())


def test_what_waits_when_the_broker_stops_ends_before_it() -> None:
    ended: list[str] = []

    async def handle(_request: object, _context: object) -> ListGroupsResponse:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("handler")
        return empty()

    async def main() -> None:
        dispatcher = dispatcher_of(handle)
        running = asyncio.ensure_future(dispatcher.run())
        for _ in range(2):
            assert isinstance(ask(dispatcher), DeferredAnswer)
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert ended == ["handler", "handler"]

    asyncio.run(main())

"""A coroutine that is begun at once ends at once, if it waits for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from strandline.storage.concurrency.tasks import eager_start, side_by_side

T = TypeVar("T")


async def _waits(turns: int, result: T) -> T:
    for _ in range(turns):
        await asyncio.sleep(0)
    return result


async def _fails(turns: int) -> None:
    await _waits(turns, None)
    raise ValueError("no such thing")


def test_what_waits_for_nothing_has_ended_when_it_is_begun() -> None:
    async def main() -> None:
        ended = eager_start(_waits(0, "found"))
        assert ended.done()
        assert ended.result() == "found"

    asyncio.run(main())


def test_what_waits_goes_on_from_there() -> None:
    async def main() -> None:
        loading: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def load() -> int:
            async with asyncio.timeout(60):
                return 1 + await asyncio.shield(loading) + await _waits(2, 1)

        async def read() -> int:
            return await asyncio.shield(loading) + await load()

        reading = eager_start(read())
        assert not reading.done()
        loading.set_result(10)
        assert await reading == 22

    asyncio.run(main())


def test_its_first_step_is_in_the_task_that_ends_it_and_not_in_the_caller_s() -> None:
    tasks: list[asyncio.Task[None] | None] = []

    async def work() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        tasks.append(asyncio.current_task())

    async def main() -> None:
        started = eager_start(work())
        tasks.append(asyncio.current_task())
        await started
        assert tasks == [started, asyncio.current_task(), started]

    asyncio.run(main())


@pytest.mark.parametrize("is_in_a_task", [True, False])
def test_a_time_limit_holds_from_the_first_step_on(is_in_a_task: bool) -> None:
    """Nothing is awaited before the limit: a coroutine outside a task has none."""

    async def limited() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "too late"
        return "in time"

    async def main() -> None:
        if is_in_a_task:
            assert await eager_start(limited()) == "too late"
            return
        started: asyncio.Future[asyncio.Task[str]] = asyncio.Future()
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: started.set_result(eager_start(limited())))
        assert await (await started) == "too late"

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_its_failure_is_told_to_who_asks_for_the_result(turns: int) -> None:
    async def main() -> None:
        failing = eager_start(_fails(turns))
        with pytest.raises(ValueError, match="no such thing"):
            await failing

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, 1])
def test_who_gives_up_ends_what_was_begun(turns: int) -> None:
    events: list[str] = []

    async def read() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            events.append("left")

    async def main(work: Coroutine[object, object, None]) -> None:
        reading = eager_start(work)
        await _waits(turns, None)
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()

    asyncio.run(main(read()))
    assert events == ["left"]


async def for_ever(ended: list[str], name: str) -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        ended.append(name)


async def fail() -> None:
    await asyncio.sleep(0)
    raise ValueError("the first one")


def test_what_fails_ends_the_others_and_is_what_is_raised() -> None:
    """Who begins it again has nobody of the first time beside it."""
    ended: list[str] = []

    async def whole() -> None:
        for _ in range(3):
            with pytest.raises(ValueError, match="the first one"):
                await side_by_side(for_ever(ended, "a"), fail(), for_ever(ended, "b"))
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(whole())
    assert sorted(ended) == ["a", "a", "a", "b", "b", "b"]


def test_being_cancelled_ends_all() -> None:
    ended: list[str] = []

    async def whole() -> None:
        working = asyncio.ensure_future(side_by_side(for_ever(ended, "a"), for_ever(ended, "b")))
        await asyncio.sleep(0.01)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(whole())
    assert sorted(ended) == ["a", "b"]

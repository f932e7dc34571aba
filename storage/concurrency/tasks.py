"""Helpers for the event loop: eager coroutines, shared futures, events, and groups of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import TypeVar

T = TypeVar("T")


def begin(work: Coroutine[object, object, T]) -> asyncio.Future[T]:
    """Starts `work` at once, as `eager_start` of Python 3.12 does.

    Returns a future that is done if `work` waits for nothing, else the task that continues it. A
    task would cost a turn of the loop before its coroutine runs at all; most cold reads find all
    they need in memory. Until it waits, `work` runs in no task.
    """
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        ended.set_result(end.value)
    except Exception as error:
        ended.set_exception(error)
    else:
        return asyncio.create_task(_continue(work, waits_for))
    return ended


async def _continue(work: Coroutine[object, object, T], waits_for: object) -> T:
    return await _steps(work, waits_for)


@coroutine
def _steps(work: Coroutine[object, object, T], waits_for: object) -> Generator[object, object, T]:
    """Passes on what `work` awaits, and the results back to it."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:
                waits_for = work.throw(error)
            else:
                waits_for = work.send(sent)
    except StopIteration as end:
        result: T = end.value
        return result


async def result_of(future: asyncio.Future[T]) -> T:
    """Waits for a future that others wait for too; a cancelled waiter does not cancel it.

    Raises the future's error. `asyncio.shield` does the same, but from Python 3.14 on it logs a
    traceback if the future fails after its waiter was cancelled: here that is normal, when a fetch
    gave up and the store failed later.
    """
    if not future.done():
        await asyncio.wait((future,))
    try:
        return future.result()
    finally:
        # The error's traceback references this frame, and would keep the future that has the error.
        del future


async def wait_within(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, at most so long; also lets others run if it is set already.

    `Event.wait` does not, so a loop that sets its own event would keep everybody else waiting.
    """
    await asyncio.sleep(0)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def side_by_side(*works: Coroutine[object, object, None]) -> None:
    """Runs coroutines concurrently; if one fails, cancels the others and raises its error.

    With `gather` the others would keep running.
    """
    try:
        async with asyncio.TaskGroup() as together:
            for work in works:
                together.create_task(work)
    except BaseExceptionGroup as failed:
        # One fails first; the errors of the cancelled others matter less.
        raise failed.exceptions[0] from None

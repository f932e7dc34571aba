"""Helpers for the event loop: eager tasks, shared futures, events, and groups of tasks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def eager_start(work: Coroutine[object, None, T]) -> asyncio.Task[T]:
    """Starts a task whose first steps run at once, until it waits; it may have ended then.

    Otherwise a task costs a turn of the loop before its coroutine runs at all: most requests wait
    for nothing, and most cold reads find all they need in memory.
    """
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)
    return _started_before_its_turn(work)


def _started_before_its_turn(work: Coroutine[object, None, T]) -> asyncio.Task[T]:
    """As `eager_start` in Python 3.11, whose asyncio has it not: runs the step that is queued."""
    loop = asyncio.get_running_loop()
    caller = asyncio.current_task()
    # A constant name, as numbering the task would be formatted each time.
    task = asyncio.Task(work, loop=loop, name="eager")
    first_step = loop._ready.pop()  # type: ignore[attr-defined]  # noqa: SLF001
    if caller is not None:
        asyncio.tasks._leave_task(loop, caller)  # noqa: SLF001
    first_step._run()  # noqa: SLF001
    if caller is not None:
        asyncio.tasks._enter_task(loop, caller)  # noqa: SLF001
    return task


class RunningTasks:
    """Tasks that nobody waits for, owned until they are done."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Owns the task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Waits until it is cancelled, and ends the tasks."""
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


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


async def to_its_end(work: Coroutine[object, object, T]) -> T:
    """Runs it in a task of its own, which goes on if whoever waits for it is cancelled.

    Raises its error; who is gone does not hear of it.
    """
    task = asyncio.get_running_loop().create_task(work)
    ignore_late_error(task)
    return await result_of(task)


def ignore_late_error(future: asyncio.Future[T]) -> None:
    """Lets it fail when nobody waits for it any more: the loop then logs no traceback."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())


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

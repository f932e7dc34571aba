"""A coroutine that is begun at once, as with `eager_start` of Python 3.12.

A task takes a turn of the loop before its coroutine runs at all. Most cold reads find all they need
in memory, and end without a wait: they need no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import TypeVar

T = TypeVar("T")


def begin(work: Coroutine[object, object, T]) -> asyncio.Future[T]:
    """A future that is done if `work` waits for nothing; else the task that goes on with it.

    Until it waits, `work` runs in no task.
    """
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        ended.set_result(end.value)
    except Exception as error:
        ended.set_exception(error)
    else:
        return asyncio.create_task(_go_on(work, waits_for))
    return ended


async def _go_on(work: Coroutine[object, object, T], waits_for: object) -> T:
    return await _steps(work, waits_for)


@coroutine
def _steps(work: Coroutine[object, object, T], waits_for: object) -> Generator[object, object, T]:
    """Hands on what `work` waits for, and to it what comes of that."""
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

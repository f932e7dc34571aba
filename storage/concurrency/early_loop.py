"""A loop that begins before the others of its broker, during the start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


class EarlyLoop:
    """One loop, begun at once; `run` adopts it, and begins it anew after a failure."""

    def __init__(self, begin: Callable[[], Coroutine[object, object, None]]) -> None:
        self._begin = begin
        self._task: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(begin())

    async def run(self) -> None:
        """Goes on with what was begun. Raises what the loop raises."""
        task, self._task = self._task, None
        await (self._begin() if task is None else task)

    async def meanwhile(self, work: Awaitable[T]) -> T:
        """Returns the result of `work`. Raises the error of the loop, if that fails first."""
        assert self._task is not None, "it is adopted"
        waiting = asyncio.ensure_future(work)
        try:
            await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                self._task.result()
                raise AssertionError("a loop has ended")
            return waiting.result()
        finally:
            waiting.cancel()

    def cancel(self) -> None:
        """Ends what was begun and is not adopted yet."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

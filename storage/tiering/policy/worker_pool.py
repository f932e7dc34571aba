"""Workers side by side over one queue, whose number may change while they work.

    0 1 2 ... count-1 | parked ...        a worker with a number from `count` on waits until the
                                          crew grows; what it holds it ends, or gives back

Workers are added when they are first needed, so many at a time that their nesting stays flat. A
step that fails by a mistake of ours ends nothing but itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from strandline.storage.clock import Clock
from strandline.storage.concurrency.side_by_side import side_by_side
from strandline.storage.quiet_log import QuietLog, place_of
from strandline.storage.tiering.policy.work_queue import WorkQueue

log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)


class WorkCrew(Generic[KeyT]):
    """Calls `step` for what the queue gives, `count` at a time. Used on the event loop only."""

    def __init__(
        self,
        count: int,
        queue: WorkQueue[KeyT],
        step: Callable[[KeyT], Awaitable[bool]],
        *,
        clock: Clock,
    ) -> None:
        """`step` tells whether there is more to do for its key."""
        assert count >= 1, count
        self._count = count
        self._queue = queue
        self._step = step
        # A mistake is met at every turn, by every key.
        self._quiet_log = QuietLog(log, clock)
        self._resized = asyncio.Event()

    @property
    def count(self) -> int:
        return self._count

    @count.setter
    def count(self, count: int) -> None:
        """Takes effect at once; steps that are under way go on."""
        assert count >= 1, count
        self._count = count
        self._resized.set()
        self._resized = asyncio.Event()

    async def run(self) -> None:
        """Works until it is cancelled."""
        await self._run_from(0)

    async def _run_from(self, first: int) -> None:
        end = max(self._count, 2 * first)
        await side_by_side(*map(self._work, range(first, end)), self._grow_from(end))

    async def _grow_from(self, end: int) -> None:
        while self._count <= end:
            await self._resized.wait()
        await self._run_from(end)

    async def _work(self, number: int) -> None:
        while True:
            while number >= self._count:
                await self._resized.wait()
            key = await self._queue.take()
            if number >= self._count:
                # It waited when the crew became smaller: somebody else is to have it.
                self._queue.done(key)
                self._queue.add(key)
                continue
            more = False
            try:
                more = await self._step(key)
            except Exception as error:  # whatever it is, the other keys go on
                self._quiet_log.say(
                    logging.ERROR,
                    "step failed",
                    place_of(error),
                    {"key": str(key)},
                    error=error,
                )
            finally:
                self._queue.done(key)
            if more:
                self._queue.add(key)
            # A step with nothing to do never waits, and a thousand of them would hold the loop.
            await asyncio.sleep(0)

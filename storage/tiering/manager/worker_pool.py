"""Worker pool over one queue, in which each key waits at most once.

    add(k) ---> waiting ---> running: step(k) ---> done, or again at the end of the queue
                   ^            |  add(k) meanwhile: noted
                   +------------+  and queued again when done

So a hundred wake-ups of one partition cost one more step, no key has two steps at a time, and the
queue never has more entries than there are keys.

    0 1 2 ... count-1 | parked ...        a worker with a number from `count` on finishes its step
                                          and waits until the pool grows

Workers are added when first needed, in numbers that double, so that task groups nest only a few
deep. A step that fails by a bug of ours affects no other key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import side_by_side
from strandline.storage.concurrency.turns import Turn
from strandline.storage.quiet_log import QuietLog, place_of

log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)


class WorkerPool(Generic[KeyT]):
    """Calls `step` for queued keys, `count` at a time. Used on the event loop only."""

    def __init__(
        self, count: int, step: Callable[[KeyT], Awaitable[bool]], *, clock: Clock
    ) -> None:
        """`step` returns whether there is more to do for its key."""
        assert count >= 1, count
        self._count = count
        self._step = step
        # A dict as an ordered set.
        self._waiting: dict[KeyT, None] = {}
        self._running: set[KeyT] = set()
        self._again: set[KeyT] = set()
        self._something_waits = asyncio.Event()
        self._resized = asyncio.Event()
        self._turn = Turn()
        # A bug may fail every step of every key.
        self._quiet_log = QuietLog(log, clock)

    def add(self, key: KeyT) -> None:
        """Queues `key` unless it is queued already."""
        if key in self._running:
            self._again.add(key)
        else:
            self._waiting[key] = None
            self._something_waits.set()

    def resize(self, count: int) -> None:
        """Changes the number of workers at once; running steps continue."""
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
            if number >= self._count:
                await self._resized.wait()
            elif not self._waiting:
                self._something_waits.clear()
                await self._something_waits.wait()
            else:
                await self._work_on(next(iter(self._waiting)))

    async def _work_on(self, key: KeyT) -> None:
        del self._waiting[key]
        self._running.add(key)
        more = False
        try:
            more = await self._step(key)
        except Exception as error:  # the other keys continue
            self._quiet_log.say(
                logging.ERROR, "step failed", place_of(error), {"key": str(key)}, error=error
            )
        finally:
            self._running.discard(key)
            if more or key in self._again:
                self._again.discard(key)
                self.add(key)
        # A step without work never awaits, and a thousand of them would block the loop.
        await self._turn.pass_if_over()

    def __repr__(self) -> str:
        return f"<WorkerPool waiting={len(self._waiting)} running={len(self._running)}>"

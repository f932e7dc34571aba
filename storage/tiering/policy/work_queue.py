"""What is to be done next: each key waits at most once, and nobody works on a key twice at a time.

    add(k) ---> waiting ---> take() ---> running ---> done(k)
                   ^                        |  add(k) meanwhile: noted
                   +------------------------+  and queued again when done

So a hundred wake-ups of one partition cost one more step of it, and the queue is never longer than
there are keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class WorkQueue(Generic[KeyT]):
    """First come, first served. Used on the event loop only."""

    def __init__(self) -> None:
        # A dict as an ordered set.
        self._waiting: dict[KeyT, None] = {}
        self._running: set[KeyT] = set()
        self._again: set[KeyT] = set()
        self._something_waits = asyncio.Event()

    def add(self, key: KeyT) -> None:
        """Queues `key` unless it waits already."""
        if key in self._running:
            self._again.add(key)
        else:
            self._waiting[key] = None
            self._something_waits.set()

    async def take(self) -> KeyT:
        """The key that waited longest; `done` must follow."""
        while not self._waiting:
            self._something_waits.clear()
            await self._something_waits.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._running.add(key)
        return key

    def done(self, key: KeyT) -> None:
        """Ends the work on `key`; it waits again if somebody asked for it meanwhile."""
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def __repr__(self) -> str:
        return f"<WorkQueue waiting={len(self._waiting)} running={len(self._running)}>"

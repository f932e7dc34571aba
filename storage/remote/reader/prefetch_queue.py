"""The queue of prefetches that have not started, each with the consumers that it is for.

    prefetch ─► queue ──there is room──► download
               │
               ├── more than PREFETCHES_MAX wait: the oldest ──┐
               └── all of its readers are idle ─────────────┴─► lost: an active reader requeues it

A reader is idle if it has sent no fetch for IDLE_S (`chunk_cache`): its consumer is paused or gone.
Where downloads are throttled, beside live traffic, its prefetches would take capacity from others
for minutes, and their chunks would be the first to be evicted for any other prefetch.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from strandline.storage.model import Offset
from strandline.storage.remote.reader.chunk_cache import IDLE_S, Chunk
from strandline.storage.remote.segment.index import ChunkKey

# Prefetches are expendable; the oldest are dropped first.
PREFETCHES_MAX = 64
# Readers recorded for a prefetch, the newest ones. Any other reader finds it lost when it enters
# its next chunk, and requeues it.
READERS_MAX = 16


class Reader:
    """A sequential consumer. Consumers at the same offset may share one reader."""

    __slots__ = ("asked_s", "lost_prefetches")

    def __init__(self) -> None:
        # By the event loop's clock.
        self.asked_s = 0.0
        # Prefetches for it that were dropped or failed: it must request them again.
        self.lost_prefetches = 0


@dataclass(slots=True, eq=False)
class Download:
    """One queued or running chunk download, wanted or prefetched."""

    key: ChunkKey
    base_offset: Offset
    # Upper bound on the end of its batches; -1: unknown.
    end_offset: Offset
    future: asyncio.Future[Chunk]
    is_wanted: bool
    # Readers that requested the prefetch.
    readers: deque[Reader] = field(default_factory=lambda: deque(maxlen=READERS_MAX))

    def lose(self) -> None:
        """Marks the prefetch as lost for its readers. Waiters for a wanted chunk see its future."""
        if not self.is_wanted:
            for reader in self.readers:
                reader.lost_prefetches += 1


class PrefetchQueue:
    """The queue of prefetches, oldest first. Owned by the event loop's thread."""

    def __init__(self) -> None:
        self._queue: OrderedDict[ChunkKey, Download] = OrderedDict()
        # Runs while prefetches are queued.
        self._watch: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, download: Download) -> None:
        """Appends the prefetch; may drop the oldest one."""
        self._queue[download.key] = download
        while len(self._queue) > PREFETCHES_MAX:
            self._queue.popitem(last=False)[1].lose()
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(IDLE_S, self._drop_deserted)

    def find(self, key: ChunkKey) -> Download | None:
        return self._queue.get(key)

    def first(self) -> Download:
        """Returns the oldest prefetch; the queue must not be empty."""
        return next(iter(self._queue.values()))

    def remove(self, key: ChunkKey) -> Download | None:
        """Removes a prefetch that starts or is promoted; None if it is not queued."""
        return self._queue.pop(key, None)

    def close(self) -> list[Download]:
        """Empties the queue and returns its prefetches."""
        if self._watch is not None:
            self._watch.cancel()
        downloads = list(self._queue.values())
        self._queue.clear()
        return downloads

    def _drop_deserted(self) -> None:
        """Drops prefetches whose readers are all idle; schedules the next check."""
        self._watch = None
        loop = asyncio.get_running_loop()
        wait_s = IDLE_S
        for download in list(self._queue.values()):
            left_s = _asked_s(download.readers) + IDLE_S - loop.time()
            if left_s > 0:
                wait_s = min(wait_s, left_s)
            else:
                del self._queue[download.key]
                download.lose()
        if self._queue:
            self._watch = loop.call_later(wait_s, self._drop_deserted)


def _asked_s(readers: Iterable[Reader]) -> float:
    """Time of the latest fetch of these readers."""
    return max(reader.asked_s for reader in readers)

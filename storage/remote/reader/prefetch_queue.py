"""Chunks that are read ahead and have not begun, each with the consumers that it is for.

    guess ─► queue ──there is room──► download
               │
               ├── more than GUESSES_MAX wait: the oldest ──┐
               └── all of its readers stand still ──────────┴─► lost: who reads on guesses it anew

A reader stands still if it has asked for nothing for IDLE_S (`chunk_cache`): its consumer pauses,
or is gone. Where downloads are held back, beside live traffic, its guesses would go on taking what
others may have, for minutes, and what they brought would be given up for any other guess at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from strandline.storage.model import Offset
from strandline.storage.remote.reader.chunk_cache import IDLE_S, Chunk
from strandline.storage.remote.segment.index import ChunkKey

# Guesses are worth little; the oldest ones go first.
GUESSES_MAX = 64
# Readers that a guess is known to be for, the newest ones. Another one finds it gone when it enters
# its next chunk, and guesses it anew.
READERS_MAX = 16


class Reader:
    """A consumer that reads on. Consumers at the same place may be one reader."""

    __slots__ = ("asked_s", "lost_guesses")

    def __init__(self) -> None:
        # By the event loop's clock.
        self.asked_s = 0.0
        # Guesses for it that were not made after all, or failed: it has to ask again.
        self.lost_guesses = 0


@dataclass(slots=True, eq=False)
class Download:
    """One chunk to come, whoever it is for."""

    key: ChunkKey
    base_offset: Offset
    # Behind which none of its batches may end; -1: nobody knows.
    end_offset: Offset
    future: asyncio.Future[Chunk]
    is_wanted: bool
    # Those that guessed it.
    readers: deque[Reader] = field(default_factory=lambda: deque(maxlen=READERS_MAX))

    def lose(self) -> None:
        """It does not come: who guessed it has to ask again. Who wants it is told by its future."""
        if not self.is_wanted:
            for reader in self.readers:
                reader.lost_guesses += 1


class Guesses:
    """See the top of this file. Owned by the event loop's thread."""

    def __init__(self) -> None:
        self._queue: OrderedDict[ChunkKey, Download] = OrderedDict()
        # Runs while guesses wait.
        self._watch: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, download: Download) -> None:
        """Behind all others; the oldest one may be lost for it."""
        self._queue[download.key] = download
        while len(self._queue) > GUESSES_MAX:
            self._queue.popitem(last=False)[1].lose()
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(IDLE_S, self._drop_deserted)

    def find(self, key: ChunkKey) -> Download | None:
        return self._queue.get(key)

    def first(self) -> Download:
        """The oldest one; there must be one."""
        return next(iter(self._queue.values()))

    def remove(self, key: ChunkKey) -> Download | None:
        """It begins, or somebody wants it; None if it does not wait here."""
        return self._queue.pop(key, None)

    def close(self) -> list[Download]:
        """What waited here, and does no longer."""
        if self._watch is not None:
            self._watch.cancel()
        downloads = list(self._queue.values())
        self._queue.clear()
        return downloads

    def _drop_deserted(self) -> None:
        """Loses those whose readers all stand still, and looks again when there may be more."""
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
    """When one of them asked last."""
    return max(reader.asked_s for reader in readers)

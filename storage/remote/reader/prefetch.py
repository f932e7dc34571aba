"""Prefetches chunks for sequential consumers.

    read            1st   2nd   3rd   4th ...
    chunks ahead     0     2     4     8, up to `read_ahead_chunks`, over the segment's end

A random read costs only the chunk that it reads. A read from memory prefetches after its response,
in the loop's next turn, and at the latest before the next read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.reader.downloads import ChunkDownloads
from strandline.storage.remote.reader.prefetch_queue import Reader
from strandline.storage.remote.segment.index import SegmentIndex
from strandline.storage.remote.segment.index_cache import CachedIndexes

READ_AHEAD_FIRST = 2
# With 8 MiB chunks 72 MiB are under way: a store 150 ms away that gives 90 MB/s to a connection
# takes 240 ms for each, so ten of them bring 350 MB/s.
READ_AHEAD_CHUNKS = 9


@dataclass(frozen=True, slots=True)
class LookAhead:
    """A request to prefetch `depth` chunks for `reader` from `number` on, across segments."""

    reader: Reader
    index: SegmentIndex
    number: int
    depth: int
    next_entries: Sequence[SegmentEntry]


class Prefetch:
    """Prefetches for the reads of one ColdReader. Used on its event loop."""

    def __init__(
        self,
        downloads: ChunkDownloads,
        indexes: CachedIndexes[SegmentIndex],
        start_index: Callable[[SegmentEntry], asyncio.Future[SegmentIndex]],
    ) -> None:
        """`start_index` loads the index of a segment that is not among `indexes`."""
        # Prefetches requested by reads in this turn of the loop.
        self.due: deque[LookAhead] = deque()
        self._downloads = downloads
        self._indexes = indexes
        self._start_index = start_index
        self._is_closed = False

    def close(self) -> None:
        """Stops prefetching."""
        self._is_closed = True

    def soon(self, due: LookAhead) -> None:
        """Schedules a prefetch after the response, which a client waits for.

        Requesting chunks takes longer than all other work of a read from memory.
        """
        self.due.append(due)
        if len(self.due) == 1:
            asyncio.get_running_loop().call_soon(self.start_due)

    def start_due(self) -> None:
        """Runs due prefetches; each read does so first, so chunks read since are skipped."""
        while self.due:
            due = self.due.popleft()
            if not self._is_closed:
                self.read(due)

    def read(self, due: LookAhead) -> None:
        """Requests the chunks at once, over the end of the segment."""
        index, depth, next_entries = due.index, due.depth, due.next_entries
        end = min(due.number + depth, index.chunk_count)
        for following in range(due.number, end):
            self._downloads.prefetch(
                index.chunk_key(following),
                due.reader,
                base_offset=index.chunk_base_offset(following),
                end_offset=index.chunk_end_offset(following),
            )
        if depth <= 0 or not next_entries:
            return
        left = depth - (end - due.number)
        entry, rest = next_entries[0], next_entries[1:]
        next_index = self._indexes.peek(entry.meta_key)
        if next_index is not None:
            if left > 0:
                self.read(LookAhead(due.reader, next_index, 0, left, rest))
            return

        # Loads the next index long before it is needed: all its chunks depend on it.
        def go_on(loaded: asyncio.Future[SegmentIndex]) -> None:
            if loaded.cancelled() or loaded.exception() is not None:
                return
            # Without threads the index after it cannot be loaded.
            if left > 0 and not self._is_closed:
                self.read(LookAhead(due.reader, loaded.result(), 0, left, rest))

        self._start_index(entry).add_done_callback(go_on)

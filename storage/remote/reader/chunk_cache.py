"""Chunks of log objects, and the cache of chunks in memory.

A chunk's memory is a mapping. The views in a fetch response keep it alive, however slow the
consumer is; only when the last view is released do its bytes count as free and can be reused. So
the bound on memory is a bound on live memory:

    live bytes = chunks in the cache + downloads under way + evicted chunks that a reader still has

The kernel must zero fresh memory first, which costs as much as receiving the data into it; so a
block outlives its chunk. Sizes are rounded up, so that the chunks of a log, which differ slightly
in size, can reuse the same block. A chunk of a small segment is a mapping all the same, so the
number of chunks has a bound, too.

Eviction skips chunks that a reader holds: that would free nothing. It prefers chunks that were read
to their end, least recently used first. A wanted chunk may evict any other; a prefetch only one
that has been idle for a while, or with little memory it would evict the chunk that a consumer is
reading, to prefetch for the same consumer.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import mmap
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strandline.storage.model import Offset, Position
from strandline.storage.remote.segment.batch_index import index_batches
from strandline.storage.remote.segment.index import ChunkKey

_numbers = itertools.count()
# A consumer that reads on fetches again within its fetch wait, half a second by default. After this
# long without a fetch, its prefetched chunks may be evicted.
IDLE_S = 10.0
# As many as there are reader streams.
CHUNKS_MAX = 1024

MEMORY_UNIT_BYTES = 1024 * 1024
LARGE_MEMORY_UNIT_BYTES = 2 * 1024 * 1024
# Blocks without a chunk that are kept, in addition to the bound on memory.
SPARES_MAX = 4


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A run of whole batches cut out of a chunk: bytes [position, end_position) of it."""

    position: Position
    end_position: Position
    next_offset: Offset

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.position


class Chunk:
    """Whole batches with verified CRCs, and the position of each of them. Immutable."""

    __slots__ = (
        "_base_offsets",
        "_next_offsets",
        "_pins",
        "_positions",
        "_view",
        "is_used_up",
        "key",
        "last_used_s",
    )

    def __init__(self, key: ChunkKey, view: memoryview, *, base_offset: Offset) -> None:
        """Checks all of `view`, whose first base offset must be `base_offset`.

        Raises CorruptRecords.
        """
        index = index_batches(view, base_offset)
        self.key = key
        self._view = view
        # One element per live view. Views are released in any thread: each call is one step.
        self._pins: dict[int, weakref.ref[memoryview]] = {}
        # Both are the cache's: whether the last batch was read, and the time of the last request.
        self.is_used_up = False
        self.last_used_s = 0.0
        self._base_offsets = index.base_offsets
        self._next_offsets = index.next_offsets
        self._positions = index.positions

    @property
    def size_bytes(self) -> int:
        return self.key.size_bytes

    @property
    def end_offset(self) -> Offset:
        return self._next_offsets[-1]

    @property
    def is_pinned(self) -> bool:
        """Whether a view that `take` returned still exists, so that eviction would free nothing."""
        return bool(self._pins)

    def find_run(
        self, offset: Offset, *, bytes_max: int, end_offset: Offset | None, at_least_one: bool
    ) -> BatchRun | None:
        """Whole batches from the one that holds `offset` (or the next), below `end_offset`.

        At most `bytes_max` bytes, except that `at_least_one` batch comes however large it is. None
        if no batch qualifies.
        """
        first = bisect.bisect_right(self._next_offsets, offset)
        start = self._positions[first]
        stop = bisect.bisect_right(self._positions, start + bytes_max) - 1
        if at_least_one:
            stop = max(stop, first + 1)
        stop = min(stop, len(self._next_offsets))
        if end_offset is not None:
            stop = min(stop, bisect.bisect_left(self._base_offsets, end_offset))
        if stop <= first:
            return None
        return BatchRun(start, self._positions[stop], self._next_offsets[stop - 1])

    def take(self, run: BatchRun, *, on_release: Callable[[], None] | None = None) -> memoryview:
        """Returns the bytes of `run`, without a copy. The chunk is pinned while the view exists.

        `on_release` is called when the last view is released, in any thread.
        """
        view = self._view[run.position : run.end_position].toreadonly()
        pins, number = self._pins, next(_numbers)

        def unpin(_: object) -> None:
            del pins[number]
            if on_release is not None and not pins:
                on_release()

        # Runs for each response, and costs a third of `weakref.finalize`.
        pins[number] = weakref.ref(view, unpin)
        self.is_used_up |= run.end_position == len(self._view)
        return view

    @property
    def content(self) -> memoryview:
        """All of its bytes; not pinned."""
        return self._view

    def piece(self, position: Position, end_position: Position) -> memoryview:
        """Returns the bytes of the object's range [position, end_position); not pinned."""
        return self._view[position - self.key.position : end_position - self.key.position]

    def __repr__(self) -> str:
        return f"<Chunk {self.key} batches={len(self._next_offsets)}>"


class ChunkCache:
    """The memory of all chunks and the chunks that are cached in it, bounded in bytes and by
    CHUNKS_MAX. Owned by one thread.

    Only `reserve` allocates memory. It may be freed in any thread; `on_free` is called there.
    """

    def __init__(self, bytes_max: int, *, on_free: Callable[[], None]) -> None:
        self.bytes_max = bytes_max
        self._on_free = on_free
        self._live_bytes = 0
        self._chunks: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        # Memory of released blocks; a deque, because blocks are released in any thread.
        self._freed: deque[mmap.mmap] = deque()
        self._spares: deque[mmap.mmap] = deque(maxlen=SPARES_MAX)
        self.evicted_count = 0

    @property
    def live_bytes(self) -> int:
        self._collect()
        return self._live_bytes

    @property
    def chunk_count(self) -> int:
        return len(self._chunks)

    def find(self, key: ChunkKey, *, now_s: float) -> Chunk | None:
        """Returns the cached chunk, marked as most recently used."""
        chunk = self._chunks.get(key)
        if chunk is not None:
            chunk.last_used_s = now_s
            self._chunks.move_to_end(key)
        return chunk

    def peek(self, key: ChunkKey) -> Chunk | None:
        """As `find`, without marking it as used."""
        return self._chunks.get(key)

    def add(self, chunk: Chunk, *, now_s: float) -> None:
        """Caches a chunk whose memory was reserved here."""
        chunk.last_used_s = now_s
        self._chunks[chunk.key] = chunk

    def clear(self) -> None:
        self._chunks.clear()
        self._spares.clear()

    def reserve(self, size_bytes: int, *, is_prefetch: bool, now_s: float) -> memoryview | None:
        """Returns a writable block of `size_bytes`; None if that much cannot be freed now."""
        if not self._make_room(_rounded(size_bytes), is_prefetch=is_prefetch, now_s=now_s):
            return None
        memory = self._take_spare(size_bytes) or map_memory(size_bytes)
        self._live_bytes += len(memory)
        # Views hold the array and not the memory, so the array is collected with the last view and
        # the memory can be reused.
        array = (ctypes.c_char * len(memory)).from_buffer(memory)
        weakref.finalize(array, self._release, memory).atexit = False
        return memoryview(array).cast("B")[:size_bytes]

    def _make_room(self, size_bytes: int, *, is_prefetch: bool, now_s: float) -> bool:
        """Evicts until `size_bytes` are free; False if that is not possible now.

        A chunk larger than the whole bound is admitted when no other is live: one batch may be
        larger than any sensible bound.
        """
        while len(self._chunks) >= CHUNKS_MAX or (
            self.live_bytes + size_bytes > self.bytes_max and self._live_bytes > 0
        ):
            victim = self._find_victim(is_prefetch=is_prefetch, now_s=now_s)
            if victim is None:
                return False
            del self._chunks[victim]
            self.evicted_count += 1
        return True

    def _find_victim(self, *, is_prefetch: bool, now_s: float) -> ChunkKey | None:
        free = [(key, chunk) for key, chunk in self._chunks.items() if not chunk.is_pinned]
        for key, chunk in free:
            if chunk.is_used_up:
                return key
        for key, chunk in free:
            if not is_prefetch or now_s - chunk.last_used_s > IDLE_S:
                return key
        return None

    def _release(self, memory: mmap.mmap) -> None:
        self._freed.append(memory)
        self._on_free()

    def _collect(self) -> None:
        """Accounts for memory that other threads freed."""
        while self._freed:
            memory = self._freed.popleft()
            self._live_bytes -= len(memory)
            self._spares.append(memory)

    def _take_spare(self, size_bytes: int) -> mmap.mmap | None:
        room_bytes = self.bytes_max - self._live_bytes
        index = _best_fit(self._spares, size_bytes, bytes_max=room_bytes)
        if index is None:
            return None
        memory = self._spares[index]
        del self._spares[index]
        return memory


def map_memory(size_bytes: int) -> mmap.mmap:
    """A private mapping of at least `size_bytes`. Raises OSError if there is no memory left."""
    return mmap.mmap(-1, _rounded(size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _rounded(size_bytes: int) -> int:
    """Returns the block size for `size_bytes`."""
    if size_bytes < MEMORY_UNIT_BYTES:
        return size_bytes
    is_large = size_bytes >= LARGE_MEMORY_UNIT_BYTES
    unit_bytes = LARGE_MEMORY_UNIT_BYTES if is_large else MEMORY_UNIT_BYTES
    return -(-size_bytes // unit_bytes) * unit_bytes


def _best_fit(spares: Iterable[mmap.mmap], size_bytes: int, *, bytes_max: int) -> int | None:
    """Index of the smallest spare that fits without much waste; None if there is none.

    It is at most `bytes_max` large, unless a fresh one would be no smaller.
    """
    largest = max(min(2 * size_bytes, bytes_max), _rounded(size_bytes))
    fitting = [
        (len(memory), index)
        for index, memory in enumerate(spares)
        if size_bytes <= len(memory) <= largest
    ]
    return min(fitting)[1] if fitting else None

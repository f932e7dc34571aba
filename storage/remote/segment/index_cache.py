"""LRU cache of archived segments' indexes, in memory.

    key = (kind, .meta key)      kind: batch positions, or aborted transactions

Bounded by `remote.log.index.file.cache.total.size.bytes`, as Kafka's RemoteIndexCache, which keeps
index files on disk; here they are in memory and small, 24 bytes for a mebibyte of log. A bound on
their number keeps them from filling Kafka's default of 1 GiB.

Each is loaded once for all its readers, in the executor. Used on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sized
from concurrent.futures import Executor
from typing import Generic, TypeVar

from strandline.storage.remote.segment.index import SegmentIndex

T = TypeVar("T")

# The indexes of this many segments of 1 GiB take 100 MiB.
COUNT_MAX = 4096

# Memory of an index's containers, its key and its cache entry.
OVERHEAD_BYTES = 1024
PIECE_BYTES = 24
TRANSACTION_BYTES = 256


class IndexCache:
    """The cache that all indexes of a broker share, bounded in bytes."""

    def __init__(self, *, bytes_max: int, count_max: int = COUNT_MAX) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._values: OrderedDict[tuple[str, str], tuple[object, int]] = OrderedDict()
        self.bytes_now = 0
        self.evicted_count = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bytes_max(self) -> int:
        return self._bytes_max

    @bytes_max.setter
    def bytes_max(self, bytes_max: int) -> None:
        """Applies the new bound at once."""
        self._bytes_max = bytes_max
        self._evict()

    def find(self, key: tuple[str, str], *, used: bool) -> object | None:
        """Returns the cached value of `key`, or None; `used` marks it as recently used."""
        known = self._values.get(key)
        if known is None:
            return None
        if used:
            self._values.move_to_end(key)
        return known[0]

    def keep(self, key: tuple[str, str], value: object, size_bytes: int) -> None:
        """Caches `value`, unless it alone exceeds the bound."""
        replaced = self._values.pop(key, None)
        if replaced is not None:
            self.bytes_now -= replaced[1]
        if size_bytes <= self._bytes_max:
            self.bytes_now += size_bytes
            self._values[key] = (value, size_bytes)
            self._evict()

    def _evict(self) -> None:
        while self.bytes_now > self._bytes_max or len(self._values) > self._count_max:
            _, (_, size_bytes) = self._values.popitem(last=False)
            self.bytes_now -= size_bytes
            self.evicted_count += 1

    def __repr__(self) -> str:
        return f"<IndexCache {len(self)} indexes, {self.bytes_now} of {self._bytes_max} bytes>"


class CachedIndexes(Generic[T]):
    """Indexes of one kind, in a cache shared with other kinds."""

    def __init__(
        self, cache: IndexCache, kind: str, executor: Executor, *, size_of: Callable[[T], int]
    ) -> None:
        self._cache = cache
        self._kind = kind
        self._executor = executor
        self._size_of = size_of
        self._loading: dict[str, asyncio.Future[T]] = {}

    def find(self, key: str) -> T | None:
        # The cache holds many kinds; under this kind's keys only values of T are put, here below.
        return self._cache.find((self._kind, key), used=True)  # type: ignore[return-value]

    def peek(self, key: str) -> T | None:
        """As `find`, without marking it as used."""
        return self._cache.find((self._kind, key), used=False)  # type: ignore[return-value]

    def start(self, key: str, load: Callable[[], T]) -> asyncio.Future[T]:
        """The future of `load()`, shared by all callers while it runs. Await it shielded."""
        loading = self._loading.get(key)
        if loading is None:
            loop = asyncio.get_running_loop()
            loading = self._loading[key] = loop.run_in_executor(self._executor, load)
            loading.add_done_callback(lambda done: self._loaded(key, done))
        return loading

    def _loaded(self, key: str, done: asyncio.Future[T]) -> None:
        del self._loading[key]
        # Reading the exception also marks it as retrieved for the loop.
        if done.cancelled() or done.exception() is not None:
            return
        value = done.result()
        self._cache.keep((self._kind, key), value, self._size_of(value))


def segment_index_bytes(index: SegmentIndex) -> int:
    """Approximate memory of an index."""
    return OVERHEAD_BYTES + PIECE_BYTES * index.piece_count


def transactions_bytes(transactions: Sized) -> int:
    """Approximate memory of a segment's aborted transactions."""
    return OVERHEAD_BYTES + TRANSACTION_BYTES * len(transactions)

"""Reads batches of archived segments, byte for byte as they were produced.

    read(entry, offset) ─► index of the segment ─► chunk that holds the offset ─► whole batches
                             (STATISTICS of .meta,     (memory, disk or one          (views into
                              kept)                     ranged GET, all checked)       the chunk)

A read waits only for the chunk with `offset`; following chunks are added if they are in memory
already. So a reader never holds one chunk while it waits for another.

A read that begins where an earlier one ended belongs to a sequential consumer, for which the next
chunks are prefetched (prefetch.py). The chunk that such a consumer stopped in is remembered too:
while it stays there, its reads need neither the index nor another prefetch.

A corrupt or missing `.meta` does not make a segment unreadable: its index is rebuilt by walking
the batch headers of the log object once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from strandline.storage.concurrency.tasks import result_of
from strandline.storage.errors import StorageError
from strandline.storage.model import AbortedTransaction, Offset, TimestampMs, TimestampOffset
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.reader.chunk_cache import Chunk
from strandline.storage.remote.reader.config import ColdReaderConfig
from strandline.storage.remote.reader.corruption_log import Unreadable, log_unreadable
from strandline.storage.remote.reader.disk_chunk_cache import DiskChunkCache
from strandline.storage.remote.reader.downloads import (
    ChunkDownloads,
    DownloadCounters,
    DownloadPace,
)
from strandline.storage.remote.reader.prefetch import (
    READ_AHEAD_CHUNKS,
    READ_AHEAD_FIRST,
    LookAhead,
    Prefetch,
)
from strandline.storage.remote.reader.prefetch_queue import Reader
from strandline.storage.remote.reader.time_search import find_in_segment
from strandline.storage.remote.segment.index import ChunkKey, SegmentIndex
from strandline.storage.remote.segment.index_cache import (
    CachedIndexes,
    IndexCache,
    segment_index_bytes,
    transactions_bytes,
)
from strandline.storage.remote.segment.index_loading import load_index, load_txn_index

# Consumers whose next offset is remembered; a forgotten one starts without prefetch again.
STREAMS_MAX = 1024


@dataclass(slots=True, kw_only=True)
class ColdReaderStatistics(DownloadCounters):
    """The counters, and the state; fields that end in `_now` are current values."""

    live_bytes_now: int
    running_downloads_now: int
    waiting_reads_now: int
    # Corrupt downloads and failed reads, by reason.
    unreadable: Mapping[Unreadable, int]
    indexes_now: int
    index_bytes_now: int
    evicted_indexes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRead:
    """Whole batches, in order. The buffers keep their memory alive and valid; the next read
    begins at `next_offset`.
    """

    buffers: list[memoryview] = field(default_factory=list)
    next_offset: Offset
    size_bytes: int = 0


class _Stream(NamedTuple):
    """The state of a sequential consumer after a read."""

    reader: Reader
    # Number of chunks prefetched ahead of it; 0 after a read that continues none.
    depth: int
    # `reader.lost_prefetches` before its last prefetch: later losses are prefetched again.
    lost_prefetches: int
    # The chunk that it is reading; None between two chunks. Only the key: a reference to the chunk
    # would keep its memory for a consumer that is gone.
    key: ChunkKey | None = None

    def is_ahead(self, entry: SegmentEntry, following: _Stream) -> bool:
        """Whether it is inside a chunk of `entry`, with all chunks for `following` prefetched."""
        return (
            self.key is not None
            and self.key.log_key == entry.log_key
            and self.depth == following.depth
            and self.lost_prefetches == following.lost_prefetches
        )


class ColdReader:
    """Reads archived segments. Used on one event loop; blocking work goes to `executor`."""

    def __init__(
        self,
        store: ObjectStore,
        executor: Executor,
        config: ColdReaderConfig | None = None,
        *,
        read_ahead_chunks: int = READ_AHEAD_CHUNKS,
        pace: DownloadPace | None = None,
    ) -> None:
        """Opens the disk cache, if there is one (blocking). Raises DiskError if that fails."""
        config = config or ColdReaderConfig()
        disk = None
        if config.disk_directory is not None and config.disk_bytes_max > 0:
            disk = DiskChunkCache(config.disk_directory, config.disk_bytes_max)
        self._store = store
        self._executor = executor
        self._chunk_bytes = config.chunk_bytes
        self._read_ahead_chunks = read_ahead_chunks
        self._downloads = ChunkDownloads(
            store,
            executor,
            parallel_max=config.parallel_downloads_max,
            memory_bytes_max=config.memory_bytes_max,
            disk=disk,
            pace=pace,
        )
        self._cached_indexes = IndexCache(bytes_max=config.index_bytes_max)
        self._indexes: CachedIndexes[SegmentIndex] = CachedIndexes(
            self._cached_indexes, "batches", executor, size_of=segment_index_bytes
        )
        self._txn_indexes: CachedIndexes[tuple[AbortedTransaction, ...]] = CachedIndexes(
            self._cached_indexes, "transactions", executor, size_of=transactions_bytes
        )
        self._ahead = Prefetch(self._downloads, self._indexes, self._start_index)
        # The same list: each read checks it.
        self._due = self._ahead.due
        self._unreadable: Counter[Unreadable] = Counter()
        # (partition folder, next offset) of recent reads.
        self._streams: OrderedDict[tuple[str, Offset], _Stream] = OrderedDict()

    def resize(self, config: ColdReaderConfig) -> None:
        """Applies new bounds at once; downloads under way continue."""
        self._downloads.resize(config.parallel_downloads_max)
        self._cached_indexes.bytes_max = config.index_bytes_max

    def statistics(self) -> ColdReaderStatistics:
        downloads, indexes = self._downloads, self._cached_indexes
        corrupt = Counter({Unreadable.CORRUPT: downloads.counters.corrupt_chunks})
        return ColdReaderStatistics(
            **asdict(downloads.counters),
            live_bytes_now=downloads.cache.live_bytes,
            running_downloads_now=downloads.running_count,
            waiting_reads_now=downloads.waiting_count,
            unreadable={one: self._unreadable[one] + corrupt[one] for one in Unreadable},
            indexes_now=len(indexes),
            index_bytes_now=indexes.bytes_now,
            evicted_indexes=indexes.evicted_count,
        )

    def note_unreadable(self, error: StorageError) -> None:
        """Counts and logs why a read failed, unless the error is transient."""
        reason = Unreadable.of(error)
        if reason is not None:
            self._unreadable[reason] += 1
            log_unreadable(reason, error)

    def close(self) -> None:
        """Fails waiting reads with TierUnavailable, drops all chunks, and stops prefetching."""
        self._ahead.close()
        self._downloads.close()

    def __repr__(self) -> str:
        return f"<ColdReader {self._store.url} {self.statistics()}>"

    # --- batches -----------------------------------------------------------------------------

    async def read(
        self,
        entry: SegmentEntry,
        offset: Offset,
        *,
        bytes_max: int,
        end_offset: Offset | None = None,
        next_entries: Sequence[SegmentEntry] = (),
        waiting: AbstractContextManager[None] | None = None,
    ) -> ColdRead:
        """Whole batches, the first of which holds `offset` (or is the next one after it).

        At least one batch, else at most `bytes_max` bytes; only batches that begin below
        `end_offset`. Empty only if there is none: then the next read starts at `next_offset`.
        `next_entries` are the segments after `entry`, for reading over its end. `waiting` is
        entered if the chunk is not in memory. Raises ObjectNotFound, AccessDenied, ObjectArchived,
        ObjectCorrupt or TierUnavailable.
        """
        assert entry.base_offset <= offset < entry.end_offset, (entry, offset)
        if self._due:
            self._ahead.start_due()
        folder = _folder(entry)
        stream = self._streams.get((folder, offset))
        following = self._following(stream)
        is_ahead = stream is not None and stream.is_ahead(entry, following)
        if stream is not None and is_ahead:
            found = self._read_on(folder, stream, offset, bytes_max, end_offset)
            if found is not None:
                return found
        index = self._indexes.find(entry.meta_key)
        number = 0 if index is None else index.chunk_for(offset)
        chunk = None if index is None else self._downloads.find(index.chunk_key(number))
        if index is not None and chunk is not None and chunk.end_offset > offset:
            self._downloads.counters.memory_hits += 1
            if not is_ahead:
                self._ahead.soon(
                    LookAhead(following.reader, index, number + 1, following.depth, next_entries)
                )
        else:
            with waiting or nullcontext():
                chunk, number = await self._wait_for_chunk(entry, offset, following, next_entries)
            if chunk is None:
                return ColdRead(next_offset=entry.end_offset)
        followers = self._chunks_in_memory((entry, *next_entries), number + 1)
        result = self._collect(chunk, followers, offset, bytes_max=bytes_max, end_offset=end_offset)
        # The entry of this read's own start stays: other consumers may be at the same offset, and a
        # fetch that timed out is repeated.
        if len(result.buffers) == 1 and result.next_offset < chunk.end_offset:
            following = following._replace(key=chunk.key)
        self._place(folder, result.next_offset, following)
        return result

    async def _wait_for_chunk(
        self,
        entry: SegmentEntry,
        offset: Offset,
        following: _Stream,
        next_entries: Sequence[SegmentEntry],
    ) -> tuple[Chunk | None, int]:
        """Returns the chunk with the first batch that ends above `offset`, and its number; None if
        compaction left none in this segment.
        """
        index = await self._index(entry)
        number = index.chunk_for(offset)
        # Requests the wanted chunk first, or the prefetches would be ahead of it in the queue.
        wanted = self._request(index, number)
        self._ahead.read(
            LookAhead(following.reader, index, number + 1, following.depth, next_entries)
        )
        chunk = wanted if isinstance(wanted, Chunk) else await result_of(wanted)
        # A chunk may end before `offset` where compaction left a gap at its end.
        while chunk.end_offset <= offset:
            number += 1
            if number >= index.chunk_count:
                return None, number
            wanted = self._request(index, number)
            chunk = wanted if isinstance(wanted, Chunk) else await result_of(wanted)
        return chunk, number

    def _read_on(
        self,
        folder: str,
        stream: _Stream,
        offset: Offset,
        bytes_max: int,
        end_offset: Offset | None,
    ) -> ColdRead | None:
        """The fast path of a sequential consumer whose read ends inside its chunk; `stream` stays
        as it is. None, without side effects, for all other reads.
        """
        assert stream.key is not None, stream
        chunk = self._downloads.find(stream.key)
        if chunk is None:
            return None
        run = chunk.find_run(offset, bytes_max=bytes_max, end_offset=end_offset, at_least_one=True)
        if run is None or run.end_position == chunk.size_bytes:
            return None
        self._downloads.counters.memory_hits += 1
        self._place(folder, run.next_offset, stream)
        return ColdRead(
            buffers=[self._downloads.take(chunk, run)],
            next_offset=run.next_offset,
            size_bytes=run.size_bytes,
        )

    def _collect(
        self,
        chunk: Chunk,
        followers: Iterator[Chunk],
        offset: Offset,
        *,
        bytes_max: int,
        end_offset: Offset | None,
    ) -> ColdRead:
        """Collects batches of `chunk`, and of its successors while each is read to its end."""
        buffers: list[memoryview] = []
        size_bytes = 0
        while True:
            run = chunk.find_run(
                offset,
                bytes_max=bytes_max - size_bytes,
                end_offset=end_offset,
                at_least_one=not buffers,
            )
            if run is None:
                break
            buffers.append(self._downloads.take(chunk, run))
            size_bytes += run.size_bytes
            offset = run.next_offset
            if run.end_position < chunk.size_bytes or size_bytes >= bytes_max:
                break
            follower = next(followers, None)
            if follower is None:
                break
            chunk = follower
        return ColdRead(buffers=buffers, next_offset=offset, size_bytes=size_bytes)

    def _request(self, index: SegmentIndex, number: int) -> Chunk | asyncio.Future[Chunk]:
        return self._downloads.request(
            index.chunk_key(number),
            base_offset=index.chunk_base_offset(number),
            end_offset=index.chunk_end_offset(number),
        )

    def _chunks_in_memory(self, entries: Iterable[SegmentEntry], number: int) -> Iterator[Chunk]:
        """The chunks of `entries` from `number` of the first on, up to one that is not in memory.

        The iterator is lazy: it looks nothing up before the first chunk is requested.
        """
        for entry in entries:
            index = self._indexes.peek(entry.meta_key)
            if index is None:
                return
            for following in range(number, index.chunk_count):
                chunk = self._downloads.find(index.chunk_key(following))
                if chunk is None:
                    return
                yield chunk
            number = 0

    # --- consumers that read on --------------------------------------------------------------

    def _following(self, stream: _Stream | None) -> _Stream:
        """The stream after a read that continues `stream`, at twice its depth; None: a first read.

        Updates the time of its consumer's last fetch.
        """
        reader, depth = Reader(), 0
        if stream is not None:
            reader = stream.reader
            depth = min(max(READ_AHEAD_FIRST, 2 * stream.depth), self._read_ahead_chunks)
        reader.asked_s = asyncio.get_running_loop().time()
        return _Stream(reader, depth, reader.lost_prefetches)

    def _place(self, folder: str, next_offset: Offset, stream: _Stream) -> None:
        place = (folder, next_offset)
        self._streams[place] = stream
        self._streams.move_to_end(place)
        while len(self._streams) > STREAMS_MAX:
            self._streams.popitem(last=False)

    # --- indexes -----------------------------------------------------------------------------

    async def _index(self, entry: SegmentEntry) -> SegmentIndex:
        known = self._indexes.find(entry.meta_key)
        return await result_of(self._start_index(entry)) if known is None else known

    def _start_index(self, entry: SegmentEntry) -> asyncio.Future[SegmentIndex]:
        return self._indexes.start(
            entry.meta_key,
            lambda: load_index(self._store, entry, chunk_bytes=self._chunk_bytes),
        )

    async def find_timestamp(
        self, entry: SegmentEntry, timestamp_ms: TimestampMs, *, start_offset: Offset = 0
    ) -> TimestampOffset | None:
        """The first record at or after `timestamp_ms` and `start_offset`; None if there is none.

        Reads one piece of about 1 MiB, or none at all if its chunk is in memory. Raises as `read`.
        """
        index = await self._index(entry)
        return await find_in_segment(
            index, self._downloads, self._executor, timestamp_ms, start_offset
        )

    async def aborted_transactions(
        self, entry: SegmentEntry, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """Aborted transactions that touch this segment and overlap [start_offset, end_offset)."""
        if not entry.has_transactions:
            return []
        known = self._txn_indexes.find(entry.meta_key)
        if known is None:
            loading = self._txn_indexes.start(
                entry.meta_key, lambda: load_txn_index(self._store, entry)
            )
            known = await result_of(loading)
        return [
            aborted
            for aborted in known
            if aborted.last_offset >= start_offset and aborted.first_offset < end_offset
        ]


def _folder(entry: SegmentEntry) -> str:
    """Returns the partition's folder: one stream of offsets within it is one log."""
    return entry.log_key.rpartition("/")[0]

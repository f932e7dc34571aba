"""Cold reads: batches of archived segments, byte for byte as they were.

    read(entry, offset) ─► index of the segment ─► chunk that holds the offset ─► whole batches
                             (STATISTICS of .meta,     (memory, disk or one          (views into
                              kept)                     ranged GET, all checked)       the chunk)

A read waits for one chunk only, the one with `offset`; what follows it is added as far as it is
in memory already. So a reader never holds one chunk while it waits for another.

Read-ahead: a read that begins where an earlier one ended belongs to a consumer that reads on. The
following chunks are then fetched before they are asked for: none after the first read, two after
the second, then up to `read_ahead_chunks`, over the segment's end into the next ones. Whoever jumps
costs nothing but the chunk he jumped to.

A damaged or missing `.meta` does not make a segment unreadable: its index is rebuilt by walking
the batch headers of the log object once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from strandline.storage.model import AbortedTransaction, Offset, TimestampMs, TimestampOffset
from strandline.storage.records.batch import iter_batches
from strandline.storage.records.record import iter_records
from strandline.storage.remote.chunk_cache import Chunk
from strandline.storage.remote.downloads import ChunkDownloads, open_disk_cache
from strandline.storage.remote.index_loading import load_index, load_txn_index
from strandline.storage.remote.manifest import SegmentEntry
from strandline.storage.remote.object_store import ObjectStore
from strandline.storage.remote.segment_index import SegmentIndex

CHUNK_BYTES = 8 * 1024 * 1024
MEMORY_BYTES_MAX = 128 * 1024 * 1024
READ_AHEAD_CHUNKS = 4
PARALLEL_DOWNLOADS_MAX = 8
# An index of a 1 GiB segment takes 24 KiB, so all of them stay under 12 MiB.
INDEXES_MAX = 512
# Consumers whose next offset is remembered; one that is forgotten starts without read-ahead again.
STREAMS_MAX = 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRead:
    """Whole batches, in order. The buffers keep their memory alive and stay valid as long as they
    exist; `next_offset` is where the next read begins.
    """

    buffers: list[memoryview] = field(default_factory=list)
    next_offset: Offset
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReaderStatistics:
    """Since the start, except what ends in `_now`."""

    live_bytes_now: int
    cached_chunks_now: int
    running_downloads_now: int
    waiting_reads_now: int
    memory_hits: int
    joined_downloads: int
    disk_hits: int
    downloads: int
    downloaded_bytes: int
    guessed_downloads: int
    corrupt_chunks: int
    failed_downloads: int
    evicted_chunks: int


class ColdReader:
    """See the top of this file. Used on one event loop; blocking work goes to `executor`."""

    def __init__(
        self,
        store: ObjectStore,
        executor: Executor,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        disk_bytes_max: int = 0,
        disk_directory: Path | None = None,
        read_ahead_chunks: int = READ_AHEAD_CHUNKS,
        parallel_downloads_max: int = PARALLEL_DOWNLOADS_MAX,
    ) -> None:
        """Opens the disk cache, if there is one (blocking). Raises DiskError if that fails."""
        self._store = store
        self._executor = executor
        self._chunk_bytes = chunk_bytes
        self._read_ahead_chunks = read_ahead_chunks
        self._downloads = ChunkDownloads(
            store,
            executor,
            parallel_max=parallel_downloads_max,
            memory_bytes_max=memory_bytes_max,
            disk=open_disk_cache(disk_directory, disk_bytes_max),
        )
        self._indexes: _Loaded[SegmentIndex] = _Loaded(executor)
        self._txn_indexes: _Loaded[tuple[AbortedTransaction, ...]] = _Loaded(executor)
        # (partition folder, next offset) of recent reads -> how far ahead of it was read.
        self._streams: OrderedDict[tuple[str, Offset], int] = OrderedDict()

    def statistics(self) -> ColdReaderStatistics:
        counters = self._downloads.counters
        return ColdReaderStatistics(
            live_bytes_now=self._downloads.memory.live_bytes,
            cached_chunks_now=self._downloads.memory.chunk_count,
            running_downloads_now=self._downloads.running_count,
            waiting_reads_now=self._downloads.waiting_count,
            memory_hits=counters.memory_hits,
            joined_downloads=counters.joined,
            disk_hits=counters.disk_hits,
            downloads=counters.downloads,
            downloaded_bytes=counters.downloaded_bytes,
            guessed_downloads=counters.guesses,
            corrupt_chunks=counters.corrupt,
            failed_downloads=counters.failed,
            evicted_chunks=self._downloads.memory.evicted_count,
        )

    def close(self) -> None:
        """Fails waiting reads with TierUnavailable and forgets all chunks."""
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
    ) -> ColdRead:
        """Whole batches, the first of which holds `offset` (or is the next one after it).

        At least one batch, else at most `bytes_max` bytes; only batches that begin below
        `end_offset`. Empty only if there is none: then `next_offset` says where to go on.
        `next_entries` are the segments after `entry`, for reading over its end. Raises
        ObjectNotFound, AccessDenied, ObjectArchived, ObjectCorrupt or TierUnavailable.
        """
        assert entry.base_offset <= offset < entry.end_offset, (entry, offset)
        index = await self._index(entry)
        number = index.chunk_for(offset)
        depth = self._stream_depth(entry, offset)
        self._read_ahead(entry, index, number + 1, depth, next_entries)
        run = None
        while run is None:
            chunk = await self._chunk(index, number)
            run = chunk.find_run(
                offset, bytes_max=bytes_max, end_offset=end_offset, at_least_one=True
            )
            number += 1
            if run is None and (number >= index.chunk_count or _is_beyond(chunk, end_offset)):
                return ColdRead(next_offset=entry.end_offset if end_offset is None else offset)
        buffers = [chunk.take(run)]
        size_bytes, next_offset = run.size_bytes, run.next_offset
        followers = self._chunks_in_memory(index, number, next_entries)
        while run.end_position == chunk.size_bytes and size_bytes < bytes_max:
            follower = next(followers, None)
            if follower is None:
                break
            chunk = follower
            following_run = chunk.find_run(
                next_offset,
                bytes_max=bytes_max - size_bytes,
                end_offset=end_offset,
                at_least_one=False,
            )
            if following_run is None:
                break
            run = following_run
            buffers.append(chunk.take(run))
            size_bytes += run.size_bytes
            next_offset = run.next_offset
        self._remember_stream(entry, next_offset, depth)
        return ColdRead(buffers=buffers, next_offset=next_offset, size_bytes=size_bytes)

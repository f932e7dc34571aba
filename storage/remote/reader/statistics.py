"""Statistics of a cold reader: counters since its start, and current state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.storage.remote.reader.corruption_log import Unreadable
from strandline.storage.remote.reader.downloads import ChunkDownloads
from strandline.storage.remote.segment.index_cache import IndexCache


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReaderStatistics:
    """Counters since the start; fields that end in `_now` are current values."""

    live_bytes_now: int
    cached_chunks_now: int
    running_downloads_now: int
    waiting_reads_now: int
    memory_hits: int
    joined_downloads: int
    disk_hits: int
    downloads: int
    downloaded_bytes: int
    prefetched_downloads: int
    corrupt_chunks: int
    # Corrupt downloads and failed reads, by reason.
    unreadable: Mapping[Unreadable, int]
    failed_downloads: int
    evicted_chunks: int
    indexes_now: int
    index_bytes_now: int
    evicted_indexes: int


def cold_reader_statistics(
    downloads: ChunkDownloads, indexes: IndexCache, unreadable: Mapping[Unreadable, int]
) -> ColdReaderStatistics:
    """Combines the figures of the reader's downloads, indexes and failed reads."""
    counters = downloads.counters
    return ColdReaderStatistics(
        live_bytes_now=downloads.cache.live_bytes,
        cached_chunks_now=downloads.cache.chunk_count,
        running_downloads_now=downloads.running_count,
        waiting_reads_now=downloads.waiting_count,
        memory_hits=counters.memory_hits,
        joined_downloads=counters.joined,
        disk_hits=counters.disk_hits,
        downloads=counters.downloads,
        downloaded_bytes=counters.downloaded_bytes,
        prefetched_downloads=counters.prefetches,
        corrupt_chunks=counters.corrupt,
        unreadable={
            reason: unreadable.get(reason, 0)
            + (counters.corrupt if reason is Unreadable.CORRUPT else 0)
            for reason in Unreadable
        },
        failed_downloads=counters.failed,
        evicted_chunks=downloads.cache.evicted_count,
        indexes_now=len(indexes),
        index_bytes_now=indexes.bytes_now,
        evicted_indexes=indexes.evicted_count,
    )

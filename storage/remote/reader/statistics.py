"""Statistics of a cold reader: counters since its start, and current state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.storage.remote.reader.corruption_log import Unreadable


@dataclass(slots=True, kw_only=True)
class DownloadCounters:
    """Counts since the start; owned by the event loop."""

    memory_hits: int = 0
    joined_downloads: int = 0
    disk_hits: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    prefetched_downloads: int = 0
    corrupt_chunks: int = 0
    failed_downloads: int = 0


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

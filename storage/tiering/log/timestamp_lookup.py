"""Looks up archived records by time: the manifest rules out most segments, a time index the rest.

    entries with max timestamp >= wanted ─> the first one's time index ─> one batch ─> the record

Only offsets below the local start are searched: the disk answers for the rest. Retention and merges
may remove a segment meanwhile; then the search is repeated (`cold_read.in_newest`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.storage.model import Offset, TimestampMs, TimestampOffset
from strandline.storage.tiering.log import cold_read
from strandline.storage.tiering.log.cold_read import ReadLog

if TYPE_CHECKING:
    from strandline.storage.remote.manifest.entries import SegmentEntry
    from strandline.storage.tiering.log.remote_log import RemoteLog


async def find_timestamp(
    log: ReadLog, remote: RemoteLog, timestamp_ms: TimestampMs
) -> TimestampOffset | None:
    """The first archived record below the local start at or after that time; None if there is none.

    Raises TierError if the archive cannot be read now.
    """

    async def search() -> TimestampOffset | None:
        start = log.log_start_offset
        async for entry in remote.entries_from(start, max_timestamp_from_ms=timestamp_ms):
            if entry.base_offset >= log.local.start_offset:
                return None
            looking = remote.reader.find_timestamp(entry, timestamp_ms, start_offset=start)
            record = await cold_read.of_segment(entry, looking)
            if record is not None:
                return record
        return None

    return await cold_read.in_newest(log, remote, search)


async def max_timestamp(
    log: ReadLog, remote: RemoteLog, *, higher_than_ms: TimestampMs
) -> TimestampOffset | None:
    """The first archived record with the highest timestamp; None if none reaches `higher_than_ms`.

    Raises TierError if the archive cannot be read now.
    """

    async def search() -> TimestampOffset | None:
        start = log.log_start_offset
        best: SegmentEntry | None = None
        # The segment that the log start cuts: its latest record may be deleted.
        cut: SegmentEntry | None = None
        async for entry in remote.entries_from(start, max_timestamp_from_ms=higher_than_ms):
            if entry.base_offset < start:
                cut = entry
            elif best is None or entry.max_timestamp_ms > best.max_timestamp_ms:
                best = entry
        lowest_ms = higher_than_ms if best is None else best.max_timestamp_ms
        if cut is not None and cut.max_timestamp_ms >= lowest_ms:
            found = await _latest(remote, cut, start_offset=start, lowest_ms=lowest_ms)
            if found is not None:
                return found
        if best is None:
            return None
        looking = remote.reader.find_timestamp(best, best.max_timestamp_ms, start_offset=start)
        return await cold_read.of_segment(best, looking)

    return await cold_read.in_newest(log, remote, search)


async def _latest(
    remote: RemoteLog, entry: SegmentEntry, *, start_offset: Offset, lowest_ms: TimestampMs
) -> TimestampOffset | None:
    """Returns the first record with the highest timestamp at or after `start_offset`.

    None if that is below `lowest_ms`. It is found by halves, as only the time of the whole segment
    is known: with forty looks at the most, into one or two chunks.
    """
    found: TimestampOffset | None = None
    wanted_ms, highest_ms = entry.max_timestamp_ms, entry.max_timestamp_ms
    while lowest_ms <= highest_ms:
        looking = remote.reader.find_timestamp(entry, wanted_ms, start_offset=start_offset)
        record = await cold_read.of_segment(entry, looking)
        if record is None:
            highest_ms = wanted_ms - 1
        else:
            found, lowest_ms = record, record.timestamp_ms + 1
        wanted_ms = (lowest_ms + highest_ms) // 2
    return found

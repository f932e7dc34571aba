"""Segment start offsets by time, for ListOffsets version 0.

Before Kafka 0.10.1 a log was searched by files: a client was told the first offsets of those
segments that were complete before the time it asked for, the newest first, and the log's end if
that time has not come yet. Where Kafka takes a file's time of modification we take the largest
timestamp of its records, which moving or restoring the file does not change.

Segments that only the archive has are known as far as the root manifest goes; older ones are
covered by the log start. Nothing here reads a record or asks the object store.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.storage.model import Offset, TimestampMs
from strandline.storage.tiering.log.segment_views import newest_ms
from strandline.storage.tiering.log.unified_log import UnifiedLog

# Larger than any time: what the log holds is never newer.
_END_OF_TIME_MS = 2**63 - 1


def offsets_before(
    log: UnifiedLog,
    timestamp_ms: TimestampMs | None,
    *,
    end_offset: Offset,
    now_ms: TimestampMs,
    count_max: int,
) -> list[Offset]:
    """Up to `count_max` borders that lie before `timestamp_ms` (None: all), descending.

    `end_offset` is where the log ends for the asker: it counts as complete at `now_ms`. May stat a
    file whose records have no timestamps. Follows Kafka's ListOffsets version 0.
    """
    limit_ms = _END_OF_TIME_MS if timestamp_ms is None else timestamp_ms
    offsets: list[Offset] = []
    is_before = False
    for offset, complete_ms in _borders(log, end_offset, now_ms):
        # Everything below the newest border that fits is older by position, whatever it says.
        is_before = is_before or complete_ms <= limit_ms
        if is_before and offset <= end_offset and offset not in offsets[-1:]:
            offsets.append(offset)
        if len(offsets) >= count_max:
            break
    return offsets[: max(0, count_max)]


def _borders(
    log: UnifiedLog, end_offset: Offset, now_ms: TimestampMs
) -> Iterator[tuple[Offset, TimestampMs]]:
    """Offset and time of each border, newest first; the last is the log start."""
    yield end_offset, now_ms
    log_start = log.log_start_offset
    last = end_offset
    for segment in reversed(log.local.segments):
        if segment.end_offset > log_start and segment.base_offset < last and segment.size_bytes:
            last = max(segment.base_offset, log_start)
            yield last, newest_ms(segment)
    manifest = None if log.remote is None else log.remote.manifest
    for entry in reversed(() if manifest is None else manifest.segments):
        if entry.end_offset > log_start and entry.base_offset < last:
            last = max(entry.base_offset, log_start)
            yield last, entry.max_timestamp_ms
    if last > log_start:
        yield log_start, _oldest_known_ms(log)


def _oldest_known_ms(log: UnifiedLog) -> TimestampMs:
    """When what lies below the known borders was complete, at the latest."""
    manifest = None if log.remote is None else log.remote.manifest
    if manifest is None or not manifest.pages:
        return _END_OF_TIME_MS
    return manifest.pages[0].max_timestamp_ms

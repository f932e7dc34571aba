"""Views of local segments for tiering and retention: their extents and ages.

    segments   [0, 100) [100, 200) of which compaction left nothing [200, 300) [300, ... active
    views      [0, 100) [100, 300) ..................................          [300, ... active

Pure except for a file's modification time, used where records have no timestamps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import Offset, Position, TimestampMs
from strandline.storage.tiering.policy.lifecycle import SegmentView


def segment_views(segments: Sequence[LogSegment], *, with_times: bool) -> list[SegmentView]:
    """Views of the segments; a segment emptied by compaction becomes the beginning of the next one.

    Times are looked up only on request: that may open the files of old segments.
    """
    views: list[SegmentView] = []
    base_offset: Offset | None = None
    for segment in segments:
        if base_offset is None:
            base_offset = segment.base_offset
        if not segment.size_bytes and not segment.is_active:
            continue
        views.append(
            SegmentView(
                base_offset=base_offset,
                end_offset=segment.end_offset,
                size_bytes=segment.size_bytes,
                is_active=segment.is_active,
                newest_ms=newest_ms(segment) if with_times else -1,
            )
        )
        base_offset = None
    return views


def position_of(segment: LogSegment, offset: Offset) -> Position:
    """Where the batches from `offset` on begin in the segment's file. Raises CorruptFile."""
    if offset <= segment.base_offset:
        return 0
    found = segment.locate(offset)
    return segment.size_bytes if found is None else found.position


def newest_ms(segment: LogSegment) -> TimestampMs:
    """The largest record timestamp; for records without one, when the file was last written.

    A closed segment emptied by compaction has no age, so that it delays no others.
    """
    if segment.max_timestamp_ms >= 0 or not (segment.size_bytes or segment.is_active):
        return segment.max_timestamp_ms
    return os.fstat(segment.file().fileno()).st_mtime_ns // 1_000_000

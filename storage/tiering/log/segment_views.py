"""What the tiers and retention are told of local segments: their extents and their ages.

    segments   [0, 100) [100, 200) of which compaction left nothing [200, 300) [300, ... active
    views      [0, 100) [100, 300) ..................................          [300, ... active

Pure but for the time of a file, which is asked where records have none of their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import Offset, TimestampMs
from strandline.storage.tiering.policy.lifecycle import SegmentView


def segment_views(segments: Sequence[LogSegment], *, with_times: bool) -> list[SegmentView]:
    """The segments; one of which compaction left nothing is the beginning of the next one.

    Times are looked for only where somebody asks: that may open the files of old segments.
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


def newest_ms(segment: LogSegment) -> TimestampMs:
    """The largest record timestamp; for records without one, when the file was last written.

    A closed segment of which compaction left nothing has no age that others would wait for.
    """
    if segment.max_timestamp_ms >= 0 or not (segment.size_bytes or segment.is_active):
        return segment.max_timestamp_ms
    return os.fstat(segment.file().fileno()).st_mtime_ns // 1_000_000

"""How far the archive of a compacted log is compacted: one field of its manifest.

    [ every key once ..........)[ compacted against itself ...)
    log start            cleaned_offset                    archive's end

Below `horizon_offset`, no record older than a tombstone has been readable since `horizon_ms`: not
in the archive, and not on the broker's disk, whose log began above it. So these tombstones may be
removed `delete.retention.ms` after that time. The pair is replaced only once that time is over, or
a log that is compacted often would keep its tombstones for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from strandline.storage.model import Offset, TimestampMs
from strandline.storage.remote.manifest.json_document import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionMark:
    """The compaction state of one partition's archive, a field of its manifest."""

    cleaned_offset: Offset
    horizon_offset: Offset
    horizon_ms: TimestampMs

    def droppable_below(self, *, now_ms: TimestampMs, delete_retention_ms: int) -> Offset:
        """Tombstones below this offset may be removed, if their own retention is over too."""
        is_over = now_ms - self.horizon_ms >= delete_retention_ms
        return self.horizon_offset if is_over else 0

    def waits(self, now_ms: TimestampMs, delete_retention_ms: int) -> bool:
        """Whether the retention time still runs; a mark with a time in the future does not wait."""
        return 0 <= now_ms - self.horizon_ms < delete_retention_ms


def next_mark(
    before: CompactionMark | None,
    *,
    cleaned_offset: Offset,
    local_start_offset: Offset,
    now_ms: TimestampMs,
    delete_retention_ms: int,
) -> CompactionMark:
    """Returns the mark after a compaction round up to `cleaned_offset`."""
    if before is not None and before.horizon_offset and before.waits(now_ms, delete_retention_ms):
        return replace(before, cleaned_offset=cleaned_offset)
    return CompactionMark(
        cleaned_offset=cleaned_offset,
        horizon_offset=min(cleaned_offset, local_start_offset),
        horizon_ms=now_ms,
    )


def mark_from(marks: Iterator[Fields]) -> CompactionMark | None:
    """Decodes the mark from the manifest's list of at most one mark."""
    for fields in marks:
        return CompactionMark(
            cleaned_offset=fields.integer("cleaned_offset"),
            horizon_offset=fields.integer("horizon_offset"),
            horizon_ms=fields.integer("horizon_ms"),
        )
    return None

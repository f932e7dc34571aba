"""The segments of a log as one value: replaced as a whole, never changed.

    0          100        250    end
    [  sealed  )[ sealed  )[ active ...

A reader, on the loop or in a worker thread, takes the list once and keeps its view, while the log
rolls or retention removes what it reads. Only the active segment, the last one, still grows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import AbortedTransaction, TimestampOffset


class SegmentList:
    """Segments in the order of their offsets; there is always an active one."""

    __slots__ = ("_bases", "_sealed_bytes", "active", "segments")

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self.segments = tuple(segments)
        self.active = self.segments[-1]
        self._sealed_bytes: int | None = None
        self._bases = [segment.base_offset for segment in self.segments]

    @property
    def sealed_bytes(self) -> int:
        """Bytes of all segments but the active one; counted when it is first asked."""
        if self._sealed_bytes is None:
            self._sealed_bytes = sum(segment.size_bytes for segment in self.segments[:-1])
        return self._sealed_bytes

    @property
    def start_offset(self) -> int:
        return self._bases[0]

    def from_offset(self, offset: int) -> Sequence[LogSegment]:
        """The segment that holds `offset`, and those behind it."""
        if offset >= self.active.base_offset:
            return (self.active,)
        return self.segments[max(0, bisect_right(self._bases, offset) - 1) :]

    def find_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
        """The first record at or after both."""
        for segment in self.from_offset(start_offset):
            if segment.max_timestamp_ms >= timestamp_ms:
                found = segment.find_timestamp(timestamp_ms, start_offset)
                if found is not None:
                    return found
        return None

    def find_max_timestamp(self, start_offset: int) -> TimestampOffset | None:
        """The first record at or after `start_offset` with the highest timestamp of those.

        None without timestamps.
        """
        best: TimestampOffset | None = None
        # The first of equals comes first. A compacted segment may no longer hold the record that
        # gave it its time; then another one's may be later.
        segments = self.from_offset(start_offset)
        for segment in sorted(segments, key=lambda s: s.max_timestamp_ms, reverse=True):
            if best is not None and segment.max_timestamp_ms <= best.timestamp_ms:
                break
            found = segment.find_max_timestamp(start_offset)
            if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
                best = found
        return best

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that have records in [start_offset, end_offset)."""
        aborted = []
        for segment in self.from_offset(start_offset):
            for entry in segment.txn_index.entries:
                if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                    aborted.append(entry)
                # Everything before this offset was decided when the entry was written, so later
                # entries cannot reach back behind it.
                if entry.last_stable_offset >= end_offset:
                    return aborted
        return aborted

"""When the open segment has to be in the bucket, as far as it was written.

Records wait for at most `strandline.remote.active.segment.upload.ms`. Nobody tells when they came:
they are found at one of the looks, so the time between two looks is taken off.
"""

from __future__ import annotations

from strandline.storage.clock import Clock
from strandline.storage.model import Offset
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.policy.lifecycle import SegmentState


def tail_check_ms(interval_ms: int, upload_ms: int) -> int:
    """How often it is looked whether the open segment is due: twice in its time at least."""
    return min(interval_ms, max(1, upload_ms // 2))


class TailTimer:
    """One partition's; `interval_ms` is the time between two looks at it without a tail."""

    def __init__(self, clock: Clock, *, interval_ms: int) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        # None while all of the segment is in the bucket.
        self._due_s: float | None = None

    def reset(self) -> None:
        """All of it is there: the time begins with the next record."""
        self._due_s = None

    def is_due(self, unified_log: UnifiedLog, covered_offset: Offset) -> bool:
        """Whether records above `covered_offset` have waited as long as they may."""
        upload_ms = unified_log.config.strandline_remote_active_segment_upload_ms
        pending = unified_log.judge().pending
        is_next = all(segment.state is SegmentState.ACTIVE for segment in pending)
        if upload_ms < 0 or not is_next or unified_log.local.end_offset <= covered_offset:
            self._due_s = None
            return False
        now_s = self._clock.monotonic_s()
        if self._due_s is None:
            # They came at any time since the last look, so that time has passed already.
            passed_ms = min(upload_ms, tail_check_ms(self._interval_ms, upload_ms))
            self._due_s = now_s + (upload_ms - passed_ms) / 1000
        return now_s >= self._due_s

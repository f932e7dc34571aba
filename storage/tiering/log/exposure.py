"""What one machine alone has of a log: the records that would be lost if it burned now.

    log start        archive's end      end of the pieces      high watermark
        |  in the archive  |  pieces of the open segment  |  exposed  |

Records are counted by their offsets, so a compacted log and its markers count as more. Bytes are
those of the files behind the last piece. The age is that of the oldest exposed record, by its
arrival: a producer may send any timestamp. No record keeps its arrival, so `ExposureAge` remembers
where the log ended at some earlier moments, and an age is at most one check too high.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import Offset, Position

if TYPE_CHECKING:
    from strandline.storage.tiering.log.remote_log import RemoteLog
    from strandline.storage.tiering.log.unified_log import UnifiedLog

# Moments that are remembered for one log. Every second one goes when there are more, so that they
# reach back however long the store is away, and the oldest is exact.
MOMENTS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """How far the bucket has a log.

    `base_offset` and `position` say the same within one segment, -1 where that is not known.
    `since_ms` is when it was written there, None if nothing was.
    """

    end_offset: Offset
    base_offset: Offset = -1
    position: Position = 0
    since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The records of one log that only this machine has, and the age of the oldest of them.

    `late_s` is by how much that exceeds what the topic's properties promise.
    """

    record_count: int = 0
    size_bytes: int = 0
    age_s: float = 0.0
    late_s: float = 0.0


class ExposureAge:
    """Remembers where a log ended, to tell how long its exposed records have been there."""

    __slots__ = ("_moments",)

    def __init__(self) -> None:
        # (seconds, end offset), both ascending. What lies behind an end arrived after its moment.
        self._moments: list[tuple[float, Offset]] = []

    def note(self, covered: Covered, end_offset: Offset, *, now_s: float, now_ms: int) -> float:
        """Takes in the log's present end; returns the age of its oldest exposed record."""
        moments = self._moments
        if not moments and covered.end_offset < end_offset and covered.since_ms is not None:
            # Of an earlier process: they came after what the bucket has.
            moments.append((now_s - max(0, now_ms - covered.since_ms) / 1000, covered.end_offset))
        if moments and moments[-1][1] >= end_offset:
            # Nothing has arrived since; or the log was cut, and what is there arrived before.
            moments[-1] = (now_s if moments[-1][1] == end_offset else moments[-1][0], end_offset)
        else:
            moments.append((now_s, end_offset))
        while len(moments) > 1 and moments[1][1] <= covered.end_offset:
            del moments[0]
        if len(moments) > MOMENTS_MAX:
            del moments[1:-1:2]
        return now_s - moments[0][0] if covered.end_offset < end_offset else 0.0


def covered_by(unified_log: UnifiedLog, remote: RemoteLog) -> Covered | None:
    """Returns how far the bucket has a tiered log; None while its manifest is not known."""
    manifest = remote.manifest
    if not remote.life.is_settled:
        return None
    start_offset = unified_log.log_start_offset
    if remote.life.is_fenced or manifest is None:
        # What another broker archives under these offsets need not be what this one has.
        return Covered(end_offset=start_offset)
    newest = manifest.segments[-1] if manifest.segments else None
    archived = Covered(
        end_offset=max(start_offset, remote.end_offset or 0),
        since_ms=None if newest is None else newest.uploaded_ms,
    )
    tail = manifest.tail
    if not tail or not tail[0].base_offset <= archived.end_offset < tail[-1].end_offset:
        return archived
    return Covered(
        end_offset=tail[-1].end_offset,
        base_offset=tail[0].base_offset,
        position=tail[-1].end_position,
        since_ms=tail[-1].uploaded_ms,
    )


def exposure(local: LocalLog, covered: Covered, *, age_s: float, promised_ms: int = -1) -> Exposure:
    """Returns the records of `local` behind `covered`; `promised_ms` is -1 without a promise."""
    if covered.end_offset >= local.high_watermark:
        return Exposure()
    return Exposure(
        record_count=local.high_watermark - covered.end_offset,
        size_bytes=bytes_behind(local, covered),
        age_s=age_s,
        late_s=0.0 if promised_ms < 0 else max(0.0, age_s - promised_ms / 1000),
    )


def bytes_behind(local: LocalLog, covered: Covered) -> int:
    """Returns the bytes on the disk behind `covered`; too many if its position is not known."""
    size_bytes = 0
    for segment in reversed(local.segments):
        if segment.end_offset <= covered.end_offset and not segment.is_active:
            break
        is_held = segment.base_offset == covered.base_offset
        size_bytes += max(0, segment.size_bytes - (covered.position if is_held else 0))
    return size_bytes

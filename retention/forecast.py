"""Forecasts what retention limits would delete from an archive, by the broker's own policy.

It reads the archive only. A size limit applies to the whole log, and the broker also counts records
only on its disk, so it deletes by size as much as forecast here or a little more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.retention.policy import DropReason, RetentionLimits, RetentionUnit, judge
from strandline.storage.model import Offset, TimestampMs, TopicIdPartition
from strandline.storage.remote.manifest.entries import SegmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast of one partition. `oldest_left_ms`: None if nothing is left, or has no time."""

    partition: TopicIdPartition
    segment_count: int
    size_bytes: int
    drop_count: int
    drop_bytes: int
    drop_records: int
    log_start_offset: Offset
    oldest_left_ms: TimestampMs | None
    reasons: frozenset[DropReason]


def forecast(
    partition: TopicIdPartition,
    segments: Sequence[SegmentEntry],
    limits: RetentionLimits,
    *,
    now_ms: TimestampMs,
    log_start_offset: Offset,
) -> Forecast:
    """Returns what would be deleted of `segments`: the partition's whole archive, oldest first.

    `log_start_offset` is the current one; the result has the next one.
    """
    verdict = judge(
        [RetentionUnit.archived(segment) for segment in segments],
        limits,
        now_ms=now_ms,
        log_start_offset=log_start_offset,
    )
    gone, left = segments[: verdict.drop_count], segments[verdict.drop_count :]
    oldest_ms = min((segment.min_timestamp_ms for segment in left), default=-1)
    return Forecast(
        partition=partition,
        segment_count=len(segments),
        size_bytes=sum(segment.size_bytes for segment in segments),
        drop_count=len(gone),
        drop_bytes=sum(segment.size_bytes for segment in gone),
        drop_records=sum(segment.record_count for segment in gone),
        log_start_offset=max(log_start_offset, verdict.end_offset or 0),
        oldest_left_ms=oldest_ms if oldest_ms >= 0 else None,
        reasons=frozenset(verdict.reasons),
    )

"""Decides which log to compact next, from numbers alone. Kafka's LogCleanerManager.

    offsets      [ clean ..............)[ dirty ...............)[ not cleanable yet ....)
                 log start       first dirty              first uncleanable           end
    segments     | s0 | s1 | s2 | s3    | s4 | s5 | s6 | s7    | s8 | active

Dirty are records after the last cleaning (the checkpoint). Not cleanable are the active segment,
records after the last stable offset (open transactions), records younger than
min.compaction.lag.ms, and records not synced yet: an older record is kept until the newer record
of its key is durable. Both parts consist of whole segments.

    dirty ratio = dirty bytes / (clean bytes + dirty bytes)

The dirtiest log above its min.cleanable.dirty.ratio goes first; one with a record older than
max.compaction.lag.ms needs no ratio. Nor does a log with an archive: only clean segments are
copied and then deleted locally, so a ratio of 1 would end the copying.

A cleaning rewrites everything below the first uncleanable offset, in groups of neighbouring
segments that fit into one, so that segments do not become ever smaller.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.segment.segment import RELATIVE_OFFSET_MAX
from strandline.storage.model import NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanableFacts:
    """A segment as the plan sees it; `index_bytes` is the larger of its two sparse indexes."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int = NO_TIMESTAMP
    first_timestamp_ms: int = NO_TIMESTAMP
    index_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """A log as the plan sees it. `sealed` are the closed segments, in order."""

    config: LogConfig
    sealed: Sequence[CleanableFacts]
    active_base_offset: int
    end_offset: int
    log_start_offset: int
    last_stable_offset: int
    durable_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """The work of a cleaning of one log. `is_overdue`: max.compaction.lag.ms is over.

    `resets_checkpoint`: the checkpoint lay outside of the log and is ignored.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    delay_ms: int
    resets_checkpoint: bool

    @property
    def dirty_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_overdue(self) -> bool:
        return self.delay_ms > 0 and self.dirty_bytes > 0

    def is_due(self, config: LogConfig) -> bool:
        """Returns whether the log is to be cleaned now."""
        if self.clean_bytes + self.dirty_bytes == 0:
            return False
        if config.remote_storage_enable and not config.remote_log_copy_disable:
            # It waits for no further copy, and is cleaned once on this disk.
            return self.dirty_bytes > 0
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def plan_cleaning(facts: LogFacts, *, cleaned_offset: int | None, now_ms: int) -> CleaningPlan:
    """`cleaned_offset` is the cleaner's checkpoint of this log; None if it has none."""
    first_dirty_offset = facts.log_start_offset if cleaned_offset is None else cleaned_offset
    resets = False
    if not facts.log_start_offset <= first_dirty_offset <= facts.end_offset:
        # Below: retention removed the clean part. Above: a crash lost the end of the log.
        resets = True
        first_dirty_offset = facts.log_start_offset
    limit = max(first_dirty_offset, _uncleanable_from(facts, first_dirty_offset, now_ms))
    first_uncleanable_offset = facts.active_base_offset
    for segment in facts.sealed:
        if segment.end_offset > limit:
            first_uncleanable_offset = segment.base_offset
            break
    clean_bytes = sum(s.size_bytes for s in facts.sealed if s.end_offset <= first_dirty_offset)
    dirty_bytes = sum(
        s.size_bytes
        for s in facts.sealed
        if s.end_offset > first_dirty_offset and s.end_offset <= first_uncleanable_offset
    )
    return CleaningPlan(
        first_dirty_offset=first_dirty_offset,
        first_uncleanable_offset=first_uncleanable_offset,
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        delay_ms=_delay_ms(facts, first_dirty_offset, now_ms),
        resets_checkpoint=resets,
    )


def _uncleanable_from(facts: LogFacts, first_dirty_offset: int, now_ms: int) -> int:
    """The offset from which on nothing may be cleaned, not yet rounded to a segment border."""
    limit = min(facts.last_stable_offset, facts.active_base_offset, facts.durable_offset)
    lag_ms = facts.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in facts.sealed:
            if segment.end_offset <= first_dirty_offset:
                continue
            if segment.max_timestamp_ms > now_ms - lag_ms:
                return min(limit, segment.base_offset)
    return limit


def _delay_ms(facts: LogFacts, first_dirty_offset: int, now_ms: int) -> int:
    """Returns how far the oldest dirty record is beyond max.compaction.lag.ms; 0 if it is not."""
    oldest_ms = min(
        (
            segment.first_timestamp_ms
            for segment in facts.sealed
            if segment.end_offset > first_dirty_offset and segment.first_timestamp_ms > 0
        ),
        default=None,
    )
    if oldest_ms is None:
        return 0
    return max(0, now_ms - facts.config.max_compaction_lag_ms - oldest_ms)


def group_segments(
    segments: Sequence[CleanableFacts],
    config: LogConfig,
    *,
    group_starts: Collection[int] = (),
) -> list[tuple[CleanableFacts, ...]]:
    """Runs of neighbours, each small enough for one segment, its indexes and its offsets.

    A new one begins at each of `group_starts`, whatever its size.
    """
    groups: list[tuple[CleanableFacts, ...]] = []
    group: list[CleanableFacts] = []
    for segment in segments:
        if group and (segment.base_offset in group_starts or not _fits(group, segment, config)):
            groups.append(tuple(group))
            group = []
        group.append(segment)
    if group:
        groups.append(tuple(group))
    return groups


def _fits(group: Sequence[CleanableFacts], segment: CleanableFacts, config: LogConfig) -> bool:
    whole = (*group, segment)
    return (
        sum(s.size_bytes for s in whole) <= config.segment_bytes
        and sum(s.index_bytes for s in whole) <= config.segment_index_bytes
        and segment.end_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
    )

"""Facts about a log for the plan of a cleaning: its segments, and which of them may be replaced.

    [ archived ......)[ clean, about to be copied )[ rewritable ............)[ active )

The local cleaner does not rewrite archived segments, nor clean ones that wait for their copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.storage.config.log_config import LONG_MAX
from strandline.storage.local.cleaner.messages import ProducerTail
from strandline.storage.local.cleaner.plan import CleanableFacts, LogFacts
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import NO_TIMESTAMP


def log_facts(opened: LocalLog) -> LogFacts:
    """Returns the facts of a log that the plan needs."""
    with_first = opened.config.max_compaction_lag_ms != LONG_MAX
    segments = rewritable(opened)
    active_base_offset = opened.active_segment.base_offset
    first_offset = segments[0].base_offset if segments else active_base_offset
    return LogFacts(
        config=opened.config,
        sealed=[segment_facts(segment, with_first_timestamp=with_first) for segment in segments],
        active_base_offset=active_base_offset,
        end_offset=opened.end_offset,
        log_start_offset=max(opened.log_start_offset, first_offset)
        if _is_tiered(opened)
        else opened.log_start_offset,
        last_stable_offset=opened.last_stable_offset,
        durable_offset=opened.recovery_point,
    )


def segment_facts(segment: LogSegment, *, with_first_timestamp: bool = False) -> CleanableFacts:
    """The facts of one segment. A first timestamp costs a read of the file. Raises DiskError."""
    return CleanableFacts(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        max_timestamp_ms=segment.max_timestamp_ms,
        first_timestamp_ms=segment.first_timestamp_ms() if with_first_timestamp else NO_TIMESTAMP,
    )


def producer_tails(opened: LocalLog) -> Iterator[ProducerTail]:
    """Yields the last batch of each producer, which a cleaning keeps; last offset -1 for none."""
    for entry in opened.producers.entries.values():
        last_offset = entry.batches[-1].last_offset if entry.batches else -1
        yield ProducerTail(entry.producer_id, entry.epoch, last_offset)


def rewritable(opened: LocalLog) -> list[LogSegment]:
    """Returns the closed segments that a cleaning may replace.

    Archived segments stay as they are. A clean segment that is about to be copied is not
    replaced again here: it is compacted in the archive with the records that follow it.
    """
    closed = [segment for segment in opened.segments if not segment.is_active]
    archived_below = opened.archived_below()
    if archived_below is None:
        return []
    clean_below = (opened.cleaned_offset or 0) if opened.is_being_copied else 0
    return [
        segment
        for segment in closed
        if segment.base_offset >= archived_below and segment.end_offset > clean_below
    ]


def _is_tiered(opened: LocalLog) -> bool:
    return opened.is_being_copied or bool(opened.archived_below())


def is_in_reach(opened: LocalLog) -> bool:
    """Whether the log accepts changes, and every record that is not on this disk is archived."""
    archived_below = opened.archived_below()
    if opened.failure is not None or archived_below is None:
        return False
    return opened.segments[0].base_offset <= max(opened.log_start_offset, archived_below)


def horizon_end_offset(opened: LocalLog, start_offset: int) -> int:
    """The offset below which tombstones and markers may be removed after their delete horizon.

    If records before the local log are not part of the cleaning, removing a tombstone could
    bring back an older value of its key from there. Of a topic with an archive none is removed: a
    replica does not know what its leader has archived meanwhile, and may copy on behind that.
    """
    if opened.config.remote_storage_enable:
        return 0
    return LONG_MAX if start_offset <= opened.log_start_offset else 0

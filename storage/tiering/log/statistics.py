"""Statistics of one partition over both tiers: extents, lag, and pending segments with reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from strandline.storage.model import Offset, TopicPartition
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.tiering.log.exposure import Exposure
from strandline.storage.tiering.log.remote_log import RemoteLog
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.policy.lifecycle import SegmentState, SegmentVerdict
from strandline.storage.tiering.policy.retry import FailureInfo

# They wait for no copy: while copying is turned off there is no lag, as in Kafka.
_NOT_TO_BE_COPIED = (
    SegmentState.ACTIVE,
    SegmentState.COPY_DISABLED,
    SegmentState.TIERING_DISABLED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSegment:
    """A local segment that is not archived, and why."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    state: SegmentState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingTransaction:
    """The oldest open transaction of a partition, while closed segments wait for its end."""

    producer_id: int
    epoch: int
    start_offset: Offset

    def __str__(self) -> str:
        return (
            f"producer {self.producer_id} of epoch {self.epoch} has had a transaction open since"
            f" offset {self.start_offset}; it ends at its timeout, or with kafka-transactions.sh"
            " abort"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """Extents of both tiers, and work that is pending or failing.

    Lag counts closed segments that are due for copying; it is computed from state.
    """

    topic_partition: TopicPartition
    log_start_offset: Offset
    local_start_offset: Offset
    remote_end_offset: Offset | None
    end_offset: Offset
    local_bytes: int
    remote_bytes: int
    remote_segments: int
    deleting_segments: int
    deleting_bytes: int
    pending: tuple[PendingSegment, ...]
    copy_lag_bytes: int
    copy_lag_segments: int
    manifest_known: bool
    copy_failure: FailureInfo | None
    delete_failure: FailureInfo | None
    merge_failure: FailureInfo | None = None
    holding: HoldingTransaction | None = None
    # None while the archive's extent is not known.
    exposed: Exposure | None = None


def statistics_of(
    unified_log: UnifiedLog,
    remote: RemoteLog,
    *,
    copy_failure: FailureInfo | None,
    delete_failure: FailureInfo | None,
    merge_failure: FailureInfo | None,
    exposed: Exposure | None = None,
) -> PartitionStatistics:
    """Returns everything about this partition, as of now."""
    verdict, manifest = unified_log.judge(), remote.manifest
    holding = _holding(unified_log, verdict.pending)
    pending = tuple(_pending(segment, copy_failure, holding) for segment in verdict.pending)
    deleting = () if manifest is None else tuple(_deleting(manifest))
    lagging = [s for s in verdict.pending if s.state not in _NOT_TO_BE_COPIED]
    return PartitionStatistics(
        topic_partition=unified_log.topic_partition,
        log_start_offset=unified_log.log_start_offset,
        local_start_offset=unified_log.local_start_offset,
        remote_end_offset=remote.end_offset,
        end_offset=unified_log.end_offset,
        local_bytes=unified_log.local.size_bytes,
        remote_bytes=0 if manifest is None else manifest.size_bytes,
        remote_segments=0 if manifest is None else manifest.segment_count,
        deleting_segments=sum(count for count, _ in deleting),
        deleting_bytes=sum(size_bytes for _, size_bytes in deleting),
        pending=pending,
        copy_lag_bytes=sum(segment.size_bytes for segment in lagging),
        copy_lag_segments=len(lagging),
        manifest_known=remote.life.is_settled,
        copy_failure=copy_failure,
        delete_failure=delete_failure,
        merge_failure=merge_failure,
        holding=holding,
        exposed=exposed,
    )


def _holding(
    unified_log: UnifiedLog, pending: Iterable[SegmentVerdict]
) -> HoldingTransaction | None:
    if all(segment.state is not SegmentState.UNSTABLE for segment in pending):
        return None
    oldest = unified_log.local.producers.oldest_open()
    if oldest is None:
        return None
    return HoldingTransaction(
        producer_id=oldest.producer_id,
        epoch=oldest.epoch,
        start_offset=oldest.transaction_first_offset,
    )


def _deleting(manifest: Manifest) -> Iterator[tuple[int, int]]:
    """Count and bytes of segments marked for deletion, or below the log start and due for it."""
    for mark in manifest.deleting:
        yield 1, mark.size_bytes
    for page in manifest.pages:
        if page.end_offset <= manifest.log_start_offset:
            yield page.segment_count, page.size_bytes
    for entry in manifest.segments:
        if entry.end_offset <= manifest.log_start_offset:
            yield 1, entry.size_bytes


def _pending(
    segment: SegmentVerdict, failure: FailureInfo | None, holding: HoldingTransaction | None
) -> PendingSegment:
    reason = segment.state.value
    if segment.state is SegmentState.UNSTABLE and holding is not None:
        reason = f"{reason}: {holding}"
    if segment.state is SegmentState.NEXT and failure is not None:
        reason = f"attempt {failure.attempts} failed: {failure.reason}"
    return PendingSegment(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        state=segment.state,
        reason=reason,
    )


@dataclass(slots=True, kw_only=True)
class TopicCounters:
    """Counts of the tiering work of a topic; its partitions share them."""

    copied_bytes: int = 0
    copied_segments: int = 0
    copy_errors: int = 0
    deleted_segments: int = 0
    delete_errors: int = 0

    def add(self, other: TopicCounters) -> None:
        self.copied_bytes += other.copied_bytes
        self.copied_segments += other.copied_segments
        self.copy_errors += other.copy_errors
        self.deleted_segments += other.deleted_segments
        self.delete_errors += other.delete_errors

    def add_copy_error(self) -> None:
        self.copy_errors += 1

    def add_delete_error(self) -> None:
        self.delete_errors += 1

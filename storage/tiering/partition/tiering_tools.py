"""What every partition's tiering works with, and what it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from strandline.storage.clock import Clock
from strandline.storage.local.cleaner.process import CleanerProcess
from strandline.storage.metrics import MetricRegistry
from strandline.storage.model import TimestampMs
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.changes.change_writer import ChangeWriter
from strandline.storage.tiering.copy.copier import SegmentCopier
from strandline.storage.tiering.copy.inspector import SegmentInspector
from strandline.storage.tiering.copy.open_segment_copy import TailCopier
from strandline.storage.tiering.copy.pipeline import CopySlots
from strandline.storage.tiering.partition.config import TieringConfig, TieringExecutors
from strandline.storage.tiering.policy.ownership import Ownership
from strandline.storage.tiering.policy.quota import TierQuota
from strandline.storage.tiering.policy.retry import RetryPolicy
from strandline.storage.tiering.policy.store_health import StoreHealth
from strandline.storage.tiering.rewrite.archive_compaction import ArchiveCompactor
from strandline.storage.tiering.rewrite.merging import SegmentMerger
from strandline.storage.tiering.rewrite.scratch import remove_leftovers

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringTools:
    """What every partition's tiering works with. `executor` runs manifests."""

    store: ObjectStore
    copier: SegmentCopier
    copy_slots: CopySlots
    executor: Executor
    deletes: Executor
    clock: Clock
    # The time by which tombstones are over: no clock that jumped is believed at once.
    believed_ms: Callable[[], TimestampMs]
    metrics: MetricRegistry
    retry: RetryPolicy
    health: StoreHealth
    delete_grace_ms: int
    copy_quota: TierQuota
    tails: TailCopier
    merger: SegmentMerger
    copies: Executor
    merge_target_bytes: int
    compactor: ArchiveCompactor
    inspector: SegmentInspector
    changes: ChangeWriter
    # Ms between two looks at a partition.
    interval_ms: int
    follows: bool = False

    async def run(self, call: Callable[[], T]) -> T:
        """What `call` returns, in the executor of manifests and other small objects."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, call)


def make_tools(
    store: ObjectStore,
    executors: TieringExecutors,
    config: TieringConfig,
    *,
    clock: Clock,
    believed_ms: Callable[[], TimestampMs],
    metrics: MetricRegistry,
    inspector: SegmentInspector,
    cleaner: CleanerProcess,
    ownership: Ownership,
) -> TieringTools:
    """The tools of all partitions of one broker; `inspector` and `compactor` have to be closed."""
    remove_leftovers(config.scratch)
    merger = SegmentMerger(
        store,
        inspector=inspector,
        clock=clock,
        timeout_ms=config.copy_timeout_ms,
        scratch=config.scratch,
    )
    return TieringTools(
        store=store,
        copier=SegmentCopier(
            store,
            inspector=inspector,
            executor=executors.copies,
            clock=clock,
            timeout_ms=config.copy_timeout_ms,
        ),
        copy_slots=CopySlots(config.workers),
        executor=executors.metadata,
        deletes=executors.deletes or executors.metadata,
        clock=clock,
        believed_ms=believed_ms,
        metrics=metrics,
        retry=config.retry,
        health=StoreHealth(store, executor=executors.metadata, clock=clock),
        delete_grace_ms=config.delete_grace_ms,
        copy_quota=TierQuota(config.copy_quota, clock),
        follows=config.follows,
        tails=TailCopier(store, executor=executors.copies, clock=clock),
        interval_ms=config.task_interval_ms,
        merger=merger,
        compactor=ArchiveCompactor(
            store,
            merger=merger,
            process=cleaner,
            believed_ms=believed_ms,
            key_bytes_max=config.compaction_key_bytes_max,
            scratch=config.scratch,
        ),
        inspector=inspector,
        changes=ChangeWriter(
            store,
            executor=executors.changes or executors.metadata,
            clock=clock,
            retry=config.retry,
            ownership=ownership,
            interval_ms=config.changes_interval_ms,
        ),
        copies=executors.copies,
        merge_target_bytes=config.merge_target_bytes,
    )


class PartitionCounters:
    """What the tiering of a topic's partitions has done; they share the topic's counters."""

    def __init__(self, metrics: MetricRegistry, topic: str) -> None:
        labels = {"topic": topic}
        self.copied_bytes = metrics.counter(
            "strandline_remote_copy_bytes_total", "Bytes archived and committed.", **labels
        )
        self.copied_segments = metrics.counter(
            "strandline_remote_copy_segments_total", "Segments archived and committed.", **labels
        )
        self.copy_errors = metrics.counter(
            "strandline_remote_copy_errors_total", "Failed attempts to archive.", **labels
        )
        self.deleted_segments = metrics.counter(
            "strandline_remote_delete_segments_total", "Segments deleted in the archive.", **labels
        )
        self.merged_segments = metrics.counter(
            "strandline_remote_merged_segments_total", "Segments merged into larger ones.", **labels
        )
        self.compacted_segments = metrics.counter(
            "strandline_remote_compacted_segments_total",
            "Archived segments of compacted topics that were rewritten.",
            **labels,
        )
        self.delete_errors = metrics.counter(
            "strandline_remote_delete_errors_total", "Failed attempts to delete.", **labels
        )

"""The workers that all partitions of a broker share: one for each kind of work, built once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.storage.clock import Clock
from strandline.storage.local.cleaner.process import CleanerProcess
from strandline.storage.model import TimestampMs
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.copy.copier import SegmentCopier
from strandline.storage.tiering.copy.inspector import SegmentInspector
from strandline.storage.tiering.copy.open_segment import OpenSegmentCopier
from strandline.storage.tiering.partition.config import TieringConfig, TieringExecutors
from strandline.storage.tiering.partition.expiration import SegmentExpirer
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads
from strandline.storage.tiering.policy.quota import TierQuota
from strandline.storage.tiering.rewrite.compaction import ArchiveCompactor
from strandline.storage.tiering.rewrite.merging import SegmentMerger
from strandline.storage.tiering.rewrite.scratch import remove_leftovers


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveWorkers:
    """The broker's workers; copies, merges and compactions share one quota."""

    copier: SegmentCopier
    open_segments: OpenSegmentCopier
    expirer: SegmentExpirer
    merger: SegmentMerger
    compactor: ArchiveCompactor

    @classmethod
    def new(
        cls,
        store: ObjectStore,
        executors: TieringExecutors,
        config: TieringConfig,
        *,
        clock: Clock,
        believed_ms: Callable[[], TimestampMs],
        inspector: SegmentInspector,
        cleaner: CleanerProcess,
    ) -> ArchiveWorkers:
        """Creates the workers of one broker; `compactor` has to be closed."""
        remove_leftovers(config.scratch)
        quota = TierQuota(config.copy_quota, clock)
        merger = SegmentMerger(
            store,
            inspector=inspector,
            executor=executors.copies,
            clock=clock,
            timeout_ms=config.copy_timeout_ms,
            quota=quota,
            target_bytes=config.merge_target_bytes,
            scratch=config.scratch,
        )
        return cls(
            copier=SegmentCopier(
                store,
                inspector=inspector,
                executor=executors.copies,
                clock=clock,
                timeout_ms=config.copy_timeout_ms,
                quota=quota,
                copies_max=config.workers,
            ),
            open_segments=OpenSegmentCopier(
                store,
                executor=executors.copies,
                clock=clock,
                quota=quota,
                interval_ms=config.task_interval_ms,
            ),
            expirer=SegmentExpirer(
                threads=MetadataThreads(store, executors.deletes or executors.metadata),
                grace_ms=config.delete_grace_ms,
            ),
            merger=merger,
            compactor=ArchiveCompactor(
                store,
                merger=merger,
                process=cleaner,
                executor=executors.copies,
                believed_ms=believed_ms,
                key_bytes_max=config.compaction_key_bytes_max,
                scratch=config.scratch,
            ),
        )

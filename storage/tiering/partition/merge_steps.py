"""Merging: one archived segment in the place of several small ones, a run at a time.

    choose a run ─> steps 1 to 5 of merging.py: one new object ─> 6: commit it, mark the old ones

What was merged is deleted by `expiration_steps.py`, when the grace time of its readers is over. An
object whose run is gone when it is done is an orphan.

A segment that cannot be read, because it is damaged or was uploaded into a class that has to be
restored first, is tried a few times and then left alone until the next start: what lies behind it
is merged all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from strandline.storage.crash_points import MERGE_AFTER_COMMIT, MERGE_BEFORE_COMMIT, crash_point
from strandline.storage.errors import CorruptFile, CorruptRecords, StrandlineError
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.partition.tiering_tools import PartitionCounters, TieringTools
from strandline.storage.tiering.policy.object_options import RESTORED_FIRST, object_options
from strandline.storage.tiering.policy.retry import OBJECT_UNREADABLE, UNREADABLE_TIMES, named_in
from strandline.storage.tiering.rewrite.merging import choose_run

log = logging.getLogger(__name__)


class MergeSteps:
    """See the top of this file. Used on the event loop only."""

    def __init__(
        self, owner: ManifestOwner, tools: TieringTools, counters: PartitionCounters
    ) -> None:
        self._owner = owner
        self._tools = tools
        self._counters = counters
        # How often segments could not be read, by key; all of them in the root of the manifest.
        self._unreadable: dict[str, int] = {}

    @property
    def is_crowded(self) -> bool:
        """Whether entries of the root will soon be sealed, and could not be merged any more."""
        manifest = self._owner.remote.manifest
        return manifest is not None and len(manifest.segments) > manifest_store.PAGE_ENTRIES

    @property
    def _is_compacting(self) -> bool:
        return self._tools.compactor.round_of(self._owner.remote.partition) is not None

    async def step(self) -> bool:
        """Makes one segment of several small ones, if there are such; True if there may be more.

        Raises StorageError, RecordsRejected.
        """
        manifest, target_bytes = self._owner.remote.manifest, self._tools.merge_target_bytes
        config = self._owner.log.config
        # What has to be restored first cannot be read, so it cannot be merged either.
        is_out_of_reach = config.strandline_remote_storage_class in RESTORED_FIRST
        if manifest is None or target_bytes <= 0 or is_out_of_reach:
            return False
        if config.remote_log_copy_disable or self._is_compacting:
            return False
        if not manifest.marks_left:
            return False
        run = choose_run(manifest, target_bytes=target_bytes, left_alone=self._left_alone)
        if not run or await self._tools.copy_quota.wait_a_step():
            return bool(run)
        self._tools.copy_quota.record(sum(entry.size_bytes for entry in run))
        call = partial(
            self._tools.merger.merge,
            self._owner.remote.partition,
            run,
            leader_epoch=self._owner.leader_epoch,
            options=object_options(config),
        )
        try:
            merged = await asyncio.get_running_loop().run_in_executor(self._tools.copies, call)
        except (CorruptFile, CorruptRecords) as error:
            self._note_unreadable(manifest, run, error)
            raise
        except OBJECT_UNREADABLE as error:
            self._note_unreadable(manifest, named_in(error, run), error)
            raise
        if self._owner.life.is_detached() or self._owner.remote.manifest is not manifest:
            return False
        crash_point(MERGE_BEFORE_COMMIT)
        now_ms = self._tools.clock.now_ms()
        await self._owner.commit(  # 6
            self._owner.owned(manifest).with_replacement(run, merged, marked_ms=now_ms)
        )
        crash_point(MERGE_AFTER_COMMIT)
        self._counters.merged_segments.add(len(run))
        log.info(
            "archived segments merged",
            extra={
                "fields": {
                    "partition": str(self._owner.log.topic_partition),
                    "segments": len(run),
                    "base_offset": merged.base_offset,
                    "size_bytes": merged.size_bytes,
                }
            },
        )
        return True

    @property
    def _left_alone(self) -> frozenset[str]:
        times = self._unreadable.items()
        return frozenset(key for key, count in times if count >= UNREADABLE_TIMES)

    def _note_unreadable(
        self, manifest: Manifest, entries: Sequence[SegmentEntry], error: StrandlineError
    ) -> None:
        in_root = {entry.log_key for entry in manifest.segments}
        times = {key: count for key, count in self._unreadable.items() if key in in_root}
        self._unreadable = times
        for entry in entries:
            times[entry.log_key] = times.get(entry.log_key, 0) + 1
            if times[entry.log_key] != UNREADABLE_TIMES:
                continue
            log.warning(
                "segment cannot be merged and is left as it is",
                extra={"fields": {"key": entry.log_key, "reason": str(error)}},
            )

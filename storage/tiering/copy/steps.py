"""Copies and commits the closed segments of one partition, the next ones ahead of time.

    commit  <-  head: uploading  <-  ahead: inspected, then uploading

A segment is copied, verified and committed by steps 1 to 6 of `copier.py`. Commits are in order: a
copy that is ready early waits here. So one segment is inspected while another is uploaded. Before
the first copy the bucket gets topic.json and an empty manifest.

A verified copy is kept until the outcome of its commit is known: after a failure it is committed
again, not uploaded again. A copy that is no longer wanted (segment deleted, deadline missed, log
diverged, copying turned off) is forgotten. Its objects are deleted, unless a commit may have been
tried: then they may be archived, and the search for orphans decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from strandline.storage.crash_points import COPY_AFTER_COMMIT, COPY_BEFORE_COMMIT, crash_point
from strandline.storage.model import Offset
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.tiering.copy.copier import (
    CopyDeadlineMissed,
    Copying,
    SegmentCopier,
)
from strandline.storage.tiering.log.statistics import TopicCounters
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.policy.lifecycle import SegmentVerdict
from strandline.storage.tiering.policy.retry import RetryState

log = logging.getLogger(__name__)


class CopySteps:
    """Copies one partition's closed segments. Used on the event loop only."""

    def __init__(
        self,
        owner: ManifestOwner,
        copier: SegmentCopier,
        counters: TopicCounters,
        *,
        retry: RetryState,
    ) -> None:
        """`retry` says whether the previous step failed; the caller updates it."""
        self._owner = owner
        self._copier = copier
        self._counters = counters
        self._retry = retry
        self._copies: dict[Offset, Copying] = {}
        # Of these, those whose commit may have been tried.
        self._finished: set[Offset] = set()
        self._running: set[asyncio.Future[SegmentEntry]] = set()
        self._logged_misfit: Offset | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no copy is running, cancelled ones included."""
        return not self._running

    async def wait_until_idle(self) -> None:
        """Waits until no copy is running, cancelled ones included."""
        if self._running:
            await asyncio.wait(set(self._running))

    async def step(self) -> bool:
        """Copies and commits the next segment; True if there is more.

        Raises StorageError, RecordsRejected.
        """
        verdict = self._owner.log.judge()
        wanted = verdict.next_copies()
        self._forget_all_but(wanted)
        self._log_misfit(verdict.misfit)
        if not wanted:
            return False
        head = wanted[0]
        if head.base_offset not in self._copies:
            await self._owner.ensure_manifest()
            if await self._copier.quota.wait_a_step():
                return True
            if self._owner.life.is_detached():
                return False
            # Retention or the cleaner may have removed the segment.
            wanted = self._owner.log.judge().next_copies()
            self._forget_all_but(wanted)
            if head not in wanted:
                return True
        self._begin_copies(wanted)
        copying = self._copies[head.base_offset]
        entry = await self._finish(copying)
        # The log and the archive may have changed during the copy.
        if self._owner.life.is_detached() or not self._still_fits(copying, entry):
            return not self._owner.life.is_detached()
        await self._commit(entry)
        self._forget(head.base_offset)
        return bool(self._owner.log.judge().next_copies())

    def _log_misfit(self, segment: SegmentVerdict | None) -> None:
        """Logs a misfit once for each segment: retries cannot fix it."""
        logged = self._logged_misfit
        self._logged_misfit = None if segment is None else segment.base_offset
        if segment is None or segment.base_offset == logged:
            return
        log.warning(
            "copying has stopped: segment and archive do not fit together;"
            " see: strandline docs runbooks/copying",
            extra={
                "fields": {
                    "partition": str(self._owner.log.topic_partition),
                    "base_offset": segment.base_offset,
                    "archive_end_offset": self._owner.remote.end_offset,
                    "log_start_offset": self._owner.log.log_start_offset,
                    "reason": segment.state.value,
                }
            },
        )

    def _still_fits(self, copying: Copying, entry: SegmentEntry) -> bool:
        """Whether the verified copy may be committed: in time, wanted, and of the right segment."""
        return (
            entry.base_offset == copying.source.base_offset
            and entry.end_offset > self._owner.log.log_start_offset
            and not self._copier.is_late(copying.source)
        )

    async def _commit(self, entry: SegmentEntry) -> None:
        new = (
            self._owner.manifest()
            .with_log_start(self._owner.log.log_start_offset)
            .with_segment(entry, marked_ms=self._owner.clock.now_ms())
        )
        crash_point(COPY_BEFORE_COMMIT)
        await self._owner.commit(new)  # 6
        crash_point(COPY_AFTER_COMMIT)
        self._counters.copied_bytes += entry.size_bytes
        self._counters.copied_segments += 1
        log.info(
            "segment archived",
            extra={
                "fields": {
                    "partition": str(self._owner.log.topic_partition),
                    "base_offset": entry.base_offset,
                    "end_offset": entry.end_offset,
                    "size_bytes": entry.size_bytes,
                    "key": entry.log_key,
                }
            },
        )

    # --- the copies under way ----------------------------------------------------------------

    def _begin_copies(self, wanted: Sequence[SegmentVerdict]) -> None:
        """Starts the next copy, and later ones if threads, quota and earlier copies permit."""
        for segment in wanted:
            if segment.base_offset in self._copies:
                continue
            is_ahead = segment is not wanted[0]
            # Copies after one that fails would miss their deadline.
            is_stuck = self._retry.failure is not None
            over_quota = self._copier.quota.throttle_s() > 0
            if is_ahead and (is_stuck or over_quota or not self._copier.may_go_ahead):
                return
            self._copier.quota.record(segment.size_bytes)
            copying = self._copier.begin(
                self._owner.log, segment, leader_epoch=self._owner.life.leader_epoch
            )
            self._copies[segment.base_offset] = copying
            self._running.add(copying.outcome)
            copying.outcome.add_done_callback(self._running.discard)

    async def _finish(self, copying: Copying) -> SegmentEntry:
        """Waits for a running copy, which stays known until `_forget`. Raises its errors."""
        base_offset = copying.source.base_offset
        self._finished.add(base_offset)
        try:
            return await self._copier.finish(copying)
        except CopyDeadlineMissed:
            if self._copies.get(base_offset) is copying:
                self._forget(base_offset)
            raise

    def _forget_all_but(self, wanted: Sequence[SegmentVerdict]) -> None:
        """Forgets copies of other segments, failed ones, and those past their deadline."""
        ends = {segment.base_offset: segment.end_offset for segment in wanted}
        for base_offset, copying in list(self._copies.items()):
            outcome = copying.outcome
            is_failed = outcome.done() and (outcome.cancelled() or outcome.exception() is not None)
            # Compaction may have changed the segment boundaries.
            is_other = ends.get(base_offset) != copying.source.end_offset
            if is_other or is_failed or self._copier.is_late(copying.source):
                self._forget(base_offset)

    def _forget(self, base_offset: Offset) -> None:
        """Drops a committed copy, or cancels one that is no longer wanted.

        It may be forgotten already: the partition may be detached during the commit.
        """
        copying = self._copies.pop(base_offset, None)
        if copying is None:
            return
        copying.source.useless.set()
        if base_offset in self._finished:
            self._finished.discard(base_offset)
        else:
            self._copier.delete_when_ended(copying)

    def forget_all(self) -> None:
        """Cancels all copies; none is committed any more."""
        self._forget_all_but(())

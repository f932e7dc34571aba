"""Copying one partition: the next closed segment, and what is new in the open one.

    move the log start in the manifest              crash point delete.after-log-start
    copy one segment, verify it, commit it          steps 1 to 6 of copier.py
    nothing left to copy: a part of the open one    steps 1 to 3 of open_segment_copy.py

The log start comes first, so that the archive may go on behind records that were deleted before
they were ever copied, and so that nothing is deleted later that a restarted broker would still
offer. Before anything else the bucket gets topic.json, and a manifest that names nothing.

While one segment is committed the next ones are on their way (`pipeline.py`). A copy that was
verified is kept until its commit is known: after a failure it is committed again, not uploaded
again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from strandline.storage.crash_points import (
    COPY_AFTER_COMMIT,
    COPY_BEFORE_COMMIT,
    DELETE_AFTER_LOG_START,
    TAIL_AFTER_COMMIT,
    crash_point,
)
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import Offset
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.tiering.copy.copier import CopiedSegment
from strandline.storage.tiering.copy.open_segment_copy import is_prefix_of
from strandline.storage.tiering.copy.pipeline import COPIES_PER_PARTITION, CopyPipeline
from strandline.storage.tiering.log.open_segment_timer import TailTimer
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.partition.tiering_tools import PartitionCounters, TieringTools
from strandline.storage.tiering.policy.lifecycle import SegmentVerdict
from strandline.storage.tiering.policy.retry import RetryState

log = logging.getLogger(__name__)


class CopySteps:
    """See the top of this file. Used on the event loop only."""

    def __init__(
        self,
        owner: ManifestOwner,
        tools: TieringTools,
        counters: PartitionCounters,
        *,
        retry: RetryState,
    ) -> None:
        """`retry` says whether the step before failed; its caller keeps it."""
        self._owner = owner
        self._tools = tools
        self._counters = counters
        self._retry = retry
        self._copies = CopyPipeline(tools.copier, slots=tools.copy_slots, clock=tools.clock)
        self._tail_timer = TailTimer(tools.clock, interval_ms=tools.interval_ms)
        # The open segment of which the committed parts are known to be the beginning.
        self._tail_checked: LogSegment | None = None
        self._misfit_told: Offset | None = None

    def forget_all(self) -> None:
        """What is under way is not committed any more."""
        self._copies.forget_all()

    @property
    def is_idle(self) -> bool:
        """Whether no upload is under way."""
        return self._copies.is_idle

    async def wait_until_idle(self) -> None:
        """Returns when no upload is under way."""
        await self._copies.wait_until_idle()

    async def step(self) -> bool:
        """Loads the manifest if need be, and copies what is next; True if there is more.

        Raises StorageError, RecordsRejected.
        """
        await self._owner.load_if_needed()
        if not self._owner.life.may_commit or not self._tools.health.takes_writes:
            return False
        await self._move_remote_log_start()
        more = await self._copy_next()
        if more or not self._owner.life.may_commit:
            return more
        return await self._copy_tail()

    async def _move_remote_log_start(self) -> None:
        manifest = self._owner.remote.manifest
        if manifest is None or self._owner.log.log_start_offset <= manifest.log_start_offset:
            return
        await self._owner.commit(
            self._owner.owned(manifest).with_log_start(self._owner.log.log_start_offset)
        )
        crash_point(DELETE_AFTER_LOG_START)

    # --- closed segments ---------------------------------------------------------------------

    async def _copy_next(self) -> bool:
        verdict = self._owner.log.judge()
        wanted = verdict.next_copies(COPIES_PER_PARTITION)
        self._copies.keep(wanted)
        self._tell_of_misfit(verdict.misfit)
        if not wanted:
            return False
        head = wanted[0]
        if not self._copies.has(head):
            await self._owner.ensure_manifest()
            if await self._tools.copy_quota.wait_a_step():
                return True
            if self._owner.life.is_detached():
                return False
            # Retention or the cleaner may have taken what was wanted.
            wanted = self._owner.log.judge().next_copies(COPIES_PER_PARTITION)
            if head not in wanted:
                return True
        self._begin_copies(wanted)
        copied = await self._copies.finish(head)
        # The world went on while the copy was made.
        if self._owner.life.is_detached() or not self._still_fits(copied, head.base_offset):
            return not self._owner.life.is_detached()
        await self._commit_copy(copied.entry)
        self._copies.forget(head.base_offset)
        return self._owner.log.judge().next_copy is not None

    def _tell_of_misfit(self, segment: SegmentVerdict | None) -> None:
        """A line in the log, once for each segment, since no retry mends it."""
        told = self._misfit_told
        self._misfit_told = None if segment is None else segment.base_offset
        if segment is None or segment.base_offset == told:
            return
        log.warning(
            "copying has stopped: segment and archive do not fit together; see docs/operations.md",
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

    def _begin_copies(self, wanted: Sequence[SegmentVerdict]) -> None:
        """Begins the next copy, and those behind it as far as nothing speaks against it."""
        for segment in wanted:
            if self._copies.has(segment):
                continue
            is_ahead = segment is not wanted[0]
            # Behind a segment that cannot be copied nothing could be committed in time.
            is_stuck = self._retry.failure is not None
            over_quota = self._tools.copy_quota.throttle_s() > 0
            if is_ahead and (is_stuck or over_quota or not self._copies.may_go_ahead):
                return
            self._tools.copy_quota.record(segment.size_bytes)
            self._copies.begin(self._owner.log, segment, leader_epoch=self._owner.leader_epoch)

    def _still_fits(self, copied: CopiedSegment, base_offset: Offset) -> bool:
        """Whether the verified copy may be committed: in time, wanted, and of the right segment."""
        return (
            copied.entry.base_offset == base_offset
            and copied.entry.end_offset > self._owner.log.log_start_offset
            and self._tools.clock.monotonic_s() <= copied.deadline_s
        )

    async def _commit_copy(self, entry: SegmentEntry) -> None:
        new = (
            self._owner.owned(self._owner.manifest())
            .with_log_start(self._owner.log.log_start_offset)
            .with_segment(entry, marked_ms=self._tools.clock.now_ms())
        )
        crash_point(COPY_BEFORE_COMMIT)
        await self._owner.commit(new)  # 6
        crash_point(COPY_AFTER_COMMIT)
        self._counters.copied_bytes.add(entry.size_bytes)
        self._counters.copied_segments.add()
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

    # --- the open segment --------------------------------------------------------------------

    async def _copy_tail(self) -> bool:
        """Puts what is new in the open segment into the bucket, if it is time to."""
        local, segment = self._owner.log.local, self._owner.log.local.active_segment
        tail = await self._tail_that_fits()
        covered = tail[-1].end_offset if tail else segment.base_offset
        if not self._tail_timer.is_due(
            self._owner.log, max(covered, self._owner.log.log_start_offset)
        ):
            return False
        if await self._tools.copy_quota.wait_a_step():
            return True
        await self._owner.ensure_manifest()
        if self._owner.life.is_detached() or local.active_segment is not segment:
            # What was found above is about a segment that is closed by now.
            return not self._owner.life.is_detached()
        end_offset = local.end_offset
        parts = await self._tools.tails.copy(
            local, tail, self._owner.remote.partition, leader_epoch=self._owner.leader_epoch
        )
        self._tools.copy_quota.record(parts[-1].size_bytes)
        if self._owner.life.is_detached() or local.active_segment is not segment:
            # It was closed meanwhile, and is copied as a whole: the part is an orphan.
            return True
        now_ms = self._tools.clock.now_ms()
        await self._owner.commit(  # 3
            self._owner.owned(self._owner.manifest()).with_tail(parts, marked_ms=now_ms)
        )
        crash_point(TAIL_AFTER_COMMIT)
        if parts[-1].end_offset < end_offset:
            # The rest came as long ago: it is due as well.
            return True
        self._tail_timer.reset()
        return False

    async def _tail_that_fits(self) -> tuple[TailPart, ...]:
        """The committed parts, if they are the beginning of the segment that is open now."""
        tail = () if self._owner.remote.manifest is None else self._owner.remote.manifest.tail
        segment = self._owner.log.local.active_segment
        if not tail or tail[0].base_offset != segment.base_offset:
            return ()
        if self._tail_checked is not segment:
            # Once after a start: the disk may have another past than the bucket.
            if not await self._tools.run(partial(is_prefix_of, tail, self._owner.log.local)):
                return ()
            self._tail_checked = segment
        return tail

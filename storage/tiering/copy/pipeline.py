"""The copies of one partition that are under way: the next one, and the one after it.

    commit  <-  head: uploading  <-  ahead: inspected, then uploading

They are committed strictly in order, so a copy that is ready early waits here. Nobody waits for
the store alone then: while one segment goes over the wire, the next is inspected. A copy that is
not wanted any more (deleted, out of time, another past, copying turned off) is forgotten, and taken
back unless somebody may have tried to commit it: then its objects are orphans, or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strandline.storage.clock import Clock
from strandline.storage.model import Epoch, Offset
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.tiering.copy.copier import (
    CopiedSegment,
    CopyDeadlineMissed,
    Copying,
    SegmentCopier,
)
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.policy.lifecycle import SegmentVerdict

# One on the wire and one before it. More would take bandwidth from the one that is due.
COPIES_PER_PARTITION = 2


class CopySlots:
    """How many copies run in all partitions together. Used on the event loop only.

    Every partition may have its head under way, which is bounded by the number of workers. To go
    ahead of it takes a thread that nobody else needs.
    """

    def __init__(self, count: int) -> None:
        # May be changed at any time; copies under way go on.
        self.count = count
        self._taken = 0

    @property
    def is_free(self) -> bool:
        return self._taken < self.count

    def take(self, copying: Copying) -> None:
        """Counts the copy until it ends."""
        self._taken += 1
        copying.outcome.add_done_callback(self._give_back)

    def _give_back(self, _done: object) -> None:
        self._taken -= 1


class CopyPipeline:
    """See the top of this file. Used on the event loop only."""

    def __init__(self, copier: SegmentCopier, *, slots: CopySlots, clock: Clock) -> None:
        self._copier = copier
        self._slots = slots
        self._clock = clock
        self._copies: dict[Offset, Copying] = {}
        # Of these, those that were given to who commits.
        self._finished: set[Offset] = set()
        self._running: set[asyncio.Future[SegmentEntry]] = set()

    @property
    def may_go_ahead(self) -> bool:
        """Whether a copy besides the partition's next one may begin now."""
        return self._slots.is_free

    def has(self, segment: SegmentVerdict) -> bool:
        """Whether the segment is being copied, or is copied and waits."""
        copying = self._copies.get(segment.base_offset)
        return copying is not None and copying.end_offset == segment.end_offset

    def keep(self, segments: Sequence[SegmentVerdict]) -> None:
        """Forgets copies of other segments, those that failed, and those that are too late."""
        ends = {segment.base_offset: segment.end_offset for segment in segments}
        now_s = self._clock.monotonic_s()
        for base_offset, copying in list(self._copies.items()):
            outcome = copying.outcome
            is_failed = outcome.done() and (outcome.cancelled() or outcome.exception() is not None)
            is_late = now_s > copying.deadline_s
            # A cleaned log may have other borders.
            is_other = ends.get(base_offset) != copying.end_offset
            if is_other or is_failed or is_late:
                self.forget(base_offset)

    def begin(
        self, unified_log: UnifiedLog, segment: SegmentVerdict, *, leader_epoch: Epoch
    ) -> None:
        """Begins a copy."""
        copying = self._copier.begin(unified_log, segment, leader_epoch=leader_epoch)
        self._slots.take(copying)
        self._copies[segment.base_offset] = copying
        self._running.add(copying.outcome)
        copying.outcome.add_done_callback(self._running.discard)

    async def finish(self, segment: SegmentVerdict) -> CopiedSegment:
        """Waits for a copy that was begun; it stays here until `forget`. Raises as a copy."""
        base_offset = segment.base_offset
        copying = self._copies[base_offset]
        self._finished.add(base_offset)
        try:
            return await self._copier.finish(copying)
        except CopyDeadlineMissed:
            if self._copies.get(base_offset) is copying:
                self.forget(base_offset)
            raise

    def forget(self, base_offset: Offset) -> None:
        """The copy is committed, or of no use: then it ends before its next upload.

        Fine if it is forgotten already: the partition may be detached while it is committed.
        """
        copying = self._copies.pop(base_offset, None)
        if copying is None:
            return
        copying.useless.set()
        if base_offset in self._finished:
            self._finished.discard(base_offset)
        else:
            self._copier.take_back(copying)

    def forget_all(self) -> None:
        """Whatever is under way is thrown away."""
        for base_offset in list(self._copies):
            self.forget(base_offset)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being uploaded, useful or not."""
        return not self._running

    async def wait_until_idle(self) -> None:
        """Returns when nothing is being uploaded any more, useful or not."""
        if self._running:
            await asyncio.wait(set(self._running))

"""Expiration: archived segments below the log start leave the manifest, and later the bucket.

    1 mark the entries below the log start           crash point delete.after-mark
      ... grace time: readers with an older manifest finish ...
    2 delete the objects of marks that are due       crash point delete.after-objects
    3 drop these marks

A page of the manifest that is lost, or damaged, names nothing that could be marked. Once the log
start is beyond all of it, it is let go by itself, and keeps the segments behind it no longer; what
it named is nobody's then, and goes as every orphan does (orphans.py).

The log start is durable in the manifest before 1 (`manifest_owner.py`). After 1 no reader finds the
entry. A crash between 2 and 3 deletes absent objects once more, which is fine. What was merged or
compacted away comes to 2 by its marks. Kafka has RemoteLogManager.RLMExpirationTask for this.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from dataclasses import dataclass

from strandline.storage.crash_points import DELETE_AFTER_MARK, DELETE_AFTER_OBJECTS, crash_point
from strandline.storage.errors import (
    CorruptFile,
    ObjectCorrupt,
    ObjectNotFound,
    StorageError,
    UnsupportedFormat,
)
from strandline.storage.remote.manifest.entries import DeletedEntry, SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.log.statistics import PartitionCounters
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.policy.grace_times import GraceTimes

log = logging.getLogger(__name__)

# What a page answers that will not come back. No single such answer costs anything but a way to
# find orphans: nobody may read below the log start.
_LOST = (CorruptFile, ObjectCorrupt, ObjectNotFound)

# One commit marks, and one request deletes, at most this many segments: 1000 keys is what S3 takes.
SEGMENTS_PER_DELETE_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentExpirer:
    """Deletes the objects of segments that no manifest names any more, of any partition."""

    store: ObjectStore
    executor: Executor
    grace_ms: int

    async def delete(self, keys: list[str]) -> None:
        """Returns when they are gone. Raises TierError."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self.executor, self.store.delete, keys)


class ExpirationSteps:
    """Expires one partition's archived segments. Used on the event loop only."""

    def __init__(
        self, owner: ManifestOwner, expirer: SegmentExpirer, counters: PartitionCounters
    ) -> None:
        self._owner = owner
        self._expirer = expirer
        self._counters = counters
        self._grace_times: GraceTimes[DeletedEntry] = GraceTimes(
            owner.clock, grace_ms=expirer.grace_ms
        )

    async def step(self) -> bool:
        """Marks, and deletes what was marked long enough ago; True if there is more to mark.

        Raises StorageError.
        """
        if self._owner.remote.manifest is None:
            return False
        try:
            more = await self._mark_below_log_start()  # 1
        except (*_LOST, UnsupportedFormat):
            # A page cannot be read: what it holds cannot be named, and what is marked can.
            if self._owner.life.may_commit:
                await self._delete_marked()
            raise
        await self._delete_marked()  # 2, 3
        return more

    async def _mark_below_log_start(self) -> bool:
        """Takes entries that nobody may read any more out of the manifest.

        As many as there is room for: the others are no burden to a commit where they are.
        """
        manifest = self._owner.remote.manifest
        assert manifest is not None
        entries: list[SegmentEntry] = []
        count_max = min(SEGMENTS_PER_DELETE_MAX, manifest.marks_left)
        if manifest.first_offset >= manifest.log_start_offset or not count_max:
            return False
        try:
            async for entry in self._owner.remote.entries_from(0):
                is_below = entry.end_offset <= manifest.log_start_offset
                if not is_below or len(entries) == count_max:
                    break
                entries.append(entry)
        except _LOST as error:
            if not entries:
                await self._let_go_of_page(manifest, error)
                return True
            # What lies before the page goes first, then it is the first one itself.
            count_max = len(entries)
        if entries:
            now_ms = self._owner.clock.now_ms()
            await self._owner.commit(manifest.with_deleting(entries, marked_ms=now_ms))
            crash_point(DELETE_AFTER_MARK)
            log.info(
                "archived segments are let go",
                extra={
                    "fields": {
                        "partition": str(self._owner.log.topic_partition),
                        "segments": len(entries),
                        "log_start_offset": manifest.log_start_offset,
                    }
                },
            )
        return len(entries) == count_max

    async def _let_go_of_page(self, manifest: Manifest, error: StorageError) -> None:
        """Takes out the first page, which cannot be read. Raises `error` if it may be needed."""
        if not manifest.pages or manifest.pages[0].end_offset > manifest.log_start_offset:
            raise error
        page = manifest.pages[0]
        now_ms = self._owner.clock.now_ms()
        await self._owner.commit(manifest.without_first_page(page, marked_ms=now_ms))
        log.warning(
            "lost manifest page is let go, what it named is collected as orphans",
            extra={
                "fields": {
                    "partition": str(self._owner.log.topic_partition),
                    "key": page.key,
                    "segments": page.segment_count,
                    "end_offset": page.end_offset,
                    "log_start_offset": manifest.log_start_offset,
                    "reason": str(error),
                }
            },
        )

    async def _delete_marked(self) -> None:
        """Deletes the objects whose grace time is over, and then their marks."""
        manifest = self._owner.remote.manifest
        assert manifest is not None
        waiting = ((mark, mark.marked_ms) for mark in manifest.deleting)
        due = self._grace_times.over(waiting)[:SEGMENTS_PER_DELETE_MAX]
        if not due:
            return
        keys = [key for mark in due for key in mark.keys]
        await self._expirer.delete(keys)
        crash_point(DELETE_AFTER_OBJECTS)
        await self._owner.commit(manifest.without_deleting(due))
        self._counters.deleted_segments.add(sum(mark.log_key != mark.meta_key for mark in due))

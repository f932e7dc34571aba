"""Expiration: archived segments below the log start leave the manifest, later the bucket.

    1 mark the entries below the log start           crash point delete.after-mark
      ... grace time: readers with an older manifest finish ...
    2 delete the objects of marks that are due       crash point delete.after-objects
    3 drop these marks

A lost or damaged manifest page names no segments that could be marked. Once the log start is beyond
the whole page, the manifest drops it, so that it no longer blocks the segments behind it. Its
segments are then orphans, and are deleted as such (orphans.py).

The log start is durable in the manifest before 1 (`manifest_owner.py`). After 1 no reader finds the
entry. A crash between 2 and 3 deletes absent objects once more, which is harmless. Segments that a
merge or compaction replaced reach 2 by their marks. Kafka: RemoteLogManager.RLMExpirationTask.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

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
from strandline.storage.tiering.log.statistics import TopicCounters
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.policy.grace_times import GraceTimes
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads

log = logging.getLogger(__name__)

# Errors of a page that is lost for good. A wrong one costs nothing but a search for orphans:
# readers may not read below the log start.
_LOST = (CorruptFile, ObjectCorrupt, ObjectNotFound)

# One commit marks, and one request deletes, at most this many segments: S3 takes 1000 keys.
SEGMENTS_PER_DELETE_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentExpirer:
    """The threads and the grace time of deletes, for all partitions."""

    threads: MetadataThreads
    grace_ms: int


class ExpirationSteps:
    """Expires one partition's archived segments. Used on the event loop only."""

    def __init__(
        self, owner: ManifestOwner, expirer: SegmentExpirer, counters: TopicCounters
    ) -> None:
        self._owner = owner
        self._expirer = expirer
        self._counters = counters
        self._grace_times: GraceTimes[DeletedEntry] = GraceTimes(
            owner.clock, grace_ms=expirer.grace_ms
        )

    async def step(self) -> bool:
        """Marks segments, deletes those past their grace time; True if more are to be marked.

        Raises StorageError.
        """
        if self._owner.remote.manifest is None:
            return False
        try:
            more = await self._mark_below_log_start()  # 1
        except (*_LOST, UnsupportedFormat):
            # The segments of an unreadable page cannot be marked, but marked ones can be deleted.
            if self._owner.life.may_commit:
                await self._delete_marked()
            raise
        await self._delete_marked()  # 2, 3
        return more

    async def _mark_below_log_start(self) -> bool:
        """Takes the entries below the log start out of the manifest.

        Takes as many as the marks have room for; the remaining entries do not slow down a commit.
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
            # Entries before the page are taken out first; then the page is the first entry.
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
        """Removes the first page, which is unreadable. Raises `error` if a reader may need it."""
        if not manifest.pages or manifest.pages[0].end_offset > manifest.log_start_offset:
            raise error
        page = manifest.pages[0]
        now_ms = self._owner.clock.now_ms()
        await self._owner.commit(manifest.without_first_page(page, marked_ms=now_ms))
        log.warning(
            "lost manifest page dropped, its segments will be deleted as orphans",
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
        """Deletes the objects whose grace time is over, then their marks."""
        manifest = self._owner.remote.manifest
        assert manifest is not None
        waiting = ((mark, mark.marked_ms) for mark in manifest.deleting)
        due = self._grace_times.over(waiting)[:SEGMENTS_PER_DELETE_MAX]
        if not due:
            return
        keys = [key for mark in due for key in mark.keys]
        threads = self._expirer.threads
        await threads.run(partial(threads.store.delete, keys))
        crash_point(DELETE_AFTER_OBJECTS)
        await self._owner.commit(manifest.without_deleting(due))
        self._counters.deleted_segments += sum(mark.log_key != mark.meta_key for mark in due)

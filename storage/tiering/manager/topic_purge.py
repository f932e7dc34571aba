"""Deleting a topic from the bucket, in steps that may be repeated from the first one.

    1 write the tombstone (`deleted_ms` in topic.json)     crash point purge.after-tombstone
      from here on the topic is gone for all
    2 wait until nothing of it is uploaded any more by this process
    ... grace time: readers finish ...
    3 delete every object but topic.json, see              crash point purge.after-some
      topic_objects: a request for a thousand of them      crash point purge.before-topic
    4 delete topic.json; not yet if the topic stays and a DELETE of before may still come
    ... an upload of before has come by now, if it ever comes; see topic_removal ...
    5 delete what came: 3 and 4 once more, by a purge that is the `second`. If something came, 1 is
      done again before the first DELETE, which may be one that is not answered

A crash after 1 leaves a tombstone, which start-up finds and goes on with; after 3 as well. A crash
before 1, or after 4, is the caller's: its own list of deleted topics asks for the purge again.
Nobody asks for a topic that is tiered again: the tombstone says to each start what may come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from strandline.storage.clock import Clock
from strandline.storage.crash_points import (
    PURGE_AFTER_TOMBSTONE,
    PURGE_BEFORE_TOPIC,
    crash_point,
)
from strandline.storage.errors import StorageError, TierUnavailable
from strandline.storage.model import TimestampMs, TopicId
from strandline.storage.remote.keys import topic_folder
from strandline.storage.remote.manifest.topic_info import TopicInfo, change_topic_info
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.manager.partition_tiering import PartitionTiering
from strandline.storage.tiering.manager.topic_objects import TopicObjects
from strandline.storage.tiering.policy.grace_times import GraceTimes
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState

log = logging.getLogger(__name__)


class TopicPurge:
    """The purge of one topic. Used on the event loop only."""

    def __init__(
        self,
        info: TopicInfo,
        *,
        leaving: Sequence[PartitionTiering],
        store: ObjectStore,
        executor: Executor,
        clock: Clock,
        retry: RetryPolicy,
        grace_ms: int,
        on_away: Callable[[TierUnavailable], None],
        is_second: bool = False,
    ) -> None:
        """`leaving`: the partitions that this broker had attached, detached by now. `on_away` is
        told of a store that does not answer. One that `is_second` follows one that ended, and
        begins with step 3, or with 1 if something came.
        """
        self.info = info
        self.is_second = is_second
        # Whether a DELETE of this or an earlier process was sent that may not have been done yet.
        self.is_in_doubt = info.is_deleted and not is_second
        # Whether the topic is there, and may be tiered again; told by who asks for the purge.
        self.stays = False
        self._leaving = tuple(leaving)
        self.let_go()
        self._store = store
        self._executor = executor
        self._clock = clock
        self._on_away = on_away
        self._grace: GraceTimes[TopicId] = GraceTimes(clock, grace_ms=grace_ms)
        # Long ago: the grace time of what came late was over before it came.
        self._deleted_ms: TimestampMs | None = 0 if is_second else None
        self._objects = TopicObjects(info, store, before_first=self._bury if is_second else None)
        self._purging = RetryState("purge", info.topic, policy=retry, clock=clock)
        self.done = False

    def let_go(self) -> None:
        """Drops the partitions that need not be waited for.

        Each of them has its log, whose open files keep what was deleted on the disk, and its
        descriptors: for as long as the store is away, or the archive somebody else's.
        """
        self._leaving = tuple(partition for partition in self._leaving if not partition.is_idle)

    async def step(self) -> bool:
        """Does what is due; True if there is more to do right away. `done` says when it is over."""
        if self.done or not self._purging.may_try:
            return False
        try:
            more = await self._step()
        except StorageError as error:
            self._purging.failed(error)
            if isinstance(error, TierUnavailable):
                self.is_in_doubt |= self._deleted_ms is not None
                self._on_away(error)
            return False
        self._purging.succeeded()
        return more

    async def _step(self) -> bool:
        loop = asyncio.get_running_loop()
        if self._deleted_ms is None:
            self._deleted_ms = await loop.run_in_executor(self._executor, self._bury)  # 1
            crash_point(PURGE_AFTER_TOMBSTONE)
        for partition in self._leaving:
            await partition.wait_until_idle()  # 2
        self._leaving = ()
        if not self._grace.over([(self.info.topic_id, self._deleted_ms)]):
            return False
        if await loop.run_in_executor(self._executor, self._delete_some):  # 3
            return True
        crash_point(PURGE_BEFORE_TOPIC)
        if not (self.stays and self.is_in_doubt):  # 4
            await loop.run_in_executor(self._executor, self._store.delete, [self.info.key])
        self.done = True
        if self.is_second and not self._objects.deleted_count:
            return False
        log.info(
            "late uploads of a purged topic deleted"
            if self.is_second
            else "topic purged from the archive",
            extra={
                "fields": {
                    "topic": self.info.topic,
                    "topic_id": str(self.info.topic_id),
                    "objects": self._objects.deleted_count,
                }
            },
        )
        return False

    def _bury(self) -> TimestampMs:
        """Writes the tombstone unless there is one; when the topic was deleted."""
        deleted_ms = self._clock.now_ms()

        def change(found: TopicInfo | None) -> TopicInfo | None:
            if found is not None and found.is_deleted:
                return None
            return replace(found or self.info, deleted_ms=deleted_ms)

        found = change_topic_info(self._store, self.info, change)
        if found is not None and found.deleted_ms is not None:
            return found.deleted_ms
        return deleted_ms

    def _delete_some(self) -> bool:
        """Deletes a bounded number of objects; True if some may be left."""
        folder = topic_folder(self.info.topic, self.info.topic_id)
        self._store.abort_uploads(folder, older_than_ms=0)
        return self._objects.delete_some()

    def __repr__(self) -> str:
        return f"<TopicPurge {self.info.topic} done={self.done} {self._objects!r}>"

"""Deletes a topic from the bucket, in steps that may be repeated from the first one.

    1 write the tombstone (`deleted_ms` in topic.json)     crash point purge.after-tombstone
      from here on no reader finds the topic
    2 wait until this process has no upload of it running
    ... grace time: readers finish ...
    3 delete every object but topic.json, see              crash point purge.after-some
      topic_objects: a request for a thousand of them      crash point purge.before-topic
    4 delete topic.json; not yet if the topic stays and an earlier DELETE may still arrive
    ... the longest time of an earlier upload; see topic_removal ...
    5 delete late uploads: 3 and 4 once more, by a second purge (`is_second`). If there are any, 1
      is repeated before the first DELETE, because that may time out

After a crash between 1 and 4, start-up finds the tombstone and resumes the purge. After a crash
before 1 or after 4 the caller asks again: it has its own list of deleted topics. For a topic that
is tiered again only the tombstone tells a start that an earlier DELETE may arrive.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from strandline.storage.clock import Clock
from strandline.storage.crash_points import (
    PURGE_AFTER_TOMBSTONE,
    PURGE_BEFORE_TOPIC,
    crash_point,
)
from strandline.storage.errors import ObjectNotFound, StorageError, TierUnavailable
from strandline.storage.model import TimestampMs, TopicId
from strandline.storage.remote.keys import topic_folder
from strandline.storage.remote.manifest.topic_info import TopicInfo, change_topic_info
from strandline.storage.remote.object_store.interface import Lack
from strandline.storage.tiering.manager.partition_tiering import PartitionTiering
from strandline.storage.tiering.manager.topic_objects import TopicObjects
from strandline.storage.tiering.policy.grace_times import GraceTimes
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState

log = logging.getLogger(__name__)


class TopicPurge:
    """The purge of one topic. Used on the event loop only."""

    def __init__(
        self,
        info: TopicInfo,
        *,
        leaving: Sequence[PartitionTiering],
        threads: MetadataThreads,
        clock: Clock,
        retry: RetryPolicy,
        grace_ms: int,
        on_away: Callable[[TierUnavailable], None],
        may_delete: Callable[[], bool] = lambda: True,
        is_second: bool = False,
    ) -> None:
        """`leaving`: the detached partitions of the topic. `on_away` is called when the store does
        not answer, `may_delete` is as for TopicObjects. A purge that `is_second` begins with step
        3, or with 1 if there are late uploads.
        """
        self.info = info
        self.is_second = is_second
        # Whether a DELETE of this or an earlier process may still arrive at the store.
        self.is_in_doubt = info.is_deleted and not is_second
        # Whether the topic still exists and may be tiered again; set by the caller.
        self.stays = False
        self._leaving = tuple(leaving)
        self.release_idle()
        self._threads = threads
        self._clock = clock
        self._on_away = on_away
        self._grace: GraceTimes[TopicId] = GraceTimes(clock, grace_ms=grace_ms)
        # Long ago: no reader knows late uploads, so they need no grace time.
        self._deleted_ms: TimestampMs | None = 0 if is_second else None
        # Whether there may be a tombstone.
        self.has_begun = info.is_deleted or is_second
        self._objects = TopicObjects(
            info,
            threads.store,
            before_first=self._write_tombstone if is_second else None,
            may_delete=may_delete,
        )
        self._purging = RetryState("purge", info.topic, policy=retry, clock=clock)
        self.done = False

    @property
    def failing(self) -> tuple[RetryState, ...]:
        """The purge if it fails now."""
        return self._purging.failing

    def release_idle(self) -> None:
        """Drops the idle partitions, which the purge need not wait for.

        Each holds its log, whose open files keep deleted segments on the disk and use descriptors,
        while the store is unreachable or another broker owns the archive.
        """
        self._leaving = tuple(partition for partition in self._leaving if not partition.is_idle)

    async def step(self) -> bool:
        """Does the work that is due; True if there is more to do right away. Sets `done`."""
        if self.done or not self._purging.may_try:
            return False
        self.has_begun = True
        try:
            more = await self._step()
        except StorageError as error:
            self._purging.failed(error)
            if isinstance(error, TierUnavailable):
                store = self._threads.store
                self.is_in_doubt |= (
                    self._deleted_ms is not None and Lack.CONDITIONAL_DELETE in store.lacks
                )
                self._on_away(error)
            return False
        self._purging.succeeded()
        return more

    async def _step(self) -> bool:
        if self._deleted_ms is None:
            self._deleted_ms = await self._threads.run(self._write_tombstone)  # 1
            crash_point(PURGE_AFTER_TOMBSTONE)
        for partition in self._leaving:
            await partition.wait_until_idle()  # 2
        self._leaving = ()
        if not self._grace.over([(self.info.topic_id, self._deleted_ms)]):
            return False
        if await self._threads.run(self._delete_some):  # 3
            return True
        crash_point(PURGE_BEFORE_TOPIC)
        if not (self.stays and self.is_in_doubt):  # 4
            await self._threads.run(self._delete_topic_info)
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

    def _write_tombstone(self) -> TimestampMs:
        """Writes the tombstone unless there is one; returns the time of the deletion."""
        deleted_ms = self._clock.now_ms()

        def change(found: TopicInfo | None) -> TopicInfo | None:
            if found is not None and found.is_deleted:
                return None
            return replace(found or self.info, deleted_ms=deleted_ms)

        found = change_topic_info(self._threads.store, self.info, change)
        if found is not None and found.deleted_ms is not None:
            return found.deleted_ms
        return deleted_ms

    def _delete_topic_info(self) -> None:
        store = self._threads.store
        if Lack.CONDITIONAL_DELETE in store.lacks:
            store.delete([self.info.key])
            return
        with contextlib.suppress(ObjectNotFound):
            store.delete_matching(self.info.key, store.head(self.info.key).etag)

    def _delete_some(self) -> bool:
        """Deletes a bounded number of objects; True if some may be left."""
        folder = topic_folder(self.info.topic, self.info.topic_id)
        self._threads.store.abort_uploads(folder, older_than_ms=0)
        return self._objects.delete_some()

    def __repr__(self) -> str:
        return f"<TopicPurge {self.info.topic} done={self.done} {self._objects!r}>"

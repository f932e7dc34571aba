"""The tiers of a partition, and how metadata changes reach the remote one.

    LocalTier    logs live on disk alone
    BothTiers    topics with remote.storage.enable are attached to the tiering manager, which leads
                 the archives of the partitions that this broker leads
    SharedTiers  the same for one of several brokers: one of them, the caretaker, empties the bucket
                 of topics, wherever their partitions were

A deleted topic that may have an archive stays in the image as a pending purge until the remote tier
reports that all of it is purged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from strandline.broker.cluster.metadata.image import MetadataDelta, PartitionImage, TopicImage
from strandline.broker.cluster.metadata.records import REMOTE_ENABLED, DeletedTopic, is_true
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS
from strandline.broker.cluster.replicas.partition import Partition
from strandline.storage.errors import CorruptRecords, StorageError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import Offset, TopicPartition
from strandline.storage.remote.manifest.topic_info import TopicInfo
from strandline.storage.tiering.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from strandline.storage.tiering.manager.manager import TieringManager

log = logging.getLogger(__name__)


class LocalTier:
    """The local tier alone; subclasses add the remote one."""

    def __init__(
        self,
        log_starts: Mapping[TopicPartition, Offset],
        *,
        lookups: Executor,
    ) -> None:
        """`log_starts` are the checkpointed ones; `lookups` runs lookups that decompress batches,
        such as ListOffsets by time.
        """
        self._lookups = lookups
        self._log_starts = log_starts

    def join(
        self,
        local: LocalLog,
        topic: TopicImage,
        partition: PartitionImage,
        *,
        is_leader: bool,
        is_new: bool,
    ) -> UnifiedLog:
        """Builds the partition's log over its tiers. `is_new`: the partition had none."""
        start = None if is_new else self._log_starts.get(local.topic_partition)
        return UnifiedLog(local, log_start_offset=start, executor=self._lookups)

    async def fill(self, created: Mapping[TopicPartition, LocalLog], *, must_be_read: bool) -> None:
        """Called with new logs of partitions whose only one is lost, or elsewhere.

        Raises StorageError if `must_be_read`, and what the bucket has of them cannot be read.
        """

    def begin_leading(self, unified_log: UnifiedLog, led: PartitionImage) -> None:
        """Called when this broker leads the partition under a new epoch."""

    def end_leading(self, unified_log: UnifiedLog) -> None:
        """Called when another broker leads the partition, or nobody."""

    def leave(self, unified_log: UnifiedLog) -> None:
        """Called when the partition was removed from this broker."""

    def change(self, topic: TopicImage, served: Sequence[Partition]) -> bool:
        """Applies changed properties; returns True if a log start moved, which must be made durable
        before `changed` is called.
        """
        return False

    def changed(self, topic: TopicImage) -> None:
        """Called when the log starts that `change` moved are durable."""

    def follow(self, delta: MetadataDelta) -> None:
        """Applies created, changed and deleted topics."""


class BothTiers(LocalTier):
    """Both tiers of a broker: logs on disk, and the tiering manager with the tiered ones."""

    def __init__(
        self,
        manager: TieringManager,
        log_starts: Mapping[TopicPartition, Offset],
        *,
        lookups: Executor,
    ) -> None:
        super().__init__(log_starts, lookups=lookups)
        self._manager = manager

    def join(
        self,
        local: LocalLog,
        topic: TopicImage,
        partition: PartitionImage,
        *,
        is_leader: bool,
        is_new: bool,
    ) -> UnifiedLog:
        log = super().join(local, topic, partition, is_leader=is_leader, is_new=is_new)
        if is_tiered(topic):
            self._manager.attach(
                log,
                describe(topic),
                leader_epoch=partition.leader_epoch,
                is_leader=is_leader,
                is_lone=_is_lone(partition),
                is_recovering=partition.is_recovering,
                is_new=is_new,
            )
        return log

    def begin_leading(self, unified_log: UnifiedLog, led: PartitionImage) -> None:
        self._manager.begin_leading(
            unified_log.topic_partition,
            led.leader_epoch,
            is_lone=_is_lone(led),
            is_recovering=led.is_recovering,
        )

    def end_leading(self, unified_log: UnifiedLog) -> None:
        self._manager.end_leading(unified_log.topic_partition)

    def leave(self, unified_log: UnifiedLog) -> None:
        self._manager.detach(unified_log.topic_partition)

    def change(self, topic: TopicImage, served: Sequence[Partition]) -> bool:
        """Attaches logs of topics that are tiered now. If tiering was disabled, the log starts with
        the local files from now on, and the bucket is purged once that is durable (KIP-950).
        """
        if is_tiered(topic):
            for one in served:
                if one.log.remote is None:
                    # The log had no archive until now, so there is none to wait for.
                    self._manager.attach(
                        one.log,
                        describe(topic),
                        leader_epoch=one.leader_epoch,
                        is_leader=one.is_leader,
                        is_lone=_is_lone(topic.partitions[one.topic_partition.partition]),
                        is_new=True,
                    )
            return False
        moved = [one.log for one in served if one.log.remote is not None]
        for unified_log in moved:
            unified_log.move_log_start(unified_log.local.start_offset)
        return bool(moved)

    def changed(self, topic: TopicImage) -> None:
        self._manager.disable_topic(describe(topic))

    def follow(self, delta: MetadataDelta) -> None:
        self._note_topics(delta)
        for deleted in delta.pending_purges.changed():
            self._manager.delete_topic(describe_deleted(deleted))

    def _note_topics(self, delta: MetadataDelta) -> None:
        untiered = self._manager.untiered
        for topic in delta.topics.changed():
            if is_tiered(topic):
                untiered.discard(topic.topic_id)
                self._manager.update_topic(describe(topic))
            else:
                untiered.add(topic.topic_id)
        untiered.difference_update(topic.topic_id for topic in delta.topics.gone())


class SharedTiers(BothTiers):
    """Both tiers of one of several brokers. The notes of purges come from the mirror."""

    def __init__(
        self,
        manager: TieringManager,
        log_starts: Mapping[TopicPartition, Offset],
        *,
        lookups: Executor,
        fill_log: Callable[[LocalLog], Awaitable[None]],
    ) -> None:
        """`fill_log` writes the state of a coordinator that the bucket has into an empty log; it
        raises StorageError.
        """
        super().__init__(manager, log_starts, lookups=lookups)
        self._fill_log = fill_log

    async def fill(self, created: Mapping[TopicPartition, LocalLog], *, must_be_read: bool) -> None:
        for key, local in created.items():
            if key.topic not in INTERNAL_TOPICS:
                continue
            try:
                await self._fill_log(local)
            except (StorageError, CorruptRecords) as error:
                if must_be_read:
                    raise
                log.error(
                    "a lost log is not filled from the bucket",
                    extra={"fields": {"partition": str(key), "reason": str(error)}},
                )

    def changed(self, topic: TopicImage) -> None:
        """The bucket is purged by the caretaker, which may have no partition of the topic."""
        self._manager.leave_topic(describe(topic))

    def follow(self, delta: MetadataDelta) -> None:
        self._note_topics(delta)
        for topic in delta.topics.changed():
            before = delta.topics.before.get(topic.topic_id)
            if before is None or is_tiered(before) == is_tiered(topic):
                continue
            if is_tiered(topic):
                self._manager.keep_topic(topic.topic_id)
            else:
                self._manager.disable_topic(describe(topic))


def is_tiered(topic: TopicImage) -> bool:
    """Whether the topic is tiered."""
    return is_true(topic.properties, REMOTE_ENABLED)


def _is_lone(partition: PartitionImage) -> bool:
    return len(partition.replicas) == 1


def describe(topic: TopicImage) -> TopicInfo:
    """Returns the topic's facts that the bucket stores (topic.json)."""
    return TopicInfo(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition_count=topic.partition_count,
        properties=dict(topic.properties),
    )


def describe_deleted(deleted: DeletedTopic) -> TopicInfo:
    """Returns what a purge needs of a topic that is gone."""
    return TopicInfo(
        topic=deleted.name, topic_id=deleted.topic_id, partition_count=deleted.partition_count
    )

"""Which tiers a partition has, and what the metadata image means for the remote one.

    LocalTier    no object store: logs live on disk alone
    BothTiers    topics with remote.storage.enable are attached to the tiering manager

A deleted topic stays in the image as a pending purge until nothing of it is left. The remote tier
reports that; a topic that was never tiered has nothing there and is done at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Protocol

from strandline.broker.cluster.metadata.image import (
    DeletedTopic,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import Epoch, Offset, TopicId, TopicPartition
from strandline.storage.remote.manifest.topic_info import TopicInfo
from strandline.storage.tiering.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from strandline.storage.tiering.manager.manager import TieringManager

log = logging.getLogger(__name__)

REMOTE_ENABLED = "remote.storage.enable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"


class Tiers(Protocol):
    """What the replica manager asks."""

    def join(
        self, local: LocalLog, topic: TopicImage, partition: PartitionImage, *, is_new: bool
    ) -> UnifiedLog:
        """The partition's log over its tiers. `is_new`: the partition itself began just now."""
        ...

    def lead(self, unified_log: UnifiedLog, leader_epoch: Epoch) -> None:
        """This broker leads the partition under a new epoch."""
        ...

    def leave(self, unified_log: UnifiedLog) -> None:
        """The partition is gone from this broker."""
        ...

    def change(self, topic: TopicImage, served: Sequence[tuple[UnifiedLog, Epoch]]) -> bool:
        """The topic's properties have changed; True if a log start moved and must be made durable
        before `changed` is called.
        """
        ...

    def changed(self, topic: TopicImage) -> None:
        """The log starts that `change` moved are durable."""
        ...

    def follow(self, image: MetadataImage) -> None:
        """Topics were created, changed or deleted."""
        ...


class LocalTier:
    """Logs on disk alone."""

    def __init__(
        self,
        log_starts: Mapping[TopicPartition, Offset],
        *,
        lookups: Executor,
        on_purged: Callable[[TopicId], None],
    ) -> None:
        """`log_starts` are the checkpointed ones; `lookups` runs what decompresses batches, as
        ListOffsets by time does; `on_purged` is told of finished purges.
        """
        self._lookups = lookups
        self._log_starts = log_starts
        self._on_purged = on_purged

    def join(
        self, local: LocalLog, topic: TopicImage, partition: PartitionImage, *, is_new: bool
    ) -> UnifiedLog:
        del topic, partition
        start = None if is_new else self._log_starts.get(local.topic_partition)
        return UnifiedLog(local, log_start_offset=start, executor=self._lookups)

    def lead(self, unified_log: UnifiedLog, leader_epoch: Epoch) -> None:
        """Nobody else has to know."""

    def leave(self, unified_log: UnifiedLog) -> None:
        """Nothing else knows of it."""

    def change(self, topic: TopicImage, served: Sequence[tuple[UnifiedLog, Epoch]]) -> bool:
        """There is one tier, whatever the topic says."""
        return False

    def changed(self, topic: TopicImage) -> None:
        """There is nothing to do."""

    def follow(self, image: MetadataImage) -> None:
        for topic_id, deleted in image.pending_purges.items():
            if not may_be_archived(deleted):
                self._on_purged(topic_id)


class BothTiers:
    """Logs on disk, tiered ones attached to the manager."""

    def __init__(self, local: LocalTier, manager: TieringManager) -> None:
        self._local = local
        self._manager = manager
        self._told: dict[TopicId, TopicInfo] = {}

    def join(
        self, local: LocalLog, topic: TopicImage, partition: PartitionImage, *, is_new: bool
    ) -> UnifiedLog:
        unified_log = self._local.join(local, topic, partition, is_new=is_new)
        if is_tiered(topic):
            self._manager.attach(
                unified_log, describe(topic), leader_epoch=partition.leader_epoch, is_new=is_new
            )
        return unified_log

    def lead(self, unified_log: UnifiedLog, leader_epoch: Epoch) -> None:
        self._manager.update_leader_epoch(unified_log.topic_partition, leader_epoch)

    def leave(self, unified_log: UnifiedLog) -> None:
        self._manager.detach(unified_log.topic_partition)

    def change(self, topic: TopicImage, served: Sequence[tuple[UnifiedLog, Epoch]]) -> bool:
        """Attaches logs whose topic is tiered now. Where it is tiered no more, the log begins on
        this disk from now on; what lies in the bucket goes once that is durable (KIP-950).
        """
        if is_tiered(topic):
            for unified_log, leader_epoch in served:
                if unified_log.remote is None:
                    # It was served without an archive until now, so there is none to wait for.
                    self._manager.attach(
                        unified_log, describe(topic), leader_epoch=leader_epoch, is_new=True
                    )
            return False
        moved = [unified_log for unified_log, _ in served if unified_log.remote is not None]
        for unified_log in moved:
            unified_log.move_log_start(unified_log.local.start_offset)
        return bool(moved)

    def changed(self, topic: TopicImage) -> None:
        self._told.pop(topic.topic_id, None)
        self._manager.disable_topic(describe(topic))

    def follow(self, image: MetadataImage) -> None:
        for topic in image.topics.values():
            info = describe(topic)
            if is_tiered(topic) and self._told.get(topic.topic_id) != info:
                self._told[topic.topic_id] = info
                self._manager.update_topic(info)
        self._manager.disable_topics(
            topic.topic_id for topic in image.topics.values() if not is_tiered(topic)
        )
        for deleted in image.pending_purges.values():
            if may_be_archived(deleted):
                self._told.pop(deleted.topic_id, None)
                self._manager.delete_topic(describe(deleted))
        self._local.follow(image)


def is_tiered(topic: TopicImage | DeletedTopic) -> bool:
    """Whether the topic has (or had) segments in the remote tier."""
    return topic.properties.get(REMOTE_ENABLED, "").strip().lower() == "true"


def may_be_archived(deleted: DeletedTopic) -> bool:
    """Whether the bucket may have something of it: it was tiered, or was until it was disabled."""
    disabled = deleted.properties.get(DELETE_ON_DISABLE, "").strip().lower() == "true"
    return disabled or is_tiered(deleted)


def describe(topic: TopicImage | DeletedTopic) -> TopicInfo:
    """What the bucket is told of a topic."""
    return TopicInfo(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition_count=topic.partition_count,
        properties=dict(topic.properties),
        deleted_ms=None,
    )

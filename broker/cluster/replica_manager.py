"""The partitions of this broker: made, changed and removed as the metadata image says.

Reads of the tables are synchronous and cheap. Changes come from one place, `follow`, called with
one image after the other. Creating and deleting folders blocks on fsync, so that runs in the disk
worker; the tables change on the loop, after it.

    topic appears      create folders        attach to tiering   serve
    topic changes      configs to the log, new partitions as above; tiering begins or ends
    topic disappears   stop serving          detach, remove folders; tiering empties the bucket
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from strandline.broker.cluster.image import MetadataImage, PartitionImage, TopicImage
from strandline.broker.cluster.partition import Partition
from strandline.broker.cluster.tiers import Tiers
from strandline.broker.cluster.traffic import TopicTraffic
from strandline.storage.local.log import LocalLog
from strandline.storage.local.log_dir import LogDirs
from strandline.storage.log_config import LogConfig
from strandline.storage.model import TopicId, TopicPartition

log = logging.getLogger(__name__)


class ReplicaManager:
    """Tables of partitions by name and by id."""

    def __init__(
        self,
        log_dirs: LogDirs,
        tiers: Tiers,
        *,
        topic_defaults: Callable[[], Mapping[str, str]],
        disk: Executor,
    ) -> None:
        """`disk` has one worker: it owns the log folders. `topic_defaults` may be altered."""
        self._log_dirs = log_dirs
        self._tiers = tiers
        self._topic_defaults = topic_defaults
        self._disk = disk
        self._partitions: dict[TopicPartition, Partition] = {}
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[TopicId, dict[int, Partition]] = {}
        self._configs: dict[TopicId, LogConfig] = {}
        self._traffic: dict[TopicId, TopicTraffic] = {}
        # That of topics that were deleted, so that totals never go back.
        self._departed = TopicTraffic()
        # Until the image of start-up is followed, a missing folder may be a lost disk.
        self._is_starting = True

    # --- reading -----------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition | None:
        partitions = self._by_name.get(topic)
        return None if partitions is None else partitions.get(index)

    def partition_by_id(self, topic_id: uuid.UUID | None, index: int) -> Partition | None:
        if topic_id is None:
            return None
        partitions = self._by_id.get(topic_id)
        return None if partitions is None else partitions.get(index)

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(self._partitions.values())

    def traffic_of(self, topic: str) -> TopicTraffic | None:
        """What went in and out of a topic, None if none of its partitions is served here."""
        partitions = self._by_name.get(topic)
        return None if not partitions else next(iter(partitions.values())).traffic

    def total_traffic(self) -> TopicTraffic:
        """What went in and out since the start, deleted topics included."""
        total = TopicTraffic()
        for traffic in (self._departed, *self._traffic.values()):
            total.add(traffic)
        return total

    def config_of(self, topic: TopicImage) -> LogConfig:
        """The topic's typed configuration; properties were checked when they were set."""
        return LogConfig.resolve(topic.properties, self._topic_defaults())

    # --- following the metadata --------------------------------------------------------------

    def take_over(self, logs: Mapping[TopicPartition, LocalLog], image: MetadataImage) -> None:
        """Start-up: serves the logs that were found on disk; `follow` creates what is missing."""
        for topic in image.topics.values():
            for partition in topic.partitions:
                local = logs.get(TopicPartition(topic.name, partition.partition))
                if local is not None:
                    self._serve(topic, partition, local, is_new=False)

    async def follow(self, image: MetadataImage) -> None:
        """Makes folders, tables and tiers as `image` says.

        The first call is start-up's. A folder that is missing then belonged to a partition that may
        have an archive, so it must not be taken for a new one and begin at offset 0 again.
        """
        for topic_id in tuple(self._by_id):
            if topic_id not in image.topics_by_id:
                await self._remove_topic(topic_id)
        for topic in image.topics.values():
            await self._follow_topic(topic)
        self._is_starting = False
        self._tiers.follow(image)

    async def _follow_topic(self, topic: TopicImage) -> None:
        config = self.config_of(topic)
        changed = self._configs.get(topic.topic_id) != config
        self._configs[topic.topic_id] = config
        present = self._by_id.get(topic.topic_id, {})
        missing = [p for p in topic.partitions if p.partition not in present]
        if missing:
            loop = asyncio.get_running_loop()
            created = await loop.run_in_executor(
                self._disk, self._create_logs, topic, missing, config
            )
            for partition, local in zip(missing, created, strict=True):
                self._serve(topic, partition, local, is_new=not self._is_starting)
        for partition in topic.partitions:
            served = self._by_id[topic.topic_id][partition.partition]
            if served.leader_epoch != partition.leader_epoch:
                served.leader_epoch = partition.leader_epoch
                self._tiers.lead(served.log, partition.leader_epoch)
            if changed:
                served.log.local.update_config(config)
        if changed and not self._is_starting:
            await self._change_tiers(topic)

    async def _change_tiers(self, topic: TopicImage) -> None:
        served = self._by_id[topic.topic_id].values()
        logs = [(partition.log, partition.leader_epoch) for partition in served]
        if self._tiers.change(topic, logs):
            await self.checkpoint_log_starts()
            self._tiers.changed(topic)

    def _create_logs(
        self, topic: TopicImage, missing: list[PartitionImage], config: LogConfig
    ) -> list[LocalLog]:
        topic_partitions = [
            TopicPartition(topic.name, partition.partition) for partition in missing
        ]
        return self._log_dirs.create_logs(topic_partitions, topic.topic_id, config)

    def _serve(
        self, topic: TopicImage, partition: PartitionImage, local: LocalLog, *, is_new: bool
    ) -> None:
        topic_partition = TopicPartition(topic.name, partition.partition)
        served = Partition(
            topic_partition,
            topic.topic_id,
            self._tiers.join(local, topic, partition, is_new=is_new),
            partition.leader_epoch,
            disk=self._disk,
            traffic=self._traffic.setdefault(topic.topic_id, TopicTraffic()),
        )
        self._partitions[topic_partition] = served
        self._by_name.setdefault(topic.name, {})[partition.partition] = served
        self._by_id.setdefault(topic.topic_id, {})[partition.partition] = served

    async def _remove_topic(self, topic_id: TopicId) -> None:
        loop = asyncio.get_running_loop()
        self._configs.pop(topic_id, None)
        self._departed.add(self._traffic.pop(topic_id, TopicTraffic()))
        for served in self._by_id.pop(topic_id).values():
            del self._partitions[served.topic_partition]
            by_name = self._by_name[served.topic_partition.topic]
            del by_name[served.topic_partition.partition]
            if not by_name:
                del self._by_name[served.topic_partition.topic]
            served.gone()
            self._tiers.leave(served.log)
            await loop.run_in_executor(self._disk, self._log_dirs.delete_log, served.log.local)

    # --- durability --------------------------------------------------------------------------

    async def checkpoint_log_starts(self) -> None:
        """Makes log starts and high watermarks durable; returns when they are."""
        log_starts = {p.topic_partition: p.log.log_start_offset for p in self.partitions()}
        high_watermarks = {p.topic_partition: p.high_watermark for p in self.partitions()}
        await asyncio.get_running_loop().run_in_executor(
            self._disk, self._log_dirs.write_checkpoints, log_starts, high_watermarks
        )

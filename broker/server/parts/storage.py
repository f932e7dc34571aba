"""The log folders of a broker, the time it trusts, and the logs that are loaded from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from strandline.broker.cluster.metadata.image import MetadataImage, TopicImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.part import Part, in_worker
from strandline.broker.server.upkeep.folder_marks import check_not_interrupted
from strandline.retention.jump_guard import JumpGuard
from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import InvalidConfig
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.local.log_dirs.last_known_time import LastTime
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TimestampMs, TopicId, TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageParts(Part):
    """The log folders, locked, and the guard of the wall clock."""

    log_dirs: LogDirs
    folders: FolderWork
    guard: JumpGuard
    last_time: LastTime
    # It has the metadata, too.
    first_folder: Path

    @classmethod
    async def make(
        cls,
        environment: Environment,
        config: BrokerConfig,
        opened: ExitStack,
        open_folders: Callable[[], LogDirs],
    ) -> StorageParts:
        """`open_folders` locks them, until `opened` is closed; it blocks. Raises as it does."""
        disk, clock = environment.workers.disk, environment.clock
        log_dirs = await in_worker(disk, open_folders)
        opened.callback(log_dirs.unlock)
        last_time = LastTime(lambda: [d.path for d in log_dirs.directories if not d.failure])
        # Instead of a wrong clock at the start.
        guard = JumpGuard(clock, last_ms=await in_worker(disk, last_time.read))
        # A run that ends before the first check of retention notes its time, too.
        await in_worker(disk, partial(last_time.note, guard.now_ms()))
        return cls(
            log_dirs=log_dirs,
            folders=FolderWork(environment.workers.folders.of),
            guard=guard,
            last_time=last_time,
            first_folder=config.logs.dirs[0],
        )

    async def purge_deleted(self, now_s: float) -> None:
        """Unlinks files whose delay is over, in each folder that answers. Raises DiskError."""
        await self.folders.on_each(
            self.log_dirs.directories, lambda one: self.log_dirs.purge_deleted(now_s, (one,))
        )

    async def note_time(self, believed_ms: TimestampMs) -> None:
        """Stores the time that retention trusts, in each folder that answers."""
        if self.last_time.is_due(believed_ms):
            usable = [one for one in self.log_dirs.directories if one.failure is None]
            await self.folders.on_each(
                usable, lambda one: self.last_time.write(one.path, believed_ms)
            )

    def check_first_folder(self) -> None:
        """Raises DiskError if the first log folder has been replaced."""
        folder = self.log_dirs.directory_at(self.first_folder)
        if folder is not None:
            folder.check_present()


def open_log_dirs(config: BrokerConfig, clock: Clock, cluster_id: str | None = None) -> LogDirs:
    """Opens and locks the log folders; blocks. Raises RestoreRefused, StorageError.

    Without a `cluster_id` new folders get one.
    """
    check_not_interrupted(config.logs.dirs)
    return LogDirs.open(
        config.logs.dirs, node_id=config.node_id, cluster_id=cluster_id, clock=clock
    )


def load_logs(
    log_dirs: LogDirs,
    image: MetadataImage,
    config: BrokerConfig,
    *,
    node_id: NodeId,
    keep_empty_strays: bool = True,
) -> dict[TopicPartition, LocalLog]:
    """Loads the logs of the partitions that `image` has on this node, with recovery if needed.

    Blocks. The folder of a deleted topic, of one recreated under another id, and of a partition
    that was moved to other brokers, is kept and not loaded; with `keep_empty_strays` False it is
    kept only if it has records.
    """
    defaults = config.topics.properties
    configs = {topic.name: _config_of(topic, defaults) for topic in image.topics.values()}

    def config_for(key: TopicPartition, topic_id: TopicId) -> LogConfig | None:
        topic = image.topics.get(key.topic)
        if topic is None or topic.topic_id != topic_id:
            return None
        if key.partition >= topic.partition_count:
            return None
        if node_id not in topic.partitions[key.partition].replicas:
            return None
        return configs[key.topic]

    return log_dirs.load(
        config_for,
        threads_per_directory=config.logs.recovery_threads,
        keep_empty_strays=keep_empty_strays,
    )


def _config_of(topic: TopicImage, defaults: Mapping[str, str]) -> LogConfig:
    """Returns a topic's configuration, even if it conflicts with the current defaults."""
    config = LogConfig.resolve(topic.properties, defaults)
    try:
        config.check(topic.properties)
    except InvalidConfig as error:
        log.warning(
            "topic configuration contradicts itself",
            extra={"fields": {"topic": topic.name, "reason": str(error)}},
        )
    return config

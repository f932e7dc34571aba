"""Partitions that are served: from log folders by a replica manager, or each by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.cluster.replicas.tiers import LocalTier
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import Offset, TopicPartition
from strandline.storage.tiering.log.unified_log import UnifiedLog
from tests.unit.broker.cluster.controlled import since_nothing, with_topic
from tests.unit.storage.local.builders import PARTITION, TOPIC_ID


async def serving(dirs: LogDirs, disk: Executor, *, partitions: int) -> ReplicaManager:
    """Follows an image with a topic `t` of so many partitions, local alone."""
    replicas = await serving_nothing(dirs, disk)
    await replicas.follow(*since_nothing(with_topic("t", partitions=partitions)))
    return replicas


async def serving_nothing(
    dirs: LogDirs,
    disk: Executor,
    *,
    found: Mapping[TopicPartition, LocalLog] | None = None,
    image: MetadataImage | None = None,
) -> ReplicaManager:
    """Node 1 after its start, without a topic, or with an image and the logs of it."""
    replicas = ReplicaManager(
        dirs,
        LocalTier({}, lookups=disk),
        node_id=1,
        found=found,
        topic_defaults=dict,
        folders=FolderWork(lambda _: disk),
        syncs=lambda _: disk,
    )
    await replicas.follow(*since_nothing(image or MetadataImage()))
    return replicas


@contextmanager
def leading(local: LocalLog, *, epoch: int, log_start_offset: Offset = 0) -> Iterator[Partition]:
    """A partition of this log, which is closed in the end."""
    with ThreadPoolExecutor(1) as pool:
        log = UnifiedLog(local, log_start_offset=log_start_offset)
        yield Partition(
            PARTITION,
            TOPIC_ID,
            log,
            epoch,
            leader_id=1,
            syncs=lambda _: pool,
            traffic=TopicTraffic(),
        )
    with suppress(DiskError):  # A test may have stopped it.
        local.close()

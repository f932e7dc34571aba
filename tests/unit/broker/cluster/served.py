"""Partitions that are served from log folders, by a replica manager as the broker has it."""

from __future__ import annotations

from concurrent.futures import Executor

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.tiers import LocalTier
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from tests.unit.broker.cluster.controlled import with_topic


async def serving(dirs: LogDirs, disk: Executor, *, partitions: int) -> ReplicaManager:
    """Follows an image with a topic `t` of so many partitions, local alone."""
    replicas = await serving_nothing(dirs, disk)
    await replicas.follow(with_topic("t", partitions=partitions))
    return replicas


async def serving_nothing(dirs: LogDirs, disk: Executor) -> ReplicaManager:
    """After its start, without a topic."""
    replicas = ReplicaManager(
        dirs,
        LocalTier({}, lookups=disk, on_purged=lambda _topic_id: None),
        topic_defaults=dict,
        disk=disk,
        syncs=disk,
    )
    await replicas.follow(MetadataImage())
    return replicas

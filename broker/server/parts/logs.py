"""The partitions of a broker, and the loops over their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from strandline.broker.cluster.metadata.view import Follower
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager, Replication
from strandline.broker.cluster.replicas.replica_moves import ReplicaMoves
from strandline.broker.cluster.replicas.tiers import LocalTier
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.coordinators import CoordinatorParts
from strandline.broker.server.parts.metadata import MetadataParts
from strandline.broker.server.parts.part import Part, in_worker
from strandline.broker.server.parts.storage import StorageParts, load_logs
from strandline.broker.server.upkeep.background import LogUpkeep, delayed
from strandline.broker.server.workers import Workers
from strandline.retention.enforcer import RetentionEnforcer
from strandline.storage.local.cleaner.cleaner import LogCleaner
from strandline.storage.local.formats.checkpoint import NO_BROKER_EPOCH
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.copy_pace import CopyPace
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicPartition
from strandline.storage.tiering.log.unified_log import UnifiedLog


async def serve_partitions(
    environment: Environment,
    storage: StorageParts,
    metadata: MetadataParts,
    *,
    tiers: LocalTier,
    followers: Iterable[Follower] = (),
    keep_empty_strays: bool = True,
    replication: Replication | None = None,
) -> ReplicaManager:
    """Loads the logs, attaches them to their tiers, and creates what the image has and the disk
    lacks. `followers` follow the metadata before the partitions do.
    """
    workers, running = environment.workers, metadata.running
    logs: Mapping[TopicPartition, LocalLog] = await in_worker(
        workers.disk,
        partial(
            load_logs,
            storage.log_dirs,
            metadata.image,
            running.current,
            node_id=running.static.node_id,
            keep_empty_strays=keep_empty_strays,
        ),
    )
    replicas = ReplicaManager(
        storage.log_dirs,
        tiers,
        node_id=running.static.node_id,
        found=logs,
        topic_defaults=lambda: running.current.topics.properties,
        folders=storage.folders,
        syncs=lambda local: workers.syncs.of(local.directory.parent),
        replication=replication,
    )
    await metadata.metadata.publish_to(*followers, replicas.follow, metadata.note_alterations)
    return replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class LogParts(Part):
    """Retention, compaction, moves and syncs of the logs; closes them at the end."""

    workers: Workers
    log_dirs: LogDirs
    replicas: ReplicaManager
    coordinators: CoordinatorParts
    cleaner: LogCleaner
    moves: ReplicaMoves
    broker_epoch: Callable[[], int]

    @classmethod
    def make(
        cls,
        environment: Environment,
        storage: StorageParts,
        metadata: MetadataParts,
        replicas: ReplicaManager,
        coordinators: CoordinatorParts,
        *,
        retained: Callable[[], Iterable[UnifiedLog]] | None = None,
        wake_tiering: Callable[[TopicPartition], None] = lambda _: None,
        broker_epoch: Callable[[], int] | None = None,
        on_moved: Callable[[], None] = lambda: None,
    ) -> LogParts:
        """`retained` are the logs that this broker retains; without it, those that it leads.

        `broker_epoch` is that under which controllers elsewhere know it. They take the partitions
        of a folder that fails for lost until the broker starts again. `on_moved` hears of each
        partition that came into another folder.
        """
        clock, workers, running = environment.clock, environment.workers, metadata.running
        config, believed_ms = running.static, storage.guard.now_ms
        enforcer = RetentionEnforcer(
            retained or (lambda: (partition.log for partition in replicas.led())),
            write_log_starts=replicas.checkpoint_log_starts,
            purge_deleted=storage.purge_deleted,
            wake_tiering=wake_tiering,
            clock=clock,
            guard=storage.guard,
            note_time=storage.note_time,
            interval_ms=config.logs.retention_interval_ms,
        )
        cleaner = LogCleaner(
            lambda: (partition.log.local for partition in replicas.partitions()),
            offsets=storage.log_dirs,
            executor=workers.cleaner,
            clock=clock,
            believed_ms=believed_ms,
            settings=lambda: running.current.cleaner,
            alterations=metadata.alterations,
        )
        moves = ReplicaMoves(
            replicas,
            storage.log_dirs,
            worker=workers.moves,
            clock=clock,
            pace=CopyPace(lambda: running.current.replication.alter_log_dirs_rate, clock),
            cleaning_paused=cleaner.paused,
            on_moved=on_moved,
        )
        upkeep = LogUpkeep(
            replicas,
            storage.log_dirs,
            controller=metadata.controller,
            running=running,
            folders=storage.folders,
            clock=clock,
            believed_ms=believed_ms,
            on_revived=coordinators.transactions.reload,
            revives=broker_epoch is None,
        )
        delay_ms = config.logs.first_delay_ms
        loops = {
            "flush": upkeep.flush_forever,
            "checkpoint": upkeep.checkpoint_forever,
            "retention": delayed(delay_ms, enforcer.run),
            "log folders": upkeep.revive_folders_forever,
            "moves": moves.run,
            "producer expiry": upkeep.expire_producers_forever,
        }
        if config.cleaner.is_enabled:
            loops["cleaner"] = delayed(delay_ms, cleaner.run)
        return cls(
            workers=workers,
            log_dirs=storage.log_dirs,
            replicas=replicas,
            coordinators=coordinators,
            cleaner=cleaner,
            moves=moves,
            broker_epoch=broker_epoch or (lambda: NO_BROKER_EPOCH),
            loops=loops,
        )

    async def end(self) -> None:
        self.cleaner.close()
        # A running flush ends before its file is closed.
        end_syncs = partial(self.workers.syncs.shutdown, wait=True, cancel_futures=True)
        await in_worker(self.workers.disk, end_syncs)

    async def close(self) -> None:
        """Closes the logs, writes the checkpoints, and marks the stop as clean."""
        await self.replicas.deleted()
        partitions = self.replicas.partitions()
        finish = partial(
            self.log_dirs.finish,
            {p.topic_partition: p.log.log_start_offset for p in partitions},
            # After a clean stop no start would look for them.
            is_clean=not self.coordinators.transactions.lacks_ends,
            broker_epoch=self.broker_epoch(),
        )
        await in_worker(self.workers.disk, finish)

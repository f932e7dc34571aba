"""The role of a broker that archives the closed segments of its tiered topics in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.cluster.replicas.tiers import BothTiers
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.network.connection import Spawn
from strandline.broker.server.broker import Started
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.archive import RemoteTier
from strandline.broker.server.parts.coordinators import CoordinatorParts
from strandline.broker.server.parts.front import FrontParts
from strandline.broker.server.parts.logs import LogParts, serve_partitions
from strandline.broker.server.parts.metadata import load_own_metadata, make_metadata_log
from strandline.broker.server.parts.part import Part
from strandline.broker.server.parts.storage import StorageParts, open_log_dirs
from strandline.broker.server.upkeep.archive_upkeep import (
    CLAIM_WAIT_S,
    ArchiveUpkeep,
    start_tiering,
)
from strandline.broker.server.upkeep.background import FinishedPurges
from strandline.broker.server.upkeep.claim import ArchiveClaim
from strandline.broker.server.upkeep.folder_marks import ArchiveMark
from strandline.broker.telemetry.sources import ArchiveSources
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.tiering.policy.retry import RetryState


async def start_tiered(
    environment: Environment, config: BrokerConfig, spawn: Spawn, opened: ExitStack
) -> Started:
    """Starts a broker that owns an archive. Raises StrandlineError."""

    def note_restarted_log() -> None:
        # After the start: its log is attached before there are coordinators.
        coordinators.transactions.note_restarted_log()

    workers = environment.workers
    opening = partial(open_log_dirs, config, environment.clock)
    storage = await StorageParts.make(environment, config, opened, opening)
    store = environment.open_store(config, environment.clock)
    opened.callback(store.close)
    claim = ArchiveClaim(
        store,
        # Not in the metadata thread: topics can be created while the store hangs.
        workers.manifests,
        cluster_id=storage.log_dirs.cluster_id,
        mark=archive_mark(storage, store),
    )
    await claim.attempt(wait_s=CLAIM_WAIT_S)
    purges = FinishedPurges()
    metadata_log = make_metadata_log(storage, environment.clock, mirror=store)
    metadata = await load_own_metadata(
        environment, config, storage, metadata_log, mirror=store, purges=purges
    )
    tier = RemoteTier.open(
        environment,
        storage,
        metadata,
        opened,
        store=store,
        tiering=config.tiering,
        on_topic_purged=purges.add,
        on_restarted=note_restarted_log,
    )
    tiers = BothTiers(
        tier.manager,
        storage.log_dirs.log_start_offsets,
        lookups=workers.lookups,
    )
    replicas = await serve_partitions(
        environment, storage, metadata, tiers=tiers, followers=[tier.follow]
    )
    coordinators = await CoordinatorParts.make(environment, storage, metadata, replicas)
    logs = LogParts.make(
        environment,
        storage,
        metadata,
        replicas,
        coordinators,
        wake_tiering=tier.manager.wake,
    )
    archive = ArchiveParts.make(environment, config, metadata_log, replicas, claim=claim, tier=tier)
    front = FrontParts.make(
        environment,
        storage,
        metadata,
        coordinators,
        logs,
        spawn=spawn,
        archive=archive.sources(metadata_log),
    )
    claim.report_to(tier.manager)
    if claim.is_ours:
        await start_tiering(tier.manager, metadata_log, workers)
    return Started(front, storage, archive, metadata, coordinators, logs)


def archive_mark(storage: StorageParts, store: ObjectStore) -> ArchiveMark | None:
    """Returns this disk's mark of the archive; None for a bucket, which cannot be unmounted."""
    if not isinstance(store, LocalDirectoryStore):
        return None
    return ArchiveMark(storage.first_folder, store.url, check_present=storage.check_first_folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveParts(Part):
    """What this broker writes into its archive, beside segments too."""

    claim: ArchiveClaim
    tier: RemoteTier
    upkeep: ArchiveUpkeep

    @classmethod
    def make(
        cls,
        environment: Environment,
        config: BrokerConfig,
        metadata_log: MetadataLog,
        replicas: ReplicaManager,
        *,
        claim: ArchiveClaim,
        tier: RemoteTier,
    ) -> ArchiveParts:
        upkeep = ArchiveUpkeep(
            claim,
            tier.store,
            tiering=tier.manager,
            metadata_log=metadata_log,
            replicas=replicas,
            workers=environment.workers,
            clock=environment.clock,
            groups_interval_ms=config.archive.groups_interval_ms,
            check_interval_ms=config.archive.check_interval_ms,
        )
        return cls(
            claim=claim,
            tier=tier,
            upkeep=upkeep,
            loops={
                "metadata mirror": upkeep.mirror_forever,
                "tiering": upkeep.tier_forever,
                "store watch": tier.manager.watch_store,
                "groups archive": upkeep.archive_groups_forever,
                "archive look": upkeep.check_forever,
            },
        )

    def sources(self, metadata_log: MetadataLog) -> ArchiveSources:
        """What the metrics page reads of it."""
        return replace(
            self.tier.sources(),
            failing=self._failing,
            mirror_lag=lambda: metadata_log.statistics().mirror_lag,
            state_exposures=self.upkeep.state_exposures,
            verifications=lambda: self.upkeep.verifications,
            deleted_counts=self.upkeep.deleted_counts,
            conditions=lambda: self.claim.conditions,
        )

    def _failing(self) -> Iterator[RetryState]:
        yield from self.tier.manager.failing
        yield from self.upkeep.failing()

    async def end(self) -> None:
        await self.upkeep.read_rest()

    async def close(self) -> None:
        await self.upkeep.write_rest()

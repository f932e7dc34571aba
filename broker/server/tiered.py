"""The role of a broker that archives the closed segments of its tiered topics in a bucket."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from strandline.broker.cluster.replicas.tiers import BothTiers
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.network.connection import Spawn
from strandline.broker.server.broker import Started
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.archive import RemoteTier
from strandline.broker.server.parts.archiving import ArchiveParts, archive_mark
from strandline.broker.server.parts.coordinators import CoordinatorParts
from strandline.broker.server.parts.front import FrontParts
from strandline.broker.server.parts.logs import LogParts, serve_partitions
from strandline.broker.server.parts.metadata import load_own_metadata, make_metadata_log
from strandline.broker.server.parts.storage import StorageParts, open_log_dirs
from strandline.broker.server.upkeep.archive_upkeep import (
    CLAIM_WAIT_S,
    start_tiering,
)
from strandline.broker.server.upkeep.background import FinishedPurges
from strandline.broker.server.upkeep.claim import ArchiveClaim


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

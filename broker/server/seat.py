"""The role of a broker in a cluster whose controllers are other processes, as Apache Kafka's.

The controllers decide: what topics there are, who leads, who may do what. This broker follows their
log, serves the partitions that they place on it, and forwards what is theirs to decide.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.cluster.metadata.features import CLAIMED
from strandline.broker.cluster.replicas.tiers import LocalTier
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.network.connection import Spawn
from strandline.broker.server.broker import Started
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.assignments import AssignmentParts
from strandline.broker.server.parts.coordinators import CoordinatorParts
from strandline.broker.server.parts.elsewhere import ElsewhereParts
from strandline.broker.server.parts.front import FrontParts
from strandline.broker.server.parts.logs import LogParts, serve_partitions
from strandline.broker.server.parts.membership import (
    MembershipParts,
    cluster_id_of,
    connect_to_controllers,
)
from strandline.broker.server.parts.metadata import MetadataParts
from strandline.broker.server.parts.part import Part
from strandline.broker.server.parts.replication import InSyncWatch, ReplicationParts
from strandline.broker.server.parts.storage import StorageParts, open_log_dirs
from strandline.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from strandline.broker.server.parts.shared_archive import SharedArchive


async def start_seat(
    environment: Environment, config: BrokerConfig, spawn: Spawn, opened: ExitStack
) -> Started:
    """Starts a broker that other processes control. Raises StrandlineError."""
    check_seat(config)
    clock = environment.clock
    connect = connect_to_controllers(config, clock)
    cluster_id = await cluster_id_of(config, environment, connect)
    opening = partial(open_log_dirs, config, clock, cluster_id)
    storage = await StorageParts.make(environment, config, opened, opening)
    shared = await _claim_archive(environment, config, storage, opened)
    membership = await MembershipParts.join(
        environment,
        config,
        storage,
        opened,
        connect,
        features=CLAIMED if shared is None else {**CLAIMED, **shared.features},
    )
    metadata = await MetadataParts.make(
        environment, RunningConfig(config), membership.view, membership.controller
    )
    archive = None if shared is None else shared.open(membership, metadata)
    tiers = LocalTier(
        storage.log_dirs.log_start_offsets,
        lookups=environment.workers.lookups,
    )
    elsewhere = ElsewhereParts.make(environment, config, metadata, spawn=spawn)
    replication = ReplicationParts.make(
        environment,
        config,
        metadata,
        elsewhere,
        membership.channel(),
        broker_epoch=lambda: membership.manager.epoch,
        spawn=spawn,
    )
    replicas = await serve_partitions(
        environment,
        storage,
        metadata,
        tiers=tiers if archive is None else archive.tiers,
        followers=[
            *(one.follow for one in replication.throttles),
            *(() if archive is None else [archive.tier.follow]),
        ],
        replication=replication.replication,
    )
    await membership.note_run()
    folders = await AssignmentParts.make(environment, storage, membership, replicas)
    watch = InSyncWatch.make(replicas, lag_ms_max=config.replica_fetch.lag_ms_max)
    coordinators = await CoordinatorParts.make(
        environment, storage, metadata, replicas, others=elsewhere.brokers
    )
    logs = LogParts.make(
        environment,
        storage,
        metadata,
        replicas,
        coordinators,
        # Each replica deletes by itself, as its own files and clock say.
        retained=lambda: (one.log for one in replicas.partitions()),
        wake_tiering=lambda key: None if archive is None else archive.tier.manager.wake(key),
        broker_epoch=lambda: membership.manager.epoch,
        on_moved=folders.assignments.check,
    )
    archiving = None
    if archive is not None:
        archiving = await archive.begin(metadata, replicas, coordinators)
    front = FrontParts.make(
        environment,
        storage,
        metadata,
        coordinators,
        logs,
        spawn=spawn,
        forwarder=membership.forwarder,
        followed=membership.followed,
        others=elsewhere.brokers,
        throttled_rates=replication.throttled_rates,
        archive=None if archive is None or archiving is None else archiving.sources(archive.mirror),
    )
    parts: tuple[Part, ...] = (
        metadata,
        folders,
        elsewhere,
        replication,
        watch,
        coordinators,
        logs,
    )
    if archiving is not None:
        parts = (archiving, *parts)
    return Started(front, storage, membership, *parts)


async def _claim_archive(
    environment: Environment, config: BrokerConfig, storage: StorageParts, opened: ExitStack
) -> SharedArchive | None:
    """Returns the archive; None without one. Raises WrongArchive, InvalidConfig."""
    if not config.archive.is_enabled or config.archive.url is None:
        return None
    from strandline.broker.server.parts.shared_archive import SharedArchive

    return await SharedArchive.claimed(environment, config, storage, opened)


def check_seat(config: BrokerConfig) -> None:
    """Raises InvalidConfig for what a broker in a cluster cannot have."""
    for listener in config.advertised_listeners:
        if not listener.port:
            raise InvalidConfig(
                f"listeners={listener}: a broker registers its port before it listens; expected one"
            )

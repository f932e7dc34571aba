"""The role of `strandline serve --read-only`: a broker on another broker's bucket, which it reads.

    start   1 read cluster.json             3 read the list of changes
            2 lock and mark the folders     4 read the origin's metadata, from its mirror
                                            5 load the logs, which end where the archives end

    run     every strandline.remote.replica.poll.ms        the list, and the manifests that it names
            every strandline.remote.replica.full.poll.ms   the mirror and every manifest

The list of changes is read before the manifests that it names, so a change in between is in the
next list (storage/tiering/changes/change_reader.py).

Its folders hold the end of each log of the origin, and the offsets of the replica's own groups.
They are marked: an ordinary broker does not start on them, since it would take over the archive,
and a replica does not start on an ordinary broker's.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.replicas.read_only_replica import FollowingController
from strandline.broker.cluster.replicas.tiers import BothTiers
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.network.connection import Spawn
from strandline.broker.server.broker import Started
from strandline.broker.server.decisions import decisions
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.archive import RemoteTier
from strandline.broker.server.parts.coordinators import CoordinatorParts
from strandline.broker.server.parts.front import FrontParts
from strandline.broker.server.parts.logs import LogParts, serve_partitions
from strandline.broker.server.parts.metadata import MetadataParts, make_metadata_log, register
from strandline.broker.server.parts.part import Part, in_worker
from strandline.broker.server.parts.storage import StorageParts
from strandline.broker.server.upkeep.folder_marks import REPLICA_MARK, WrongFolder
from strandline.broker.server.workers import Workers
from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.errors import InvalidConfig, StorageError
from strandline.storage.local.formats.checkpoint import META_PROPERTIES
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.remote.manifest.cluster_info import load_cluster_info
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.object_store.read_only import ReadOnlyStore
from strandline.storage.tiering.changes.change_reader import ChangeReader
from strandline.storage.tiering.manager.manager import TieringManager
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState

log = logging.getLogger(__name__)


async def start_read_only(
    environment: Environment, config: BrokerConfig, spawn: Spawn, opened: ExitStack
) -> Started:
    """Starts a broker that follows another one's archive. Raises StrandlineError."""
    config = _config_of_replica(config)
    workers, clock = environment.workers, environment.clock
    store = ReadOnlyStore(environment.open_store(config, clock))
    opened.callback(store.close)
    cluster_id = await in_worker(workers.manifests, partial(_cluster_of, store))  # 1
    opening = partial(_open_log_dirs, config, clock, cluster_id)
    storage = await StorageParts.make(environment, config, opened, opening)  # 2
    origin = MetadataLog(store, cluster_id=cluster_id)
    metadata_log = make_metadata_log(storage, clock)
    changes = ChangeReader(store, clock=clock, full_interval_ms=config.replica.full_poll_ms)
    await in_worker(workers.changes, changes.poll)  # 3
    await in_worker(workers.metadata, origin.refresh)  # 4
    await in_worker(workers.metadata, metadata_log.load)
    await in_worker(workers.metadata, partial(register, metadata_log, config, storage.log_dirs))
    running = RunningConfig(config)
    following = FollowingController(
        origin,
        metadata_log,
        decisions(running),
        node_id=config.node_id,
        executor=workers.metadata,
    )
    metadata = await MetadataParts.make(environment, running, following.view, following)
    tier = RemoteTier.open(
        environment,
        storage,
        metadata,
        opened,
        store=store,
        tiering=replace(config.tiering, task_interval_ms=config.replica.poll_ms),
        lead=Lead.FOLLOWING,
    )
    tiers = BothTiers(tier.manager, storage.log_dirs.log_start_offsets, lookups=workers.lookups)
    replicas = await serve_partitions(
        environment,
        storage,
        metadata,
        tiers=tiers,
        followers=[tier.follow],
        # Its folders of a deleted topic hold no records, so they are not kept.
        keep_empty_strays=False,
    )  # 5
    coordinators = await CoordinatorParts.make(environment, storage, metadata, replicas)
    logs = LogParts.make(
        environment,
        storage,
        metadata,
        replicas,
        coordinators,
        # The origin's deletions show in its manifests.
        retained=lambda: (one.log for one in replicas.partitions() if one.is_internal),
    )
    followed = FollowedArchive(changes, following, tier.manager, workers, config, clock)
    front = FrontParts.make(
        environment,
        storage,
        metadata,
        coordinators,
        logs,
        spawn=spawn,
        archive=replace(tier.sources(), replica_lag_s=followed.lag_s),
    )
    loops = Part(
        loops={
            "tiering": tier.manager.run,
            "store watch": tier.manager.watch_store,
            "following": followed.follow_forever,
        }
    )
    await tier.manager.start()
    return Started(front, storage, loops, metadata, coordinators, logs)


def _config_of_replica(config: BrokerConfig) -> BrokerConfig:
    """Raises InvalidConfig without a remote tier, or for a topic to be written."""
    if config.archive.url is None:
        raise InvalidConfig("--read-only needs strandline.remote.url: whose archive to serve")
    if config.audit.topic is not None:
        raise InvalidConfig(
            "strandline.audit.topic: a read-only replica writes no topic; set"
            " strandline.audit.file, or remove it"
        )
    return replace(
        config,
        archive=replace(config.archive, is_enabled=True),
        topics=replace(config.topics, tiering_enabled=True, auto_creation_enabled=False),
    )


def _open_log_dirs(config: BrokerConfig, clock: Clock, cluster_id: str) -> LogDirs:
    for folder in config.logs.dirs:
        if (folder / META_PROPERTIES).exists() and not (folder / REPLICA_MARK).exists():
            raise WrongFolder(
                f"{folder} belongs to a broker; a read-only replica needs folders of its own"
            )
        files.make_directory(folder)
        files.write_atomically(folder / REPLICA_MARK, b"")
    return LogDirs.open(
        config.logs.dirs, node_id=config.node_id, cluster_id=cluster_id, clock=clock
    )


def _cluster_of(store: ObjectStore) -> str:
    store.check()
    found = load_cluster_info(store)
    if found is None:
        raise InvalidConfig(f"{store.url} holds no archive: there is no cluster.json")
    return found.cluster_id


class FollowedArchive:
    """Polls the bucket of the origin, and knows how far behind it this broker is."""

    def __init__(
        self,
        changes: ChangeReader,
        following: FollowingController,
        tiering: TieringManager,
        workers: Workers,
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self._changes = changes
        self._following = following
        self._tiering = tiering
        self._workers = workers
        self._poll_s = config.replica.poll_ms / 1000
        self._clock = clock
        # A read of the mirror is due.
        self._is_behind = False
        # The start of the last poll, and of the last one of which everything was taken over.
        self._polled_s = self._caught_up_s = clock.monotonic_s()

    def lag_s(self) -> float:
        """Seconds since this broker had all that its origin archived."""
        self._note_caught_up()
        return self._clock.monotonic_s() - self._caught_up_s

    async def follow_forever(self) -> None:
        state = RetryState("follow", "metadata", policy=RetryPolicy(), clock=self._clock)
        while True:
            await asyncio.sleep(self._poll_s)
            await self._poll(state)

    def _note_caught_up(self) -> None:
        if not self._is_behind and not self._tiering.is_following:
            self._caught_up_s = self._polled_s

    async def _poll(self, state: RetryState) -> None:
        self._note_caught_up()
        polled_s = self._clock.monotonic_s()
        changes = await in_worker(self._workers.changes, self._changes.poll)
        if self._tiering.apply_changes(changes):
            self._changes.doubt()
        self._polled_s = polled_s
        is_newer = changes.metadata_version > self._following.origin_version
        self._is_behind |= is_newer or changes.is_everything
        if self._is_behind:
            try:
                await self._following.refresh()
            except StorageError as error:
                state.failed(error)
            else:
                self._is_behind = False
                state.succeeded()

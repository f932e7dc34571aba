"""`strandline serve --read-only`: a broker on another broker's bucket, which it only reads.

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
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.replicas.read_only_replica import (
    FollowedLog,
    FollowedTiers,
    FollowingController,
)
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.server.app import (
    Broker,
    Phase,
    load_logs,
    make_metadata_log,
    open_archive,
)
from strandline.broker.server.folder_marks import REPLICA_MARK, WrongFolder
from strandline.broker.server.registration import new_registration
from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.errors import InvalidConfig, StorageError
from strandline.storage.local.formats.checkpoint import META_PROPERTIES
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.remote.manifest.cluster_info import load_cluster_info
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.object_store.read_only import ReadOnlyStore
from strandline.storage.tiering.changes.change_reader import ChangeReader
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.manager.manager import TieringManager
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState

log = logging.getLogger(__name__)


class ReplicaBroker(Broker):
    """A read-only broker over another broker's bucket."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        """Raises InvalidConfig without a remote tier."""
        if config.archive.url is None:
            raise InvalidConfig("--read-only needs strandline.remote.url: whose archive to serve")
        super().__init__(
            replace(
                config,
                archive=replace(config.archive, is_enabled=True),
                topics=replace(config.topics, tiering_enabled=True, auto_creation_enabled=False),
            ),
            clock,
        )
        self._cluster_id = ""
        self._changes: ChangeReader
        # A read of the mirror is due.
        self._is_behind = False
        self._following: FollowingController
        # The start of the last poll, and of the last one of which everything was taken over.
        self._polled_s = self._caught_up_s = clock.monotonic_s()

    async def start(self) -> None:
        """Runs all steps before the ready line. Raises StrandlineError."""
        config, clock = self._config, self._clock
        writable = open_archive(config, clock)
        assert writable is not None
        store = self._store = ReadOnlyStore(writable)
        self._cluster_id = await self._in(self._workers.manifests, partial(_cluster_of, store))  # 1
        self._log_dirs = await self._in(self._workers.disk, self._open_log_dirs)  # 2
        last_time = await self._read_last_time()
        origin = MetadataLog(store, cluster_id=self._cluster_id)
        self._metadata_log = make_metadata_log(config, self._log_dirs, clock)
        self._changes = ChangeReader(
            store, clock=clock, full_interval_ms=config.replica.full_poll_ms
        )
        await self._in(self._workers.changes, self._changes.poll)  # 3
        await self._in(self._workers.metadata, origin.refresh)  # 4
        await self._in(self._workers.metadata, self._metadata_log.load)
        process = new_registration(config, self._log_dirs)
        started = controller.register_broker(self._metadata_log.image, process)
        await self._in(self._workers.metadata, partial(self._metadata_log.append, started.records))
        self._remote = self._make_remote(
            store,
            replace(
                config.tiering,
                follows=True,
                task_interval_ms=config.replica.poll_ms,
            ),
        )
        self._replicas = ReplicaManager(
            self._log_dirs,
            FollowedTiers(
                self._remote.manager,
                log_starts=self._log_dirs.log_start_offsets,
                lookups=self._workers.lookups,
            ),
            topic_defaults=lambda: self._running.current.topics.properties,
            disk=self._workers.disk,
            syncs=self._workers.syncs,
        )
        self._following = FollowingController(
            origin,
            self._metadata_log,
            node_id=config.node_id,
            executor=self._workers.metadata,
        )
        self._metadata = self._following.view
        self._use(self._following)
        image = self._metadata.image
        await self._metadata.publish_to(self._running.follow, self._quotas.follow)
        # Its folders of a deleted topic hold no records, so they are not kept.
        load = partial(
            load_logs, self._log_dirs, image, self._running.current, keep_empty_strays=False
        )
        logs = await self._in(self._workers.disk, load)  # 5
        self._replicas.take_over(logs, image)
        await self._publish_to_replicas()
        await self._make_services(last_time)
        self._loops |= {
            "tiering": self._remote.manager.run,
            "store watch": self._remote.manager.watch_store,
            "following": partial(self._follow_forever, self._remote.manager),
        }
        self._phase = Phase.STARTED
        await self._remote.manager.start()

    def _open_log_dirs(self) -> LogDirs:
        for folder in self._config.logs.dirs:
            if (folder / META_PROPERTIES).exists() and not (folder / REPLICA_MARK).exists():
                raise WrongFolder(
                    f"{folder} belongs to a broker; a read-only replica needs folders of its own"
                )
            files.make_directory(folder)
            files.write_atomically(folder / REPLICA_MARK, b"")
        return LogDirs.open(
            self._config.logs.dirs,
            node_id=self._config.node_id,
            cluster_id=self._cluster_id,
            clock=self._clock,
        )

    def _retained_logs(self) -> Iterable[UnifiedLog]:
        """Only the replica's own logs: the origin's deletions show in its manifests."""
        logs = (partition.log for partition in self._replicas.partitions())
        return (unified_log for unified_log in logs if not isinstance(unified_log, FollowedLog))

    async def _follow_forever(self, tiering: TieringManager) -> None:
        state = RetryState("follow", "metadata", policy=RetryPolicy(), clock=self._clock)
        while True:
            await asyncio.sleep(self._config.replica.poll_ms / 1000)
            await self._poll(tiering, state)

    def _replica_lag_s(self) -> float | None:
        self._note_caught_up()
        return self._clock.monotonic_s() - self._caught_up_s

    def _note_caught_up(self) -> None:
        assert self._remote is not None
        if not self._is_behind and not self._remote.manager.is_following:
            self._caught_up_s = self._polled_s

    async def _poll(self, tiering: TieringManager, state: RetryState) -> None:
        self._note_caught_up()
        polled_s = self._clock.monotonic_s()
        changes = await self._in(self._workers.changes, self._changes.poll)
        if tiering.apply_changes(changes):
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


def _cluster_of(store: ObjectStore) -> str:
    store.check()
    found = load_cluster_info(store)
    if found is None:
        raise InvalidConfig(f"{store.url} holds no archive: there is no cluster.json")
    return found.cluster_id

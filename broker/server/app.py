"""The composition root: builds the broker, owns its tasks and threads, and stops it.

    start   1 lock the log folders            5 load the logs (recovering after an unclean stop)
            2 open the object store           6 attach them to their tiers
            3 load the metadata log           7 create what the image has and the disk lacks
            4 record this start (new epochs)  8 listen, print the ready line

    stop    1 stop accepting, drop connections   4 write the checkpoints, mark the stop as clean
            2 end the tasks                      5 write the last changes to the bucket
            3 flush and close the logs           6 unlock the log folders

Its threads are in `workers.py`, the loops beside the connections in `background.py` and
`archive_upkeep.py` (step 5 of a stop, too), the handlers in `handlers/wiring.py`. `process.py` runs
the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.active_controller import ActiveController, ControllerClient
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage, TopicImage
from strandline.broker.cluster.metadata.log_reader import is_empty
from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.view import Follower, MetadataView
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.cluster.replicas.replica_moves import ReplicaMoves
from strandline.broker.cluster.replicas.tiers import BothTiers, LocalTier, is_tiered
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.group_configs import member_times
from strandline.broker.config.listeners import CannotListen, listen_at
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.coordination.model.consumer_messages import MemberTimes
from strandline.broker.coordination.runtime.group_coordinator import GroupCoordinator
from strandline.broker.coordination.runtime.markers import LocalMarkers
from strandline.broker.coordination.runtime.transaction_coordinator import TransactionCoordinator
from strandline.broker.handlers.auth.failed_logins import FailedLogins
from strandline.broker.handlers.dispatch.dispatch import Dispatcher
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.sessions import FetchSessionCache
from strandline.broker.handlers.services.services import Services
from strandline.broker.handlers.wiring import make_dispatcher
from strandline.broker.network.cold_scheduling import ColdSchedule
from strandline.broker.network.connection import Spawn
from strandline.broker.network.server import Server
from strandline.broker.quotas.cold_pace import ColdPace
from strandline.broker.quotas.quotas import ClientQuotas
from strandline.broker.server.background import FinishedPurges, LogUpkeep, delayed, keep_running
from strandline.broker.server.folder_marks import (
    METADATA_FOLDER,
    ArchiveMark,
    check_metadata_not_lost,
    check_not_interrupted,
)
from strandline.broker.server.late_transactions import LateTransactions
from strandline.broker.server.process import GarbageCollector, notify_manager, print_or_log
from strandline.broker.server.registration import new_registration
from strandline.broker.server.sasl import ConnectionHandlers, check_sasl
from strandline.broker.server.workers import Workers
from strandline.broker.telemetry.collector import metrics_page
from strandline.broker.telemetry.http_server import MetricsServer
from strandline.broker.telemetry.requests import RequestTraffic
from strandline.broker.telemetry.sources import Sources
from strandline.retention.enforcer import RetentionEnforcer
from strandline.retention.jump_guard import JumpGuard
from strandline.storage.clock import Clock
from strandline.storage.concurrency.alterations import Alterations
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import InvalidConfig, StrandlineError, TierError
from strandline.storage.local.cleaner.cleaner import LogCleaner
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.last_known_time import LastTime
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicId, TopicPartition
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.remote.open_store import open_store
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.partition.config import TieringConfig

# Loaded if there is a remote tier: else every start would wait for it (docs/decisions/0010).
if TYPE_CHECKING:
    from strandline.broker.server.archive_upkeep import ArchiveClaim, ArchiveUpkeep
    from strandline.broker.server.remote_tier import RemoteTier
    from strandline.storage.tiering.policy.retry import RetryState

log = logging.getLogger(__name__)

T = TypeVar("T")
Loops = dict[str, Callable[[], Awaitable[None]]]


class Phase(Enum):
    """The phase of a broker's life; phases only advance."""

    STARTING = "starting"
    STARTED = "started"
    STOPPING = "stopping"


class ArchiveUnknown(StrandlineError):
    """The first start on empty folders cannot ask the bucket."""


class Broker:
    """One broker: builds its parts, and starts and stops them in order."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._running = RunningConfig(config)
        self._alterations = Alterations()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._workers = Workers.start(config)
        self._loop.set_default_executor(self._workers.default)
        self._phase = Phase.STARTING
        self._quotas = ClientQuotas(clock, config.quota_windows)
        self._failed_logins = FailedLogins(clock)
        self._traffic = RequestTraffic()
        self._cold_pace = ColdPace(lambda: self._running.current.pace)
        self._purges = FinishedPurges()
        # In the order in which a start makes them; those of the remote tier only if there is one.
        self._log_dirs: LogDirs
        self._guard: JumpGuard
        self._store: ObjectStore | None = None
        self._claim: ArchiveClaim | None = None
        self._metadata_log: MetadataLog
        self._remote: RemoteTier | None = None
        self._replicas: ReplicaManager
        self._metadata: MetadataView
        self._controller: ActiveController
        self._controller_client: ControllerClient
        self._groups: GroupCoordinator
        self._markers: LocalMarkers
        self._transactions: TransactionCoordinator
        self._late_transactions: LateTransactions
        self._cleaner: LogCleaner
        self._moves: ReplicaMoves
        # What runs beside the connections, by name.
        self._loops: Loops
        self._server: Server
        self._fetch: FetchHandler
        self._sessions: FetchSessionCache
        self._metrics: MetricsServer | None = None
        self._archive: ArchiveUpkeep | None = None

    # --- starting ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Runs all steps before the ready line. Raises StrandlineError."""
        check_sasl(self._config)
        config, clock = self._config, self._clock
        disk, metadata = self._workers.disk, self._workers.metadata
        self._log_dirs = await self._in(disk, partial(open_log_dirs, config, clock))  # 1
        last_time = await self._read_last_time()
        self._store = open_archive(config, clock)  # 2
        if self._store is not None:
            from strandline.broker.server.archive_upkeep import CLAIM_WAIT_S, ArchiveClaim

            self._claim = ArchiveClaim(
                self._store,
                self._workers,
                cluster_id=self._log_dirs.cluster_id,
                mark=archive_mark(config, self._log_dirs, self._store),
            )
            await self._claim.attempt(wait_s=CLAIM_WAIT_S)
        self._metadata_log = make_metadata_log(config, self._log_dirs, clock, mirror=self._store)
        await self._in(
            metadata,
            partial(load_metadata, self._metadata_log, config, self._log_dirs, self._store),
        )  # 3
        process = new_registration(config, self._log_dirs)
        started = controller.register_broker(self._metadata_log.image, process)
        await self._in(metadata, partial(self._metadata_log.append, started.records))  # 4
        image = self._metadata_log.image
        if self._store is None:
            warn_of_unreachable_archive(image)
        self._metadata = MetadataView(image)
        self._use(ActiveController(self._metadata, self._metadata_log, executor=metadata))
        await self._metadata.publish_to(self._running.follow, self._quotas.follow)
        logs = await self._in(
            disk, partial(load_logs, self._log_dirs, image, self._running.current)
        )  # 5
        self._replicas = ReplicaManager(
            self._log_dirs,
            self._make_tiers(),
            topic_defaults=lambda: self._running.current.topics.properties,
            disk=disk,
            syncs=self._workers.syncs,
        )
        self._replicas.take_over(logs, image)  # 6
        await self._publish_to_replicas()  # 7
        upkeep = await self._make_services(last_time)
        self._loops |= {
            "producer expiry": upkeep.expire_producers_forever,
            "purges": partial(self._purges.note_forever, self._controller_client),
        }
        self._phase = Phase.STARTED
        if self._remote is not None and self._claim is not None:
            self._claim.report_to(self._remote.manager)
            if self._claim.is_ours:
                from strandline.broker.server.archive_upkeep import start_tiering

                await start_tiering(self._remote.manager, self._metadata_log, self._workers)

    def _use(self, active: ActiveController) -> None:
        self._controller = active
        self._controller_client = ControllerClient(
            active,
            node_id=self._config.node_id,
            topic_defaults=lambda: self._running.current.topics,
        )

    async def _read_last_time(self) -> LastTime:
        """Reads the last trusted time; retention uses it instead of a wrong clock at the start."""
        last_time = LastTime(lambda: [d.path for d in self._log_dirs.directories if not d.failure])
        last_ms = await self._in(self._workers.disk, last_time.read)
        self._guard = JumpGuard(self._clock, last_ms=last_ms)
        return last_time

    async def _make_services(self, last_time: LastTime) -> LogUpkeep:
        """Makes the services over replicas and metadata, and their loops."""
        config, clock = self._config, self._clock
        guard, note_time = self._guard, last_time.note
        # A run that ends before the first check of retention notes its time, too.
        await self._in(self._workers.disk, partial(note_time, guard.now_ms()))
        self._groups = GroupCoordinator(
            config.groups,
            self._metadata,
            self._controller_client,
            self._replicas,
            clock=clock,
            reads=self._workers.lookups,
            times_of=self._times_of,
            believed_ms=guard.now_ms,
        )
        self._markers = LocalMarkers(self._replicas, self._groups, clock)
        self._transactions = TransactionCoordinator(
            lambda: self._running.current.transactions,
            self._metadata,
            self._controller_client,
            self._replicas,
            self._markers,
            clock=clock,
            reads=self._workers.lookups,
            believed_ms=guard.now_ms,
        )
        await self._metadata.publish_to(self._groups.follow, self._transactions.follow)
        self._late_transactions = LateTransactions(
            self._replicas,
            timeout_ms_max=lambda: self._running.current.transactions.timeout_ms_max,
            coordinated=self._transactions.not_ended,
            clock=clock,
        )
        enforcer = RetentionEnforcer(
            self._retained_logs,
            write_log_starts=self._replicas.checkpoint_log_starts,
            purge_deleted=self._log_dirs.purge_deleted,
            wake_tiering=self._remote.manager.wake if self._remote else lambda _: None,
            executor=self._workers.disk,
            clock=clock,
            guard=guard,
            note_time=note_time,
            interval_ms=config.logs.retention_interval_ms,
        )
        self._cleaner = LogCleaner(
            lambda: (partition.log.local for partition in self._replicas.partitions()),
            offsets=self._log_dirs,
            executor=self._workers.cleaner,
            clock=clock,
            believed_ms=guard.now_ms,
            settings=lambda: self._running.current.cleaner,
            alterations=self._alterations,
        )
        self._moves = ReplicaMoves(
            self._replicas,
            self._log_dirs,
            worker=self._workers.moves,
            clock=clock,
            cleaning_paused=self._cleaner.paused,
        )
        upkeep = LogUpkeep(
            self._replicas,
            self._log_dirs,
            controller=self._controller_client,
            running=self._running,
            workers=self._workers,
            clock=clock,
            believed_ms=guard.now_ms,
            on_revived=self._transactions.reload,
        )
        delay_ms = config.logs.first_delay_ms
        self._loops = {
            "flush": upkeep.flush_forever,
            "checkpoint": upkeep.checkpoint_forever,
            "groups": self._groups.run,
            "transactions": self._transactions.run,
            "late transactions": self._late_transactions.watch_forever,
            "retention": delayed(delay_ms, enforcer.run),
            "log folders": upkeep.revive_folders_forever,
            "moves": self._moves.run,
        }
        if config.cleaner.is_enabled:
            self._loops["cleaner"] = delayed(delay_ms, self._cleaner.run)
        return upkeep

    def _times_of(self, group_id: str) -> MemberTimes:
        properties = self._metadata.image.group_properties.get(group_id, {})
        return member_times(self._running.current, properties)

    def _retained_logs(self) -> Iterable[UnifiedLog]:
        """Returns the logs to which this broker applies retention."""
        return (partition.log for partition in self._replicas.partitions())

    async def _publish_to_replicas(self) -> None:
        """Publishes the metadata; dependent parts follow the parts they depend on."""
        followers: list[Follower] = [self._replicas.follow, self._note_alterations]
        if self._remote is not None:
            followers.insert(0, self._remote.follow)
        await self._metadata.publish_to(*followers)

    def _note_alterations(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        if delta.topics or delta.broker_properties:
            self._alterations.note()

    def _make_tiers(self) -> LocalTier:
        starts, lookups = self._log_dirs.log_start_offsets, self._workers.lookups
        if self._store is None:
            return LocalTier(starts, lookups=lookups)
        self._remote = self._make_remote(self._store, self._config.tiering)
        return BothTiers(self._remote.manager, starts, lookups=lookups)

    def _make_remote(self, store: ObjectStore, tiering: TieringConfig) -> RemoteTier:
        from strandline.broker.server.remote_tier import RemoteTier

        return RemoteTier(
            store,
            self._running,
            self._workers,
            tiering=tiering,
            pace=self._cold_pace,
            clock=self._clock,
            believed_ms=self._guard.now_ms,
            on_topic_purged=self._purges.add,
            on_restarted=self._note_restarted_log,
            alterations=self._alterations,
        )

    def _note_restarted_log(self) -> None:
        self._transactions.note_restarted_log()

    # --- running -----------------------------------------------------------------------------

    async def run(self, stopping: asyncio.Event) -> None:
        """Serves until `stopping` is set. Raises CannotListen."""
        refused: CannotListen | None = None
        collector = GarbageCollector()
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    self._listen(tasks.create_task)
                    await self._listen_for_monitoring()
                except CannotListen as error:
                    # The group would wrap the error, which the user shall read in one line.
                    refused = error
                    raise _Stop from None
                if self._claim is not None:
                    self._loops |= self._archive_loops(self._claim)
                for name, loop in self._loops.items():
                    tasks.create_task(keep_running(name, loop), name=name)
                collector.start()
                listener = self._config.listeners[0]
                print_or_log(
                    f"strandline ready: broker {self._config.node_id} at "
                    f"{listener.host or '0.0.0.0'}:{listener.port}"
                )
                notify_manager("READY=1")
                await stopping.wait()
                log.info("stopping")
                self._phase = Phase.STOPPING
                self._server.close()
                # A coroutine that is cancelled before its first step warns on stderr.
                await asyncio.sleep(0)
                raise _Stop
        except* _Stop:
            pass
        finally:
            collector.stop()
            if self._metrics is not None:
                self._metrics.close()
        if refused is not None:
            raise refused

    def _archive_loops(self, claim: ArchiveClaim) -> Loops:
        assert self._store is not None
        assert self._remote is not None
        from strandline.broker.server.archive_upkeep import ArchiveUpkeep

        archive = self._archive = ArchiveUpkeep(
            claim,
            self._store,
            tiering=self._remote.manager,
            metadata_log=self._metadata_log,
            replicas=self._replicas,
            workers=self._workers,
            clock=self._clock,
            groups_interval_ms=self._config.archive.groups_interval_ms,
            check_interval_ms=self._config.archive.check_interval_ms,
        )
        return {
            "metadata mirror": archive.mirror_forever,
            "tiering": archive.tier_forever,
            "store watch": self._remote.manager.watch_store,
            "groups archive": archive.archive_groups_forever,
            "archive look": archive.check_forever,
        }

    def _listen(self, spawn: Spawn) -> None:
        config, running = self._config, self._running
        dispatcher = self._make_dispatcher()
        self._loops["requests"] = dispatcher.run
        self._server = Server(
            ConnectionHandlers(
                config, dispatcher, self._metadata, self._clock, self._failed_logins
            ),
            limits=lambda: running.current.network,
            admit=self._quotas.connected,
            pace=lambda listener: self._quotas.accepted(listener, running.current.connection_rates),
            clock=self._clock,
            spawn=spawn,
            cold_turns=ColdSchedule(self._cold_pace, self._clock.monotonic_s),
        )
        self._loops["connection sweep"] = self._server.sweep_forever
        self._loops["request windows"] = self._traffic.turn_forever
        self._running.bind(listen_at(config.listeners, self._server.listen))
        self._config = self._running.static

    def _make_dispatcher(self) -> Dispatcher:
        services = Services(
            running=self._running,
            metadata=self._metadata,
            controller=self._controller,
            controller_client=self._controller_client,
            replicas=self._replicas,
            quotas=self._quotas,
            traffic=self._traffic,
            clock=self._clock,
            cold_pace=self._cold_pace,
            records=self._workers.records,
        )
        self._sessions = FetchSessionCache(
            self._config.fetch.sessions_max,
            self._clock,
            name_of=self._metadata.topic_name,
        )
        self._fetch = FetchHandler(services, self._sessions)
        return make_dispatcher(
            services,
            self._fetch,
            groups=self._groups,
            transactions=self._transactions,
            markers=self._markers,
            log_dirs=self._log_dirs,
            moves=self._moves,
            advertised=self._running.advertised,
            decoding=self._workers.decoding,
        )

    async def _listen_for_monitoring(self) -> None:
        """Serves /metrics at strandline.metrics.listener. Raises CannotListen."""
        listener = self._config.metrics.listener
        if listener is None:
            return
        remote = self._remote
        sources = Sources(
            clock=self._clock,
            requests=self._traffic,
            server=self._server,
            failed_logins=self._failed_logins.by_address,
            metadata=self._metadata,
            replicas=self._replicas,
            groups=self._groups,
            transactions=self._transactions,
            late_transactions=lambda: self._late_transactions.partition_count,
            open_transaction_s=self._late_transactions.open_s,
            sessions=self._sessions,
            parked_fetches=lambda: self._fetch.parked_count,
            log_dirs=self._log_dirs,
            partitions_max=self._config.metrics.partitions_max,
            tiering=remote.manager if remote else None,
            cold_reader=remote.reader if remote else None,
            cold_pace=self._cold_pace,
            failing=self._failing_upkeep,
            replica_lag_s=self._replica_lag_s,
            mirror_lag=lambda: self._metadata_log.statistics().mirror_lag,
            state_exposures=lambda: self._archive.state_exposures() if self._archive else {},
            verifications=lambda: self._archive.verifications if self._archive else None,
            deleted_counts=lambda: self._archive.deleted_counts() if self._archive else {},
            lacks=lambda: self._remote.lacks() if self._remote else (),
            conditions=lambda: None if self._claim is None else self._claim.conditions,
            store_requests=remote.store_requests if remote else lambda: None,
            remote_pools=self._workers.remote_pools(),
            cleaner=self._cleaner.figures,
        )
        server = MetricsServer(partial(metrics_page, sources), self._why_not_ready)
        try:
            port = await server.listen(listener.host, listener.port)
        except OSError as error:
            raise CannotListen(f"cannot listen at {listener}: {error.strerror}") from error
        self._metrics = server
        log.info(
            "metrics are served",
            extra={"fields": {"host": listener.host or "0.0.0.0", "port": port}},
        )

    def _failing_upkeep(self) -> Iterator[RetryState]:
        if self._remote is not None:
            yield from self._remote.manager.failing
        if self._archive is not None:
            yield from self._archive.failing()

    def _replica_lag_s(self) -> float | None:
        """Seconds since this broker had all that its origin archived; None: it is no replica."""
        return None

    def _why_not_ready(self) -> str:
        """Returns why clients cannot be served; empty if they can."""
        if self._phase is Phase.STOPPING:
            return "stopping"
        if all(directory.failure is not None for directory in self._log_dirs.directories):
            return "every log folder is offline"
        return ""

    # --- stopping ----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stops cleanly; the next start recovers the logs of unreachable folders."""
        try:
            if self._phase is not Phase.STARTING:
                self._cleaner.close()
                partitions = self._replicas.partitions()
                finish = partial(
                    self._log_dirs.finish,
                    {p.topic_partition: p.log.log_start_offset for p in partitions},
                    # After a clean stop no start would look for them.
                    is_clean=not self._transactions.lacks_ends,
                )
                # A running flush ends before its file is closed.
                end_syncs = partial(self._workers.syncs.shutdown, wait=True, cancel_futures=True)
                await self._in(self._workers.disk, end_syncs)
                if self._archive is not None:
                    await self._archive.read_rest()
                await self._in(self._workers.disk, finish)  # 3, 4
                if self._archive is not None:
                    await self._archive.write_rest()  # 5
                self._log_dirs.unlock()  # 6
        finally:
            if self._remote is not None:
                self._remote.close()
            if self._store is not None:
                self._store.close()
            self._workers.stop()
        log.info("stopped")

    async def _in(self, worker: Executor, call: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(worker, call)


class _Stop(Exception):
    """Raised inside the task group to end it."""


# --- opening ---------------------------------------------------------------------------------


def open_archive(config: BrokerConfig, clock: Clock) -> ObjectStore | None:
    """Opens the store of the remote tier, without a request; None if the tier is off."""
    if not config.archive.is_enabled or config.archive.url is None:
        return None
    return open_store(
        config.archive.url,
        endpoint_url=config.archive.endpoint_url,
        region=config.archive.region,
        clock=clock,
    )


def open_log_dirs(config: BrokerConfig, clock: Clock) -> LogDirs:
    """Opens and locks the log folders; blocks. Raises RestoreRefused, StorageError."""
    check_not_interrupted(config.logs.dirs)
    return LogDirs.open(config.logs.dirs, node_id=config.node_id, cluster_id=None, clock=clock)


def archive_mark(config: BrokerConfig, log_dirs: LogDirs, store: ObjectStore) -> ArchiveMark | None:
    """Returns this disk's mark of the archive; None for a bucket, which cannot be unmounted."""
    if not isinstance(store, LocalDirectoryStore):
        return None
    check_present = partial(_check_first_folder, config, log_dirs)
    return ArchiveMark(config.logs.dirs[0], store.url, check_present=check_present)


def _check_first_folder(config: BrokerConfig, log_dirs: LogDirs) -> None:
    """Raises DiskError if the first log folder has been replaced."""
    folder = log_dirs.directory_at(config.logs.dirs[0])
    if folder is not None:
        folder.check_present()


def make_metadata_log(
    config: BrokerConfig,
    log_dirs: LogDirs,
    clock: Clock,
    *,
    mirror: ObjectStore | None = None,
) -> MetadataLog:
    """Makes the metadata log in the first log folder, without I/O.

    It refuses appends if that folder was replaced.
    """
    return MetadataLog(
        LocalDirectoryStore(config.logs.dirs[0] / METADATA_FOLDER, clock=clock),
        mirror,
        cluster_id=log_dirs.cluster_id,
        check_store=partial(_check_first_folder, config, log_dirs),
    )


def load_metadata(
    metadata_log: MetadataLog,
    config: BrokerConfig,
    log_dirs: LogDirs,
    mirror: ObjectStore | None,
) -> None:
    """Reads the log, or its mirror in the bucket; blocks.

    Raises ArchiveUnknown, WrongFolder, StorageError.
    """
    try:
        if metadata_log.is_known_empty:
            check_metadata_not_lost(
                [d.path for d in log_dirs.directories if not d.failure],
                is_archived=mirror is not None and not is_empty(mirror),
            )
        metadata_log.load()
    except TierError as error:
        if mirror is None or not metadata_log.is_known_empty:
            # The first log folder failed, not the mirror.
            raise
        raise ArchiveUnknown(
            f"{config.logs.dirs[0]} is empty, and whether {config.archive.url} holds"
            " an archive already cannot be found out. A first start needs the remote tier;"
            f" later ones do not: {error}"
        ) from error


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


def load_logs(
    log_dirs: LogDirs,
    image: MetadataImage,
    config: BrokerConfig,
    *,
    keep_empty_strays: bool = True,
) -> dict[TopicPartition, LocalLog]:
    """Loads the logs of the partitions in `image`, with recovery if needed; blocks.

    The folder of a deleted topic, or of one recreated under another id, is kept and not loaded;
    with `keep_empty_strays` False it is kept only if it has records.
    """
    defaults = config.topics.properties
    configs = {topic.name: _config_of(topic, defaults) for topic in image.topics.values()}

    def config_for(key: TopicPartition, topic_id: TopicId) -> LogConfig | None:
        topic = image.topics.get(key.topic)
        if topic is None or topic.topic_id != topic_id:
            return None
        if key.partition >= topic.partition_count:
            return None
        return configs[key.topic]

    return log_dirs.load(
        config_for,
        threads_per_directory=config.logs.recovery_threads,
        keep_empty_strays=keep_empty_strays,
    )


def warn_of_unreachable_archive(image: MetadataImage) -> None:
    """Warns of tiered topics if there is no remote tier; only their local records are served."""
    tiered = sorted(topic.name for topic in image.topics.values() if is_tiered(topic))
    if tiered:
        log.warning(
            "topics have remote.storage.enable=true, but there is no remote tier: what is archived"
            " cannot be read and nothing is copied; set remote.log.storage.system.enable=true and"
            " strandline.remote.url",
            extra={"fields": {"topics": len(tiered), "first": tiered[0]}},
        )

"""The composition root: builds the broker, owns its tasks and threads, takes it down again.

    start   1 lock the log folders            5 load the logs (recovering after an unclean stop)
            2 open the object store           6 attach them to their tiers
            3 load the metadata log           7 create what the image has and the disk lacks
            4 record this start (new epochs)  8 listen, print the ready line

    stop    1 stop accepting, drop connections   4 write the checkpoints, mark the stop as clean
            2 end the tasks                      5 tell the bucket what changed (archive_upkeep.py)
            3 flush and close the logs           6 unlock the log folders

Its threads are in `workers.py`, the loops beside the connections in `background.py` and
`archive_upkeep.py`, the handlers in `handlers/wiring.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata import Metadata
from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.tiers import BothTiers, LocalTier, Tiers
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.cluster.replicas.replica_moves import ReplicaMoves
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.group_configs import member_times
from strandline.broker.config.listeners import CannotListen, listen_at
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.coordination.runtime.runtime import GroupCoordinator
from strandline.broker.coordination.values.consumer_values import MemberTimes
from strandline.broker.handlers.dispatch.dispatch import Dispatcher
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.sessions import FetchSessionCache
from strandline.broker.handlers.services.services import Services
from strandline.broker.handlers.wiring import make_dispatcher
from strandline.broker.network.cold_turns import ColdTurns
from strandline.broker.network.connection import Spawn
from strandline.broker.network.server import Server
from strandline.broker.quotas.cold_pace import ColdPace
from strandline.broker.quotas.quotas import ClientQuotas
from strandline.broker.server.background import FinishedPurges, LogUpkeep, delayed, keep_running
from strandline.broker.server.full_collections import Collector
from strandline.broker.server.opening import (
    archive_mark,
    load_logs,
    load_metadata,
    make_cold_reader,
    make_metadata_log,
    make_tiering,
    open_archive,
    open_believed_time,
    open_log_dirs,
    warn_of_unreachable_archive,
)
from strandline.broker.server.sasl_listeners import ConnectionHandlers, check_sasl
from strandline.broker.server.standard_streams import say
from strandline.broker.server.workers import Workers
from strandline.broker.telemetry.requests import RequestTraffic
from strandline.retention.enforcer import RetentionEnforcer
from strandline.retention.jump_guard import JumpGuard
from strandline.storage.clock import Clock
from strandline.storage.local.cleaner.cleaner import LogCleaner
from strandline.storage.local.log_dirs.last_known_time import LastTime
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.metrics import MetricRegistry
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.partition.config import TieringConfig

# What only a broker with a remote tier, or with metrics, needs is imported where it is needed: else
# every start would wait for it (docs/decisions/0010).
if TYPE_CHECKING:
    from strandline.broker.server.archive_upkeep import ArchiveClaim, ArchiveUpkeep
    from strandline.broker.telemetry.http_server import MetricsServer
    from strandline.storage.remote.reader.cold_reader import ColdReader
    from strandline.storage.tiering.manager.manager import TieringManager

log = logging.getLogger(__name__)

T = TypeVar("T")


class Broker:
    """One broker process; see the top of this file."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._running = RunningConfig(config)
        self._clock = clock
        self._quotas = ClientQuotas(
            clock,
            config.quota_windows,
        )
        self._traffic = RequestTraffic(clock)
        self._cold_pace = ColdPace(lambda: self._running.current.pace)
        self._workers = Workers.start(config)
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(self._workers.default)
        self._log_dirs: LogDirs
        self._metadata_log: MetadataLog
        self._metadata: Metadata
        self._server: Server
        self._replicas: ReplicaManager
        self._moves: ReplicaMoves
        self._upkeep: LogUpkeep
        self._groups: GroupCoordinator
        self._enforcer: RetentionEnforcer
        self._cleaner: LogCleaner
        self._metrics: MetricsServer | None = None
        self._tiering_counters = MetricRegistry()
        self._cold_reader: ColdReader | None = None
        self._fetch: FetchHandler
        self._sessions: FetchSessionCache
        self._stopping = False
        self._started = False
        self._store: ObjectStore | None = None
        self._tiering: TieringManager | None = None
        self._claim: ArchiveClaim | None = None
        self._archive: ArchiveUpkeep | None = None
        self._purges = FinishedPurges()
        self._last_time: LastTime
        self._guard: JumpGuard

    # --- starting ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Everything up to the ready line. Raises StrandlineError."""
        check_sasl(self._config)
        config, clock = self._config, self._clock
        disk, metadata = self._workers.disk, self._workers.metadata
        self._log_dirs = await self._in(disk, partial(open_log_dirs, config, clock))  # 1
        await self._read_last_time()
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
            metadata, partial(load_metadata, self._metadata_log, config, self._store)
        )  # 3
        started = controller.start_broker(self._metadata_log.image, config.node_id)
        image = await self._in(metadata, partial(self._metadata_log.append, started.records))  # 4
        if self._store is None:
            warn_of_unreachable_archive(image)
        self._running.follow(image)
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
        self._metadata = Metadata(image, self._metadata_log, follower=self, executor=metadata)
        await self.follow(image)  # 7
        await self._make_services()
        self._started = True
        if self._tiering is not None and self._claim is not None:
            self._tiering.note_probe(self._claim.refusal)
            if self._claim.is_ours:
                from strandline.broker.server.archive_upkeep import start_tiering

                await start_tiering(self._tiering, self._metadata_log, self._workers)

    async def _read_last_time(self) -> None:
        """What is deleted by age goes by this, and not by a clock that is wrong at the start."""
        self._last_time, self._guard = await self._in(
            self._workers.disk, partial(open_believed_time, self._log_dirs, self._clock)
        )

    async def _make_services(self) -> None:
        """What works on replicas and metadata."""
        config, clock = self._config, self._clock
        guard, note_time = self._guard, self._last_time.note
        # Also of a run that ends before its first round.
        await self._in(self._workers.disk, partial(note_time, guard.now_ms()))
        self._groups = GroupCoordinator(
            config.groups,
            self._metadata,
            self._replicas,
            node_id=config.node_id,
            topic_defaults=self._running.current.topics,
            clock=clock,
            reads=self._workers.lookups,
            times_of=self._times_of,
            believed_ms=guard.now_ms,
        )
        self._enforcer = RetentionEnforcer(
            self._retained_logs,
            write_log_starts=self._replicas.checkpoint_log_starts,
            purge_deleted=self._log_dirs.purge_deleted,
            wake_tiering=self._tiering.wake if self._tiering is not None else lambda _: None,
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
        )
        self._moves = ReplicaMoves(
            self._replicas,
            self._log_dirs,
            worker=self._workers.moves,
            clock=clock,
            cleaning_paused=self._cleaner.paused,
        )
        self._upkeep = LogUpkeep(
            self._replicas,
            self._log_dirs,
            metadata=self._metadata,
            running=self._running,
            workers=self._workers,
            clock=clock,
            believed_ms=guard.now_ms,
        )

    def _times_of(self, group_id: str) -> MemberTimes:
        properties = self._metadata.image.group_properties.get(group_id, {})
        return member_times(self._running.current, properties)

    def _retained_logs(self) -> Iterable[UnifiedLog]:
        """The logs whose retention is this broker's."""
        return (partition.log for partition in self._replicas.partitions())

    async def follow(self, image: MetadataImage) -> None:
        """Makes this broker as the metadata says: what depends on others comes after them."""
        self._running.follow(image)
        self._quotas.follow(image)
        current = self._running.current
        if self._tiering is not None:
            self._tiering.reconfigure(current.tiering)
        if self._cold_reader is not None:
            self._workers.resize(current)
            self._cold_reader.resize(current.cold_reader)
        await self._replicas.follow(image)

    def _make_tiers(self) -> Tiers:
        local = LocalTier(
            self._log_dirs.log_start_offsets,
            lookups=self._workers.lookups,
            on_purged=self._purges.add,
        )
        if self._store is None:
            return local
        self._tiering = self._make_manager(self._store, self._config.tiering)
        return BothTiers(local, self._tiering)

    def _make_manager(self, store: ObjectStore, tiering: TieringConfig) -> TieringManager:
        self._cold_reader = make_cold_reader(store, self._config, self._workers, self._cold_pace)
        return make_tiering(
            store,
            tiering,
            self._workers,
            reader=self._cold_reader,
            clock=self._clock,
            believed_ms=self._guard.now_ms,
            metrics=self._tiering_counters,
            on_topic_purged=self._purges.add,
        )

    # --- running -----------------------------------------------------------------------------

    async def run(self, stopping: asyncio.Event) -> None:
        """Serves until `stopping` is set. Raises CannotListen."""
        refused: CannotListen | None = None
        collector = Collector()
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    self._listen(tasks.create_task)
                    await self._listen_for_monitoring()
                except CannotListen as error:
                    # The group would wrap it; the user is told in one line.
                    refused = error
                    raise _Stop from None
                for name, loop in self._loops().items():
                    tasks.create_task(keep_running(name, loop), name=name)
                collector.start()
                listener = self._config.listeners[0]
                say(
                    f"strandline ready: broker {self._config.node_id} at "
                    f"{listener.host or '0.0.0.0'}:{listener.port}"
                )
                await stopping.wait()
                log.info("stopping")
                self._stopping = True
                self._server.close()
                # What came in just now begins, and is cancelled: what never began warns on stderr.
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

    def _loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What runs beside the connections, by name."""
        config, upkeep = self._config, self._upkeep
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "connection sweep": self._server.sweep_forever,
            "flush": upkeep.flush_forever,
            "checkpoint": upkeep.checkpoint_forever,
            "producer expiry": upkeep.expire_producers_forever,
            "groups": self._groups.run,
            "retention": delayed(config.logs.first_delay_ms, self._enforcer.run),
            "purges": partial(self._purges.note_forever, self._metadata),
            "log folders": upkeep.revive_folders_forever,
            "moves": self._moves.run,
        }
        if config.cleaner.is_enabled:
            loops["cleaner"] = delayed(config.logs.first_delay_ms, self._cleaner.run)
        if self._claim is not None:
            loops |= self._archive_loops(self._claim)
        return loops

    def _archive_loops(self, claim: ArchiveClaim) -> dict[str, Callable[[], Awaitable[None]]]:
        assert self._store is not None
        assert self._tiering is not None
        from strandline.broker.server.archive_upkeep import ArchiveUpkeep

        archive = self._archive = ArchiveUpkeep(
            claim,
            self._store,
            tiering=self._tiering,
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
            "groups archive": archive.archive_groups_forever,
            "archive look": archive.look_forever,
        }

    def _listen(self, spawn: Spawn) -> None:
        config, running = self._config, self._running
        self._server = Server(
            ConnectionHandlers(config, self._make_dispatcher(), self._metadata, self._clock),
            limits=lambda: running.current.network,
            admit=self._quotas.connected,
            pace=lambda listener: self._quotas.accepted(listener, running.current.connection_rates),
            clock=self._clock,
            spawn=spawn,
            cold_turns=ColdTurns(self._cold_pace, self._clock.monotonic_s),
        )
        self._running.bind(listen_at(config.listeners, self._server.listen))
        self._config = self._running.static

    def _make_dispatcher(self) -> Dispatcher:
        services = Services(
            running=self._running,
            metadata=self._metadata,
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
            log_dirs=self._log_dirs,
            moves=self._moves,
            advertised=self._running.advertised,
            decoding=self._workers.decoding,
        )

    async def _listen_for_monitoring(self) -> None:
        """Serves /metrics where strandline.metrics.listener says. Raises CannotListen."""
        listener = self._config.metrics.listener
        if listener is None:
            return
        # It knows every part of a broker, and most brokers are not asked for their figures.
        from strandline.broker.server.monitoring import Sources, serve_metrics, store_requests

        sources = Sources(
            clock=self._clock,
            requests=self._traffic,
            server=self._server,
            metadata=self._metadata,
            replicas=self._replicas,
            groups=self._groups,
            sessions=self._sessions,
            parked_fetches=lambda: self._fetch.parked_count,
            log_dirs=self._log_dirs,
            partitions_max=self._config.metrics.partitions_max,
            tiering=self._tiering,
            tiering_counters=self._tiering_counters,
            cold_reader=self._cold_reader,
            cold_pace=self._cold_pace,
            mirror_lag=lambda: self._metadata_log.statistics().mirror_lag,
            deleted_counts=lambda: self._archive.deleted_counts() if self._archive else {},
            conditions=lambda: None if self._claim is None else self._claim.conditions,
            store_requests=lambda: store_requests(self._store),
            remote_pools=self._workers.remote_pools(),
            cleaner=self._cleaner.figures,
        )
        self._metrics = await serve_metrics(listener, sources, self._why_not_ready)

    def _why_not_ready(self) -> str:
        """Why clients cannot be served as they should; empty if they can."""
        if self._stopping:
            return "stopping"
        if all(directory.failure is not None for directory in self._log_dirs.directories):
            return "every log folder is offline"
        return ""

    # --- stopping ----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Leaves the disk clean; what cannot be reached any more is left to recovery."""
        try:
            if self._started:
                self._cleaner.close()
                partitions = self._replicas.partitions()
                finish = partial(
                    self._log_dirs.finish,
                    {p.topic_partition: p.log.log_start_offset for p in partitions},
                    {p.topic_partition: p.high_watermark for p in partitions},
                )
                # A flush must not find its file closed: those that have begun end first.
                end_syncs = partial(self._workers.syncs.shutdown, wait=True, cancel_futures=True)
                await self._in(self._workers.disk, end_syncs)
                if self._archive is not None:
                    await self._archive.read_rest()
                await self._in(self._workers.disk, finish)  # 3, 4
                if self._archive is not None:
                    await self._archive.tell_rest()  # 5
                self._log_dirs.unlock()  # 6
        finally:
            if self._tiering is not None:
                self._tiering.close()
            if self._cold_reader is not None:
                self._cold_reader.close()
            if self._store is not None:
                self._store.close()
            self._workers.stop()
        log.info("stopped")

    async def _in(self, worker: Executor, call: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(worker, call)


class _Stop(Exception):
    """Raised inside the task group to end it."""

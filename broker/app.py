"""The composition root: builds the broker, owns its tasks and threads, takes it down again.

    start   1 lock the log folders            5 load the logs (recovering after an unclean stop)
            2 open the object store           6 attach them to their tiers
            3 load the metadata log           7 create what the image has and the disk lacks
            4 record this start (new epochs)  8 listen, print the ready line

    stop    1 stop accepting, drop connections   3 flush and close the logs
            2 end the tasks                      4 write the checkpoints, mark the stop as clean

Threads, all bounded:  disk (1)  log folders, checkpoints
                       syncs (8)  flushes of logs; those of different logs share the device
                       metadata (1)  appends to the metadata log
                       manifests (4)  manifests, deletes, the mirror of the metadata log
                       lookups (2)  offsets by time
                       records (2)  appends that need decompression or a look at each record
                       copier (remote.log.manager.copier.thread.pool.size)  uploads
                       reader (remote.log.reader.threads)  cold reads
                       cleaner (log.cleaner.threads)  talks to a compacting child process each
                       decoding (1)  large requests
                       moves (1)  copies of partitions for another log folder

A background loop that fails is logged and begun again; it never takes the broker with it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from strandline.broker.cluster import controller
from strandline.broker.cluster.image import MetadataImage
from strandline.broker.cluster.metadata import Metadata
from strandline.broker.cluster.metadata_log import MetadataLog
from strandline.broker.cluster.partition import Partition
from strandline.broker.cluster.replica_manager import ReplicaManager
from strandline.broker.cluster.replica_moves import ReplicaMoves
from strandline.broker.cluster.tiers import BothTiers, LocalTier, Tiers, is_tiered
from strandline.broker.config import BrokerConfig
from strandline.broker.coordination.group_archive import GroupArchive
from strandline.broker.coordination.runtime import GroupCoordinator
from strandline.broker.handlers.admin import make_admin_handlers
from strandline.broker.handlers.configs import ConfigHandlers
from strandline.broker.handlers.dispatch import Dispatcher, Handler
from strandline.broker.handlers.fetch import FetchHandler
from strandline.broker.handlers.fetch_sessions import FetchSessionCache
from strandline.broker.handlers.groups import make_group_handlers
from strandline.broker.handlers.metadata import MetadataHandlers
from strandline.broker.handlers.offsets import OffsetHandlers
from strandline.broker.handlers.produce import ProduceHandler
from strandline.broker.handlers.producer_ids import ProducerIdHandler
from strandline.broker.handlers.services import Services
from strandline.broker.handlers.topics import TopicHandlers
from strandline.broker.listeners import parse_connection_overrides, parse_metrics_listener
from strandline.broker.network.connection import Spawn
from strandline.broker.network.server import Server, ServerLimits
from strandline.broker.protocol.api import ApiKey
from strandline.broker.protocol.offsets_topic import OFFSETS_TOPIC
from strandline.broker.quotas.quotas import ClientQuotas
from strandline.broker.quotas.rates import QuotaWindows
from strandline.broker.restore import METADATA_FOLDER, check_not_interrupted
from strandline.broker.running_config import RunningConfig
from strandline.broker.telemetry.collector import Collector, Sources
from strandline.broker.telemetry.http_server import MetricsServer
from strandline.broker.telemetry.requests import RequestTraffic
from strandline.retention.enforcer import RetentionEnforcer
from strandline.storage.clock import Clock
from strandline.storage.crash_points import check_environment
from strandline.storage.errors import (
    DiskError,
    StorageError,
    StrandlineError,
    TierError,
    TierUnavailable,
)
from strandline.storage.local.cleaner import CleanerSettings, LogCleaner
from strandline.storage.local.log import LocalLog
from strandline.storage.local.log_dir import LogDirs, RevivedLog
from strandline.storage.log_config import LogConfig
from strandline.storage.metrics import MetricRegistry
from strandline.storage.model import TopicId, TopicPartition
from strandline.storage.remote.cluster_info import ClusterInfo, create_cluster_info
from strandline.storage.remote.local_directory import LocalDirectoryStore
from strandline.storage.remote.object_store import (
    ObjectStore,
    check_conditional_writes,
    open_store,
)
from strandline.storage.remote.reader import ColdReader
from strandline.storage.tiering.failures import RetryPolicy, RetryState
from strandline.storage.tiering.manager import TieringConfig, TieringExecutors, TieringManager
from strandline.storage.tiering.quota import QuotaLimits
from strandline.storage.tiering.unified_log import UnifiedLog

log = logging.getLogger(__name__)

# A loop that fails begins again after this, doubling up to the maximum.
RESTART_S = 1.0
RESTART_S_MAX = 60.0
# Closed segments are synced at the next turn; flush.ms is kept to this precision.
FLUSH_CHECK_S = 1.0
# Kafka's replica.high.watermark.checkpoint.interval.ms.
CHECKPOINT_S = 5.0
# Costs no request while nothing has changed; what is not mirrored is lost with the machine.
MIRROR_CHECK_S = 0.5
# An offline folder is probed with one small file, so often that nobody has to restart the broker.
REVIVE_CHECK_S = 1.0
PURGE_CHECK_S = 0.5
# Kafka's producer.id.expiration.check.interval.ms.
PRODUCER_CHECK_S = 600.0
# Start-up waits this long for the store to say whose archive it holds, and goes on without it.
CLAIM_WAIT_S = 5.0
# Then the store is asked again after this, doubling up to the maximum.
CLAIM_RETRY_S = 0.5
CLAIM_RETRY_S_MAX = 5.0
# Manifests, deletes and topic.json are small: a few at a time, and never behind a copy.
MANIFEST_THREADS = 4
# ListOffsets by time decompresses a batch of each partition.
LOOKUP_THREADS = 2
# An fsync waits for the device and for nobody else; ten at once take little longer than one.
SYNC_THREADS = 8
# Codecs let go of the interpreter while they work, so a second thread helps; each may hold a whole
# decompressed batch.
RECORD_THREADS = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workers:
    """The broker's threads."""

    disk: ThreadPoolExecutor
    syncs: ThreadPoolExecutor
    metadata: ThreadPoolExecutor
    copier: ThreadPoolExecutor
    lookups: ThreadPoolExecutor
    records: ThreadPoolExecutor
    manifests: ThreadPoolExecutor
    reader: ThreadPoolExecutor
    cleaner: ThreadPoolExecutor
    decoding: ThreadPoolExecutor
    moves: ThreadPoolExecutor

    @classmethod
    def start(cls, config: BrokerConfig) -> _Workers:
        return cls(
            disk=ThreadPoolExecutor(1, "disk"),
            syncs=ThreadPoolExecutor(SYNC_THREADS, "syncs"),
            metadata=ThreadPoolExecutor(1, "metadata"),
            copier=ThreadPoolExecutor(config.remote_log_manager_copier_thread_pool_size, "copier"),
            lookups=ThreadPoolExecutor(LOOKUP_THREADS, "lookups"),
            records=ThreadPoolExecutor(RECORD_THREADS, "records"),
            manifests=ThreadPoolExecutor(MANIFEST_THREADS, "manifests"),
            reader=ThreadPoolExecutor(config.remote_log_reader_threads, "reader"),
            cleaner=ThreadPoolExecutor(max(1, config.log_cleaner_threads), "cleaner"),
            decoding=ThreadPoolExecutor(1, "decoding"),
            moves=ThreadPoolExecutor(1, "moves"),
        )

    def stop(self) -> None:
        pools = (
            self.decoding,
            self.reader,
            self.lookups,
            self.records,
            self.copier,
            self.cleaner,
            self.manifests,
            self.moves,
            self.metadata,
            self.syncs,
            self.disk,
        )
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)


async def serve(make_broker: Callable[[], Broker]) -> int:
    """Runs the broker until SIGTERM or SIGINT; the exit code.

    Raises StrandlineError if it cannot start.
    """
    check_environment()
    _raise_descriptor_limit()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = make_broker()
    try:
        await broker.start()
        await broker.run(stopping)
    finally:
        await broker.stop()
    return 0


class CannotListen(StrandlineError):
    """An address of `listeners` cannot be bound."""


class WrongArchive(StrandlineError):
    """The bucket holds another cluster's archive."""


class ArchiveUnknown(StrandlineError):
    """The first start on empty folders cannot ask the bucket."""


class Broker:
    """One broker process; see the top of this file."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._running = RunningConfig(config)
        self._clock = clock
        self._quotas = ClientQuotas(
            clock,
            QuotaWindows(
                count=config.quota_window_num, length_ms=1000 * config.quota_window_size_seconds
            ),
        )
        self._traffic = RequestTraffic(clock)
        self._workers = _Workers.start(config)
        self._loop = asyncio.get_running_loop()
        # Anything that asks for asyncio's default pool gets a bounded one.
        self._loop.set_default_executor(ThreadPoolExecutor(2, "default"))
        self._log_dirs: LogDirs
        self._metadata_log: MetadataLog
        self._metadata: Metadata
        self._server: Server
        self._replicas: ReplicaManager
        self._moves: ReplicaMoves
        self._groups: GroupCoordinator
        self._enforcer: RetentionEnforcer
        self._cleaner: LogCleaner
        # Made anew when the configuration is altered.
        self._limits: ServerLimits | None = None
        self._limits_of: BrokerConfig | None = None
        self._metrics: MetricsServer | None = None
        self._tiering_counters = MetricRegistry()
        self._cold_reader: ColdReader | None = None
        self._fetch: FetchHandler
        self._sessions: FetchSessionCache
        self._stopping = False
        self._started = False
        self._store: ObjectStore | None = None
        self._tiering: TieringManager | None = None
        self._owns_archive = False
        # Why the archive could not be claimed so far, as far as it was logged.
        self._unclaimed_kind = ""
        self._purged: set[TopicId] = set()

    # --- starting ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Everything up to the ready line. Raises StrandlineError."""
        config, clock = self._config, self._clock
        self._log_dirs = await self._in(self._workers.disk, self._open_log_dirs)  # 1
        self._store = self._open_store()  # 2
        if self._store is not None:
            self._owns_archive = await self._claim_archive(wait_s=CLAIM_WAIT_S)
        self._metadata_log = MetadataLog(
            LocalDirectoryStore(config.log_dirs[0] / METADATA_FOLDER, clock=clock),
            self._store,
            cluster_id=self._log_dirs.cluster_id,
        )
        await self._load_metadata()  # 3
        started = controller.start_broker(self._metadata_log.image, config.node_id)
        image = await self._in(
            self._workers.metadata, partial(self._metadata_log.append, started.records)
        )  # 4
        if self._store is None:
            _warn_of_unreachable_archive(image)
        self._running.follow(image)
        logs = await self._in(self._workers.disk, partial(self._load_logs, image))  # 5
        self._replicas = ReplicaManager(
            self._log_dirs,
            self._make_tiers(),
            topic_defaults=lambda: self._running.topic_defaults.properties,
            disk=self._workers.disk,
            syncs=self._workers.syncs,
        )
        self._replicas.take_over(logs, image)  # 6
        self._metadata = Metadata(
            image, self._metadata_log, follower=self, executor=self._workers.metadata
        )
        await self.follow(image)  # 7
        self._make_services()
        self._started = True
        if self._tiering is not None and self._owns_archive:
            await self._tiering.start()

    def _make_services(self) -> None:
        """What works on replicas and metadata."""
        config, clock = self._config, self._clock
        self._groups = GroupCoordinator(
            config,
            self._metadata,
            self._replicas,
            node_id=config.node_id,
            topic_defaults=self._running.topic_defaults,
            clock=clock,
            reads=self._workers.lookups,
        )
        self._enforcer = RetentionEnforcer(
            self._retained_logs,
            write_log_starts=self._replicas.checkpoint_log_starts,
            purge_deleted=self._log_dirs.purge_deleted,
            wake_tiering=self._tiering.wake if self._tiering is not None else lambda _: None,
            executor=self._workers.disk,
            clock=clock,
            interval_ms=config.log_retention_check_interval_ms,
        )
        self._cleaner = LogCleaner(
            lambda: (partition.log.local for partition in self._replicas.partitions()),
            offsets=self._log_dirs,
            executor=self._workers.cleaner,
            clock=clock,
            settings=lambda: _cleaner_settings(self._running.current),
        )
        self._moves = ReplicaMoves(
            self._replicas,
            self._log_dirs,
            worker=self._workers.moves,
            clock=clock,
            cleaning_paused=self._cleaner.paused,
        )

    def _retained_logs(self) -> Iterable[UnifiedLog]:
        """The logs whose retention is this broker's."""
        return (partition.log for partition in self._replicas.partitions())

    async def _load_metadata(self) -> None:
        try:
            await self._in(self._workers.metadata, self._metadata_log.load)
        except TierError as error:
            raise ArchiveUnknown(
                f"{self._config.log_dirs[0]} is empty, and whether {self._config.remote_url} holds"
                " an archive already cannot be found out. A first start needs the remote tier;"
                f" later ones do not: {error}"
            ) from error

    async def follow(self, image: MetadataImage) -> None:
        """Makes this broker as the metadata says: what depends on others comes after them."""
        self._running.follow(image)
        self._quotas.follow(image)
        if self._tiering is not None:
            altered = tiering_config(self._running.current)
            self._tiering.copy_quota.limits = altered.copy_quota
            self._tiering.fetch_quota.limits = altered.fetch_quota
        await self._replicas.follow(image)

    def _open_log_dirs(self) -> LogDirs:
        check_not_interrupted(self._config.log_dirs)
        return LogDirs.open(
            self._config.log_dirs,
            node_id=self._config.node_id,
            cluster_id=None,
            clock=self._clock,
        )

    def _open_store(self) -> ObjectStore | None:
        config = self._config
        if not config.remote_log_storage_system_enable or config.remote_url is None:
            return None
        return open_store(
            config.remote_url,
            endpoint_url=config.remote_s3_endpoint_url,
            region=config.remote_s3_region,
            clock=self._clock,
        )

    async def _claim_archive(self, *, wait_s: float | None = None) -> bool:
        """Whether the bucket is known to be this cluster's; False if it cannot be asked now.

        After `wait_s` it is not waited for any more; None waits as long as the store does.

        Raises WrongArchive if it is another's: nothing may be written there.
        """
        store = self._store
        assert store is not None
        ours = ClusterInfo(cluster_id=self._log_dirs.cluster_id)
        claim = partial(_claim, store, ours)
        try:
            async with asyncio.timeout(wait_s):
                # Not in the metadata thread: while the store hangs, topics can still be created.
                found = await self._in(self._workers.manifests, claim)
        except TimeoutError:
            self._note_unclaimed(TierUnavailable("cluster.json", "put", f"no answer in {wait_s} s"))
            return False
        except TierError as error:
            self._note_unclaimed(error)
            return False
        if found.cluster_id != ours.cluster_id:
            raise WrongArchive(
                f"{store.url} belongs to cluster {found.cluster_id}, the log folders to "
                f"{ours.cluster_id}: point strandline.remote.url at an empty prefix, or log.dirs "
                f"at the folders of {found.cluster_id}. If those are lost: `strandline restore`"
            )
        return True

    def _note_unclaimed(self, error: TierError) -> None:
        """Says why the archive is not used yet, once per kind of reason."""
        kind = type(error).__name__
        log.log(
            logging.DEBUG if kind == self._unclaimed_kind else logging.WARNING,
            "remote tier cannot be reached; archived records wait until it can",
            extra={"fields": {"url": self._config.remote_url, "error": str(error)}},
        )
        self._unclaimed_kind = kind

    def _load_logs(self, image: MetadataImage) -> dict[TopicPartition, LocalLog]:
        defaults = self._running.current.topic_defaults()
        configs = {
            topic.name: LogConfig.resolve(topic.properties, defaults)
            for topic in image.topics.values()
        }

        def config_for(key: TopicPartition, topic_id: TopicId) -> LogConfig | None:
            topic = image.topics.get(key.topic)
            if topic is None or topic.topic_id != topic_id:
                return None
            if key.partition >= topic.partition_count:
                return None
            return configs[key.topic]

        return self._log_dirs.load(
            config_for, threads_per_directory=self._config.num_recovery_threads_per_data_dir
        )

    def _make_tiers(self) -> Tiers:
        config = self._config
        local = LocalTier(
            self._log_dirs.log_start_offsets,
            lookups=self._workers.lookups,
            on_purged=self._on_purged,
        )
        if self._store is None:
            return local
        self._tiering = self._make_manager(self._store, tiering_config(config))
        return BothTiers(local, self._tiering)

    def _make_manager(self, store: ObjectStore, tiering: TieringConfig) -> TieringManager:
        config = self._config
        reader = self._cold_reader = ColdReader(
            store,
            self._workers.reader,
            chunk_bytes=config.remote_chunk_bytes,
            parallel_downloads_max=config.remote_log_reader_threads,
            memory_bytes_max=config.remote_cache_memory_bytes,
            disk_bytes_max=config.remote_cache_disk_bytes,
            disk_directory=config.remote_cache_directory
            if config.remote_cache_disk_bytes
            else None,
        )
        return TieringManager(
            store,
            reader=reader,
            executors=TieringExecutors(
                copies=self._workers.copier, metadata=self._workers.manifests
            ),
            clock=self._clock,
            config=tiering,
            metrics=self._tiering_counters,
            on_topic_purged=lambda info: self._on_purged(info.topic_id),
        )

    def _on_purged(self, topic_id: TopicId) -> None:
        self._purged.add(topic_id)

    # --- running -----------------------------------------------------------------------------

    async def run(self, stopping: asyncio.Event) -> None:
        """Serves until `stopping` is set. Raises CannotListen."""
        refused: CannotListen | None = None
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
                    tasks.create_task(_keep_running(name, loop), name=name)
                gc.collect()
                # What lives now lives for good: the collector need not look at it again.
                gc.freeze()
                listener = self._config.listeners[0]
                print(  # noqa: T201 (the one line on standard output)
                    f"strandline ready: broker {self._config.node_id} at "
                    f"{listener.host or '0.0.0.0'}:{listener.port}",
                    flush=True,
                )
                await stopping.wait()
                log.info("stopping")
                self._stopping = True
                self._server.close()
                raise _Stop
        except* _Stop:
            pass
        finally:
            if self._metrics is not None:
                self._metrics.close()
        if refused is not None:
            raise refused

    def _loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What runs beside the connections, by name."""
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "connection sweep": self._server.sweep_forever,
            "flush": self._flush_forever,
            "checkpoint": self._checkpoint_forever,
            "producer expiry": self._expire_producers_forever,
            "groups": self._groups.run,
            "retention": self._retain_forever,
            "purges": self._finish_purges_forever,
            "log folders": self._revive_folders_forever,
            "moves": self._moves.run,
        }
        if self._config.log_cleaner_enable:
            loops["cleaner"] = self._clean_forever
        if self._store is not None:
            loops["metadata mirror"] = self._mirror_forever
            loops["tiering"] = self._tier_forever
            loops["groups archive"] = self._archive_groups_forever
        return loops

    def _listen(self, spawn: Spawn) -> None:
        config = self._config
        self._server = Server(
            self._make_dispatcher(),
            limits=self._server_limits,
            admit=self._quotas.connected,
            clock=self._clock,
            spawn=spawn,
        )
        ports: dict[str, int] = {}
        for listener in config.listeners:
            try:
                ports[listener.name] = self._server.listen(listener.host, listener.port)
            except OSError as error:
                raise CannotListen(f"cannot listen at {listener}: {error.strerror}") from error
        self._running.bind(ports)
        self._config = self._running.static

    def _server_limits(self) -> ServerLimits:
        config = self._running.current
        if self._limits is None or self._limits_of is not config:
            self._limits_of = config
            self._limits = ServerLimits(
                request_bytes_max=config.socket_request_max_bytes,
                connections_max=config.max_connections,
                idle_ms_max=config.connections_max_idle_ms,
                connections_per_address_max=config.max_connections_per_ip,
                connections_by_address_max=parse_connection_overrides(
                    config.max_connections_per_ip_overrides
                ),
            )
        return self._limits

    def _make_dispatcher(self) -> Dispatcher:
        services = Services(
            running=self._running,
            metadata=self._metadata,
            replicas=self._replicas,
            sessions=FetchSessionCache(
                self._config.max_incremental_fetch_session_cache_slots, self._clock
            ),
            quotas=self._quotas,
            traffic=self._traffic,
            clock=self._clock,
            records=self._workers.records,
        )
        topics = TopicHandlers(services)
        offsets = OffsetHandlers(services)
        # Every listener is told the first one's address until there is more than PLAINTEXT.
        metadata = MetadataHandlers(services, lambda: self._running.current.advertised_listeners[0])
        handlers: Mapping[ApiKey, Handler] = {
            ApiKey.METADATA: metadata.metadata,
            ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
            ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
            ApiKey.CREATE_TOPICS: topics.create_topics,
            ApiKey.DELETE_TOPICS: topics.delete_topics,
            ApiKey.CREATE_PARTITIONS: topics.create_partitions,
            ApiKey.DESCRIBE_CONFIGS: ConfigHandlers(services).describe_configs,
            ApiKey.INIT_PRODUCER_ID: ProducerIdHandler(services).init_producer_id,
            ApiKey.LIST_OFFSETS: offsets.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
            ApiKey.DELETE_RECORDS: offsets.delete_records,
            **make_group_handlers(services, self._groups),
            **make_admin_handlers(services, self._log_dirs, self._moves, self._tiering),
        }
        self._fetch = FetchHandler(services)
        self._sessions = services.sessions
        return Dispatcher(
            services,
            ProduceHandler(services),
            self._fetch,
            handlers,
            decoding=self._workers.decoding,
        )

    async def _listen_for_monitoring(self) -> None:
        """Serves /metrics where strandline.metrics.listener says. Raises CannotListen."""
        address = self._config.metrics_listener
        if address is None:
            return
        listener = parse_metrics_listener(address)
        collector = Collector(
            Sources(
                clock=self._clock,
                requests=self._traffic,
                server=self._server,
                metadata=self._metadata,
                replicas=self._replicas,
                groups=self._groups,
                sessions=self._sessions,
                parked_fetches=lambda: self._fetch.parked_count,
                log_dirs=self._log_dirs,
                partitions_max=self._config.metrics_partitions_max,
                tiering=self._tiering,
                tiering_counters=self._tiering_counters,
                cold_reader=self._cold_reader,
                store_requests=self._store_requests,
                cleaner=self._cleaner.figures,
            )
        )
        self._metrics = MetricsServer(collector.page, self._why_not_ready)
        try:
            port = await self._metrics.listen(listener.host, listener.port)
        except OSError as error:
            raise CannotListen(f"cannot listen at {listener}: {error.strerror}") from error
        log.info(
            "metrics are served",
            extra={"fields": {"host": listener.host or "0.0.0.0", "port": port}},
        )

    def _store_requests(self) -> tuple[Mapping[str, int], int] | None:
        """What was asked of S3 so far, and how many attempts failed; None for other stores."""
        if self._store is None or not self._store.url.startswith("s3"):
            return None
        # Loaded with the store: a broker without S3 never loads an SDK.
        from strandline.storage.remote.s3 import S3Store

        if not isinstance(self._store, S3Store):
            return None
        found = self._store.statistics()
        return found.requests, found.failed_attempt_count

    def _why_not_ready(self) -> str:
        """Why clients cannot be served as they should; empty if they can."""
        if self._stopping:
            return "stopping"
        if all(directory.failure is not None for directory in self._log_dirs.directories):
            return "every log folder is offline"
        return ""

    # --- background --------------------------------------------------------------------------

    async def _retain_forever(self) -> None:
        await asyncio.sleep(self._config.log_initial_task_delay_ms / 1000)
        await self._enforcer.run()

    async def _clean_forever(self) -> None:
        await asyncio.sleep(self._config.log_initial_task_delay_ms / 1000)
        await self._cleaner.run()

    async def _flush_forever(self) -> None:
        """Syncs closed segments, and open ones whose flush.ms or flush.messages is due."""
        while True:
            await asyncio.sleep(FLUSH_CHECK_S)
            now_ms = self._clock.now_ms()
            due = [
                partition
                for partition in self._replicas.partitions()
                if _must_be_flushed(partition.log.local, now_ms)
            ]
            for start in range(0, len(due), SYNC_THREADS):
                together = due[start : start + SYNC_THREADS]
                await asyncio.gather(*(self._flush_one(partition) for partition in together))

    async def _flush_one(self, partition: Partition) -> None:
        try:
            await partition.flush()
        except DiskError as error:
            if partition.is_gone:
                return
            log.error(
                "flush failed",
                extra={
                    "fields": {"partition": str(partition.topic_partition), "error": str(error)}
                },
            )

    async def _checkpoint_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            await self._replicas.checkpoint_log_starts()

    async def _revive_folders_forever(self) -> None:
        """Takes log folders into service again that went offline and can be written once more."""
        while True:
            await asyncio.sleep(REVIVE_CHECK_S)
            revived: list[RevivedLog] = []
            if self._log_dirs.has_failed:
                revived = await self._in(self._workers.disk, self._log_dirs.revive)
            if any(pair.lost_records for pair in revived) or (
                self._replicas.has_uncreated and not self._log_dirs.has_failed
            ):
                # Offsets are given a second time: readers must be able to tell (KIP-320). And the
                # change of the metadata makes the partitions that found no folder.
                await self._metadata.change(
                    partial(controller.start_broker, node_id=self._config.node_id)
                )
            self._replicas.replace_logs(revived)

    async def _expire_producers_forever(self) -> None:
        """Forgets idempotent producers that were silent for `producer.id.expiration.ms`."""
        while True:
            await asyncio.sleep(PRODUCER_CHECK_S)
            for partition in self._replicas.partitions():
                partition.log.local.producers.expire(
                    self._clock.now_ms(), self._running.current.producer_id_expiration_ms
                )
                await asyncio.sleep(0)

    async def _finish_purges_forever(self) -> None:
        """Notes in the metadata log that nothing is left of deleted topics."""
        while True:
            await asyncio.sleep(PURGE_CHECK_S)
            while self._purged:
                topic_id = next(iter(self._purged))
                await self._metadata.change(partial(controller.finish_purge, topic_id=topic_id))
                self._purged.discard(topic_id)

    async def _mirror_forever(self) -> None:
        mirroring = RetryState("mirror", "metadata", policy=RetryPolicy(), clock=self._clock)
        while True:
            if self._owns_archive and mirroring.may_try:
                try:
                    await self._in(self._workers.manifests, self._metadata_log.mirror_once)
                except StorageError as error:
                    mirroring.failed(error)
                else:
                    mirroring.succeeded()
            await asyncio.sleep(MIRROR_CHECK_S)

    async def _archive_groups_forever(self) -> None:
        """Keeps the groups' offsets in the bucket up to date, once it is known to be ours."""
        assert self._store is not None
        archive = GroupArchive(
            self._store,
            lambda: (
                partition.log
                for partition in self._replicas.partitions()
                if partition.topic_partition.topic == OFFSETS_TOPIC
            ),
            executor=self._workers.manifests,
            clock=self._clock,
        )
        while True:
            await asyncio.sleep(self._config.remote_groups_upload_ms / 1000)
            # A restore takes the topic from the mirror: its contents must not be there before it.
            # And a mirror that has another history shows that this broker is not the only one.
            if self._owns_archive and self._metadata_log.statistics().mirror_lag <= 0:
                await archive.run_once()

    async def _tier_forever(self) -> None:
        """Runs the tiering once the archive is known to be ours."""
        assert self._tiering is not None
        wait_s = CLAIM_RETRY_S
        while not self._owns_archive:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, CLAIM_RETRY_S_MAX)
            self._owns_archive = await self._claim_archive()
            if self._owns_archive:
                await self._tiering.start()
        await self._tiering.run()

    # --- stopping ----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Leaves the disk clean; what cannot be reached any more is left to recovery."""
        try:
            if self._started:
                self._cleaner.close()
                partitions = self._replicas.partitions()
                close = partial(
                    self._log_dirs.close,
                    {p.topic_partition: p.log.log_start_offset for p in partitions},
                    {p.topic_partition: p.high_watermark for p in partitions},
                )
                # A flush must not find its file closed: those that have begun end first.
                end_syncs = partial(self._workers.syncs.shutdown, wait=True, cancel_futures=True)
                await self._in(self._workers.disk, end_syncs)
                await self._in(self._workers.disk, close)
        finally:
            if self._tiering is not None:
                self._tiering.close()
            if self._store is not None:
                self._store.close()
            self._workers.stop()
        log.info("stopped")

    async def _in(self, worker: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(worker, call)


def _cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        threads=config.log_cleaner_threads,
        backoff_ms=config.log_cleaner_backoff_ms,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        io_buffer_bytes=config.log_cleaner_io_buffer_size,
        load_factor=config.log_cleaner_io_buffer_load_factor,
        io_bytes_per_s=config.log_cleaner_io_max_bytes_per_second,
    )


def tiering_config(config: BrokerConfig) -> TieringConfig:
    """What the configuration says of the remote tier's work."""
    return TieringConfig(
        task_interval_ms=config.remote_log_manager_task_interval_ms,
        workers=config.remote_log_manager_copier_thread_pool_size,
        copy_timeout_ms=config.remote_copy_timeout_ms,
        delete_grace_ms=config.remote_delete_grace_ms,
        merge_target_bytes=config.remote_merge_target_bytes,
        orphan_grace_ms=config.remote_orphan_grace_ms,
        orphan_interval_ms=config.remote_orphan_check_interval_ms,
        retry=RetryPolicy(
            backoff_ms=config.remote_log_manager_task_retry_backoff_ms,
            backoff_ms_max=config.remote_log_manager_task_retry_backoff_max_ms,
            jitter=config.remote_log_manager_task_retry_jitter,
        ),
        copy_quota=QuotaLimits(
            bytes_per_second_max=config.remote_log_manager_copy_max_bytes_per_second,
            window_count=config.remote_log_manager_copy_quota_window_num,
            window_s=config.remote_log_manager_copy_quota_window_size_seconds,
        ),
        fetch_quota=QuotaLimits(
            bytes_per_second_max=config.remote_log_manager_fetch_max_bytes_per_second,
            window_count=config.remote_log_manager_fetch_quota_window_num,
            window_s=config.remote_log_manager_fetch_quota_window_size_seconds,
        ),
        reads_max=config.remote_log_reader_threads + config.remote_log_reader_max_pending_tasks,
    )


def _warn_of_unreachable_archive(image: MetadataImage) -> None:
    """Kafka does not start then; here what is on the disk is served, and the rest is not lost."""
    tiered = sorted(topic.name for topic in image.topics.values() if is_tiered(topic))
    if tiered:
        log.warning(
            "topics have remote.storage.enable=true, but there is no remote tier: what is archived"
            " cannot be read and nothing is copied; set remote.log.storage.system.enable=true and"
            " strandline.remote.url",
            extra={"fields": {"topics": len(tiered), "first": tiered[0]}},
        )


def _must_be_flushed(local: LocalLog, now_ms: int) -> bool:
    """Whether closed segments wait for their fsync, or flush.messages or flush.ms ask for one."""
    if local.failure is not None:
        return False
    return local.recovery_point < local.active_segment.base_offset or local.flush_is_due(now_ms)


def _raise_descriptor_limit() -> None:
    """Takes as many file descriptors as the system lets us: each segment and connection has one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _claim(store: ObjectStore, ours: ClusterInfo) -> ClusterInfo:
    """Whose archive it is, ours if it was nobody's; blocks.

    Raises InvalidConfig if the store cannot keep manifests safe, TierError if it cannot be asked.
    """
    check_conditional_writes(store)
    return create_cluster_info(store, ours)


class _Stop(Exception):
    """Raised inside the task group to end it."""


async def _keep_running(name: str, begin: Callable[[], Awaitable[None]]) -> None:
    """Runs a loop, and begins it again if it fails."""
    wait_s = RESTART_S
    while True:
        try:
            await begin()
        except StrandlineError as error:
            log.warning(
                "background task failed, will be begun again",
                extra={"fields": {"task": name, "wait_s": wait_s, "error": str(error)}},
            )
        except Exception:
            log.exception("background task failed", extra={"fields": {"task": name}})
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, RESTART_S_MAX)

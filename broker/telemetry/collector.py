"""Reads the broker's state into samples, family by family; the only thing that knows both.

Everything is read when it is asked for, from the state itself: a lag is there exactly while there
is one, and nothing can drift. What is counted is counted by its owner, in plain integers.

The number of series is bounded: APIs, versions and error codes are tables of ours; partitions and
committed offsets are shown up to `partitions_max` each, topics up to TOPICS_MAX, in the order of
their names, and `strandline_metrics_left_out` says how many are not. Totals count all of them.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from strandline.broker.cluster.metadata import Metadata
from strandline.broker.cluster.partition import Partition
from strandline.broker.cluster.replica_manager import ReplicaManager
from strandline.broker.cluster.traffic import TopicTraffic
from strandline.broker.coordination.runtime import GroupCoordinator
from strandline.broker.network.server import Server
from strandline.broker.protocol.api import api_name
from strandline.broker.protocol.errors import ErrorCode
from strandline.broker.quotas.cold_pace import ColdPace
from strandline.broker.resizable_pool import ResizablePool
from strandline.broker.telemetry.exposition import (
    Format,
    Sample,
    end_of,
    write_family,
)
from strandline.broker.telemetry.group_rows import group_rows
from strandline.broker.telemetry.process import (
    collections_by_generation,
    process_figures,
    release,
)
from strandline.broker.telemetry.requests import QUANTILES, Durations, RequestTraffic
from strandline.broker.telemetry.rows import LOOKED_UP_PER_TURN, Row, Step, row_of, single
from strandline.broker.telemetry.sessions import SessionFigures
from strandline.storage.clock import Clock
from strandline.storage.local.cleaner_metrics import CleanerFigures
from strandline.storage.local.log_dir import LogDirs
from strandline.storage.metrics import MetricRegistry
from strandline.storage.model import TopicPartition
from strandline.storage.tiering.partition_statistics import PartitionStatistics
from strandline.storage.values import dataclass, field

if TYPE_CHECKING:
    from strandline.storage.remote.reader import ColdReader
    from strandline.storage.tiering.manager import TieringManager

TOPICS_MAX = 2000
# Samples between two looks at the loop: a page must not hold up clients.
SAMPLES_PER_TURN = 50

BROKER_RUNNING = 3
ALL_TOPICS = ""

# Counters of the tiering, by the name under which Kafka has them.
_TIERING_COUNTERS = {
    "strandline_remote_copy_bytes_total": "remotecopybytes",
    "strandline_remote_copy_segments_total": "remotecopyrequests",
    "strandline_remote_copy_errors_total": "remotecopyerrors",
    "strandline_remote_delete_segments_total": "remotedeleterequests",
    "strandline_remote_delete_errors_total": "remotedeleteerrors",
}
_TRAFFIC: Mapping[str, Callable[[TopicTraffic], int]] = {
    "messagesin": lambda t: t.messages_in,
    "bytesin": lambda t: t.bytes_in,
    "bytesout": lambda t: t.bytes_out,
    "totalproducerequests": lambda t: t.produce_requests,
    "failedproducerequests": lambda t: t.failed_produce,
    "totalfetchrequests": lambda t: t.fetch_requests,
    "failedfetchrequests": lambda t: t.failed_fetch,
    "remotefetchrequests": lambda t: t.remote_fetches,
    "remotefetchbytes": lambda t: t.remote_bytes_out,
    "remotefetcherrors": lambda t: t.remote_fetch_errors,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The parts of a broker that are asked. Without an object store the last four are None."""

    clock: Clock
    requests: RequestTraffic
    server: Server
    metadata: Metadata
    replicas: ReplicaManager
    groups: GroupCoordinator
    sessions: SessionFigures
    parked_fetches: Callable[[], int]
    log_dirs: LogDirs
    partitions_max: int
    tiering: TieringManager | None = None
    tiering_counters: MetricRegistry | None = None
    cold_reader: ColdReader | None = None
    cold_pace: ColdPace | None = None
    store_requests: Callable[[], tuple[Mapping[str, int], int] | None] = lambda: None
    remote_pools: Mapping[str, ResizablePool] = field(default_factory=dict)
    cleaner: CleanerFigures | None = None


class Collector:
    """Makes pages; keeps nothing between them."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def page(self, wanted: Format) -> Iterator[str]:
        """The page in pieces of at most SAMPLES_PER_TURN samples; the loop may run in between.

        An empty piece is work that has brought no line yet.
        """
        for row in _Page(self._sources).families():
            if row is None:
                yield ""
                continue
            lines = write_family(*row, wanted)
            while piece := "".join(islice(lines, SAMPLES_PER_TURN)):
                yield piece
        yield end_of(wanted)


class _Page:
    """One collection: what several families need is looked up once."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._left_out: Counter[str] = Counter()
        image = sources.metadata.image
        self._topics = sorted(image.topics)
        self._left_out["topics"] = max(0, len(self._topics) - TOPICS_MAX)
        self._topics = self._topics[:TOPICS_MAX]
        partitions = sorted(sources.replicas.partitions(), key=lambda p: p.topic_partition)
        self._left_out["partitions"] = max(0, len(partitions) - sources.partitions_max)
        self._all_partitions = partitions
        self._partitions = partitions[: sources.partitions_max]

    def families(self) -> Iterator[Step]:
        for rows in (
            self._requests,
            self._connections,
            self._traffic,
            self._tiers,
            self._logs,
            self._cleaner,
            self._replicas,
            self._groups,
            self._process,
        ):
            yield from rows()

    # --- requests and connections --------------------------------------------------------------

    def _requests(self) -> Iterator[Row]:
        requests = self._sources.requests
        requests.turn_if_due()
        prefix = "kafka_network_requestmetrics_"
        apis = [(api_name(key), traffic) for key, traffic in requests.apis.items()]
        yield row_of(
            f"{prefix}requests_total",
            (
                Sample(count, (name, str(version)))
                for name, traffic in apis
                for version, count in traffic.versions()
            ),
        )
        yield row_of(
            f"{prefix}errors_total",
            (
                Sample(count, (name, _error_name(code)))
                for name, traffic in apis
                for code, count in traffic.codes()
                if count
            ),
        )
        asked = [(name, traffic) for name, traffic in apis if sum(traffic.by_version)]
        for suffix, durations in (
            ("totaltimems", [(name, t.total) for name, t in asked]),
            ("requestqueuetimems", [(name, t.queue) for name, t in asked]),
            ("localtimems", [(name, t.local) for name, t in asked]),
            ("remotetimems", [(name, t.remote) for name, t in asked if t.remote.count]),
        ):
            yield row_of(prefix + suffix, _times(durations))
        yield row_of(
            f"{prefix}throttletimems",
            _sums((name, t.throttle_s * 1000, t.throttled) for name, t in asked),
        )
        yield row_of(
            f"{prefix}requestbytes",
            _sums((name, t.request_bytes, sum(t.by_version)) for name, t in asked),
        )
        yield row_of(
            f"{prefix}responsebytes",
            _sums((name, t.response_bytes, t.total.count) for name, t in asked),
        )
        yield single("strandline_requests_refused_total", requests.refused_total)

    def _connections(self) -> Iterator[Row]:
        found = self._sources.server.statistics()
        prefix = "kafka_server_socket_server_metrics_connection_"
        yield single(f"{prefix}count", found.connections)
        yield single(f"{prefix}creation_total", found.accepted_total)
        yield single("strandline_connections_refused_total", found.refused_total)
        yield row_of(
            "strandline_connections_closed_total",
            [
                Sample(found.closed_idle_total, ("idle",)),
                Sample(found.closed_stalled_total, ("stalled",)),
            ],
        )
        yield single("strandline_connections_muted", found.muted_connections)
        yield single("strandline_receive_buffer_bytes", found.receive_buffer_bytes)

    # --- topics and tiers ----------------------------------------------------------------------

    def _traffic(self) -> Iterator[Row]:
        replicas = self._sources.replicas
        by_topic = {
            name: traffic
            for name in self._topics
            if (traffic := replicas.traffic_of(name)) is not None
        }
        total = replicas.total_traffic()
        for name, read in _TRAFFIC.items():
            yield row_of(
                f"kafka_server_brokertopicmetrics_{name}_total",
                [
                    Sample(read(total), (ALL_TOPICS,)),
                    *(Sample(read(traffic), (topic,)) for topic, traffic in by_topic.items()),
                ],
            )

    def _tiers(self) -> Iterator[Step]:
        sources = self._sources
        if sources.tiering is None:
            return
        yield from self._tiering_counters()
        tiered: list[PartitionStatistics] = []
        for number, partition in enumerate(self._all_partitions):
            found = sources.tiering.statistics_of(partition.topic_partition)
            if found is not None:
                tiered.append(found)
            if number % LOOKED_UP_PER_TURN == 0:
                yield None
        prefix = "kafka_server_brokertopicmetrics_"
        for name, read in _TIER_GAUGES.items():
            yield row_of(prefix + name, self._by_topic(tiered, read))
        now_ms = sources.clock.now_ms()
        for name, failures in (
            ("copy", [(s.topic_partition, s.copy_failure) for s in tiered]),
            ("delete", [(s.topic_partition, s.delete_failure) for s in tiered]),
        ):
            failing = [(where, failure) for where, failure in failures if failure is not None]
            self._left_out[f"{name} failures"] = max(0, len(failing) - sources.partitions_max)
            yield row_of(
                f"strandline_remote_{name}_failing_seconds",
                [
                    Sample(
                        max(0, now_ms - failure.since_ms) / 1000,
                        (where.topic, str(where.partition), failure.kind),
                    )
                    for where, failure in failing[: sources.partitions_max]
                ],
            )
        yield single("strandline_remote_up", int(sources.tiering.store_is_up))
        quotas = (("copy", sources.tiering.copy_quota), ("fetch", sources.tiering.fetch_quota))
        yield row_of(
            "strandline_remote_throttled_seconds_total",
            [Sample(quota.statistics().throttled_s, (what,)) for what, quota in quotas],
        )
        yield from self._cold_reads()

    def _tiering_counters(self) -> Iterator[Row]:
        by_name: dict[str, dict[str, float]] = defaultdict(dict)
        for counter in self._sources.tiering_counters or ():
            by_name[counter.name][dict(counter.labels).get("topic", ALL_TOPICS)] = counter.value
        shown = set(self._topics)
        for ours, kafkas in _TIERING_COUNTERS.items():
            counts = by_name.get(ours, {})
            yield row_of(
                f"kafka_server_brokertopicmetrics_{kafkas}_total",
                [
                    Sample(sum(counts.values()), (ALL_TOPICS,)),
                    *(Sample(counts[topic], (topic,)) for topic in sorted(counts.keys() & shown)),
                ],
            )

    def _by_topic(
        self,
        tiered: Sequence[PartitionStatistics],
        read: Callable[[PartitionStatistics], int],
    ) -> Iterator[Sample]:
        sums: Counter[str] = Counter()
        for found in tiered:
            sums[found.topic_partition.topic] += read(found)
        yield Sample(sum(sums.values()), (ALL_TOPICS,))
        for topic in self._topics:
            if topic in sums:
                yield Sample(sums[topic], (topic,))

    def _pools(
        self, pools: Mapping[str, ResizablePool], *, running_downloads: int
    ) -> Iterator[Row]:
        if not pools:
            return
        reader = pools["reader"]
        yield single(
            "kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent",
            pools["copier"].idle_part,
        )
        yield single(
            "kafka_log_remote_remotestoragethreadpool_remotelogreadertaskqueuesize",
            reader.waiting_count,
        )
        yield single(
            "kafka_log_remote_remotestoragethreadpool_remotelogreaderavgidlepercent",
            # Most downloads have a thread in another process, and none in this pool.
            min(reader.idle_part, max(0.0, 1 - running_downloads / reader.size)),
        )
        yield row_of(
            "strandline_remote_pool_size",
            [Sample(pool.size, (name,)) for name, pool in pools.items()],
        )

    def _cold_reads(self) -> Iterator[Row]:
        sources = self._sources
        requests = sources.store_requests()
        if requests is not None:
            by_operation, failed = requests
            yield row_of(
                "strandline_remote_requests_total",
                [Sample(count, (name,)) for name, count in sorted(by_operation.items())],
            )
            yield single("strandline_remote_failed_attempts_total", failed)
        if sources.cold_reader is None:
            return
        found = sources.cold_reader.statistics()
        yield from self._pools(sources.remote_pools, running_downloads=found.running_downloads_now)
        yield single("strandline_cold_cache_bytes", found.live_bytes_now)
        yield single("strandline_cold_running_downloads", found.running_downloads_now)
        yield single("strandline_cold_index_bytes", found.index_bytes_now)
        yield single("strandline_cold_index_evictions_total", found.evicted_indexes)
        yield row_of(
            "strandline_cold_chunks_total",
            [
                Sample(found.memory_hits, ("memory",)),
                Sample(found.joined_downloads, ("underway",)),
                Sample(found.disk_hits, ("disk",)),
                Sample(found.downloads, ("store",)),
            ],
        )
        yield single("strandline_cold_downloaded_bytes_total", found.downloaded_bytes)
        yield row_of(
            "strandline_cold_failures_total",
            [
                Sample(found.failed_downloads, ("failed",)),
                Sample(found.corrupt_chunks, ("corrupt",)),
            ],
        )
        if sources.cold_pace is not None:
            pace = sources.cold_pace.statistics(sources.clock.monotonic_s())
            yield single("strandline_cold_limit_bytes_per_second", pace.limit_bytes_per_s)
            yield single("strandline_cold_lateness_seconds_max", pace.lateness_s_max)
            yield single("strandline_cold_held_answers", pace.waiting_answers)
            yield single("strandline_cold_held_seconds_total", pace.held_s_total)
            yield single("strandline_cold_limit_cuts_total", pace.cuts_total)

    # --- partitions ----------------------------------------------------------------------------

    def _logs(self) -> Iterator[Row]:
        partitions = self._partitions
        for name, read in _LOG_GAUGES.items():
            yield row_of(f"kafka_log_log_{name}", (Sample(read(p), _place(p)) for p in partitions))
        yield row_of(
            "strandline_log_tier_bytes",
            (
                Sample(size_bytes, (*_place(p), tier))
                for p in partitions
                for tier, size_bytes in (
                    ("local", p.log.local.size_bytes),
                    ("remote", p.log.tier_sizes.remote_bytes if p.log.is_tiered else 0),
                )
            ),
        )

    def _cleaner(self) -> Iterator[Row]:
        figures = self._sources.cleaner
        if figures is None:
            return
        age_ms = max(0, self._sources.clock.now_ms() - figures.last_look_ms)
        prefix = "kafka_log_logcleanermanager_"
        yield single(f"{prefix}max_dirty_percent", int(100 * figures.dirty_ratio_max))
        yield single(f"{prefix}time_since_last_run_ms", age_ms)
        yield single(f"{prefix}uncleanable_partitions_count", figures.uncleanable_partitions)
        yield single(f"{prefix}uncleanable_bytes", figures.uncleanable_bytes)
        prefix = "kafka_log_logcleaner_"
        yield single(f"{prefix}max_compaction_delay_secs", figures.delay_ms_max / 1000)
        yield single(f"{prefix}max_buffer_utilization_percent", int(100 * figures.key_share))
        yield single(f"{prefix}max_clean_time_secs", figures.clean_s)
        yield single("strandline_cleaner_cleanings_total", figures.cleanings_total)
        yield single("strandline_cleaner_read_bytes_total", figures.read_bytes_total)
        yield single("strandline_cleaner_written_bytes_total", figures.written_bytes_total)

    def _replicas(self) -> Iterator[Row]:
        sources = self._sources
        image = sources.metadata.image
        placed = sum(topic.partition_count for topic in image.topics.values())
        served = len(self._all_partitions)
        short = sum(p.log.local.config.min_insync_replicas > 1 for p in self._all_partitions)
        offline = max(0, placed - served)
        prefix = "kafka_server_replicamanager_"
        yield single(f"{prefix}partitioncount", served)
        yield single(f"{prefix}leadercount", served)
        # One replica each, and it is in sync or offline.
        yield single(f"{prefix}underreplicatedpartitions", 0)
        yield single(f"{prefix}underminisrpartitioncount", short)
        yield single(f"{prefix}offlinereplicacount", offline)
        prefix = "kafka_controller_kafkacontroller_"
        yield single(f"{prefix}activecontrollercount", 1)
        yield single(f"{prefix}offlinepartitionscount", offline)
        yield single(f"{prefix}globaltopiccount", len(image.topics))
        yield single(f"{prefix}globalpartitioncount", placed)
        yield single("kafka_server_kafkaserver_brokerstate", BROKER_RUNNING)
        yield row_of(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            [
                Sample(sources.parked_fetches(), ("Fetch",)),
                Sample(sources.groups.statistics().parked_requests, ("Rebalance",)),
            ],
        )
        prefix = "kafka_server_fetchsessioncache_"
        yield single(f"{prefix}numincrementalfetchsessions", sources.sessions.session_count)
        yield single(
            f"{prefix}numincrementalfetchpartitionscached", sources.sessions.partition_count
        )
        yield single(
            f"{prefix}incrementalfetchsessionevictions_total", sources.sessions.evictions_total
        )
        yield single("strandline_metadata_version", image.version)
        yield row_of("strandline_log_directory_free_bytes", _free_space(sources.log_dirs))

    def _groups(self) -> Iterator[Step]:
        return group_rows(
            self._sources.groups,
            self._sources.replicas,
            shown_max=self._sources.partitions_max,
            left_out=self._left_out,
        )

    # --- the process ---------------------------------------------------------------------------

    def _process(self) -> Iterator[Row]:
        for name, value in process_figures().items():
            yield single(name, value)
        yield row_of(
            "python_gc_collections_total",
            [
                Sample(count, (str(generation),))
                for generation, count in enumerate(collections_by_generation())
            ],
        )
        yield row_of("strandline_build_info", [Sample(1, (release(),))])
        yield row_of(
            "strandline_metrics_left_out",
            [Sample(count, (what,)) for what, count in sorted(self._left_out.items())],
        )


_TIER_GAUGES: Mapping[str, Callable[[PartitionStatistics], int]] = {
    "remotecopylagbytes": lambda s: s.copy_lag_bytes,
    "remotecopylagsegments": lambda s: s.copy_lag_segments,
    "remotedeletelagbytes": lambda s: s.deleting_bytes,
    "remotedeletelagsegments": lambda s: s.deleting_segments,
    "remotelogsizebytes": lambda s: s.remote_bytes,
    "remotelogmetadatacount": lambda s: s.remote_segments,
}
_LOG_GAUGES: Mapping[str, Callable[[Partition], int]] = {
    "size": lambda p: p.log.local.size_bytes,
    "numlogsegments": lambda p: len(p.log.local.segments),
    "logstartoffset": lambda p: p.log.log_start_offset,
    "logendoffset": lambda p: p.log.end_offset,
}


def _place(partition: Partition) -> tuple[str, str]:
    where: TopicPartition = partition.topic_partition
    return where.topic, str(where.partition)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _times(rows: Iterable[tuple[str, Durations]]) -> Iterator[Sample]:
    for name, durations in rows:
        for quantile in QUANTILES:
            yield Sample(
                round(durations.quantile_s(quantile) * 1000, 6), (name,), quantile=quantile
            )
        yield Sample(durations.sum_s * 1000, (name,), "_sum")
        yield Sample(durations.count, (name,), "_count")


def _sums(rows: Iterable[tuple[str, float, int]]) -> Iterator[Sample]:
    for name, total, count in rows:
        yield Sample(total, (name,), "_sum")
        yield Sample(count, (name,), "_count")


def _free_space(log_dirs: LogDirs) -> Iterator[Sample]:
    for directory in log_dirs.directories:
        try:
            found = os.statvfs(directory.path)
        except OSError:
            continue  # Offline; its partitions are counted as such.
        yield Sample(found.f_bavail * found.f_frsize, (str(directory.path),))

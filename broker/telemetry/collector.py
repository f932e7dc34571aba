"""Reads the broker's state into metric samples, family by family.

All values are read from the state itself when a page is requested, so no value can be stale.
Counters are plain integers of their owners.

The rows of the remote tier are in `tier_rows.py`, those of every process in `common_rows.py`, those
of a controller in `controller_rows.py`; this module has the others.

The number of series is bounded: APIs, versions and error codes are tables of ours; partitions and
committed offsets are shown up to `partitions_max` each, topics up to TOPICS_MAX, in the order of
their names, and `strandline_metrics_left_out` counts those left out. Totals include all of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.consumer.consumer_group import ConsumerGroup
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.transactions.transaction import TransactionState
from strandline.broker.telemetry.access_rows import access_rows
from strandline.broker.telemetry.common_rows import connection_rows, process_rows, request_rows
from strandline.broker.telemetry.exposition import (
    LabelTexts,
    PageFormat,
    Sample,
    end_of,
    write_family,
)
from strandline.broker.telemetry.families import (
    ADDED_UP_PER_STEP,
    ALL_TOPICS,
    LOOKED_UP_PER_STEP,
    Row,
    Step,
    row_of,
    single,
)
from strandline.broker.telemetry.in_sync_rows import InSyncFigures
from strandline.broker.telemetry.sources import Sources
from strandline.broker.telemetry.tier_rows import tier_rows
from strandline.storage.local.log_dirs.log_dirs import LogDirs

TOPICS_MAX = 2000
# Samples of a piece: a page must not delay clients, and its sender checks the time between two
# pieces.
SAMPLES_PER_PIECE = 50

BROKER_RUNNING = 3

# No transactional id is ever seen in state Dead.
_SHOWN_STATES = tuple(state for state in TransactionState if state is not TransactionState.DEAD)

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
    "replicationbytesin": lambda t: t.replication_bytes_in,
    "replicationbytesout": lambda t: t.replication_bytes_out,
}


def metrics_page(sources: Sources, wanted: PageFormat) -> Iterator[str]:
    """The page in pieces of at most SAMPLES_PER_PIECE samples; the loop may run in between.

    An empty piece is a step of work without output. No piece takes a millisecond, however many
    partitions and topics there are.
    """
    return written(_Page(sources).families(), wanted)


def written(rows: Iterable[Step], wanted: PageFormat, *, ends: bool = True) -> Iterator[str]:
    """Writes families as `metrics_page`; with `ends` they are the whole page."""
    texts: LabelTexts = {}
    for row in rows:
        if row is None:
            yield ""
            continue
        lines = write_family(*row, wanted, texts)
        while piece := "".join(islice(lines, SAMPLES_PER_PIECE)):
            yield piece
    if ends:
        yield end_of(wanted)


class _Page:
    """One collection: values that several families need are looked up once."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        topics = sorted(sources.metadata.image.topics)
        self._topics = topics[:TOPICS_MAX]
        self._left_out = Counter({"topics": max(0, len(topics) - TOPICS_MAX)})
        self._all_partitions: list[Partition] = []
        # The partitions shown, each with its labels: the same texts in every family.
        self._placed: list[tuple[Partition, tuple[str, str]]] = []

    def _look_up(self) -> Iterator[Step]:
        """Finds the partitions, in the order of topic names and partition numbers."""
        replicas, shown_max = self._sources.replicas, self._sources.partitions_max
        for topic in sorted(replicas.topic_names()):
            members = replicas.partitions_of(topic)
            partitions = [members[number] for number in sorted(members)]
            self._all_partitions += partitions
            self._placed += [
                (partition, (topic, str(partition.topic_partition.partition)))
                for partition in partitions[: shown_max - len(self._placed)]
            ]
            yield None
        self._left_out["partitions"] = len(self._all_partitions) - len(self._placed)

    def families(self) -> Iterator[Step]:
        sources, left_out = self._sources, self._left_out
        yield from self._look_up()
        yield from request_rows(sources.requests)
        yield from connection_rows(sources.server, sources.failed_logins())
        yield from access_rows(sources)
        yield from self._traffic()
        yield from tier_rows(sources, self._all_partitions, topics=self._topics, left_out=left_out)
        yield from self._logs()
        yield from self._cleaner()
        yield from self._replicas()
        yield from _group_rows(sources, left_out)
        yield from self._transactions()
        yield from process_rows(left_out)

    # --- topics and partitions -----------------------------------------------------------------

    def _traffic(self) -> Iterator[Row]:
        replicas = self._sources.replicas
        by_topic = {
            name: traffic
            for name in self._topics
            if (traffic := replicas.traffic_of(name)) is not None
        }
        all_traffic = replicas.all_traffic()
        for name, read in _TRAFFIC.items():
            yield row_of(
                f"kafka_server_brokertopicmetrics_{name}_total",
                [
                    Sample(sum(map(read, all_traffic)), (ALL_TOPICS,)),
                    *(Sample(read(traffic), (topic,)) for topic, traffic in by_topic.items()),
                ],
            )

    def _logs(self) -> Iterator[Row]:
        placed = self._placed
        for name, read in _LOG_GAUGES.items():
            yield row_of(f"kafka_log_log_{name}", (Sample(read(p), place) for p, place in placed))
        for name, read in _RETENTION_GAUGES.items():
            yield row_of(
                f"kafka_log_remote_remotelogmanager_{name}",
                (Sample(read(p), place) for p, place in placed if p.log.is_tiered),
            )
        yield row_of(
            "strandline_log_tier_bytes",
            (
                Sample(size_bytes, (*place, tier))
                for p, place in placed
                for tier, size_bytes in (
                    ("local", p.log.local.size_bytes),
                    ("remote", p.log.remote_bytes if p.log.is_tiered else 0),
                )
            ),
        )

    def _cleaner(self) -> Iterator[Row]:
        figures = self._sources.cleaner
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

    def _replicas(self) -> Iterator[Step]:
        sources = self._sources
        failed = led = 0
        in_sync = InSyncFigures()
        for number, partition in enumerate(self._all_partitions):
            # A partition stays in the tables while its folder is offline.
            failed += partition.is_offline
            led += partition.is_leader and not partition.is_offline
            if partition.leading is not None:
                in_sync.add(partition.leading)
            elif partition.is_leader and not partition.is_offline:
                in_sync.add_single_replica()
            if number % ADDED_UP_PER_STEP == 0:
                yield None
        image = sources.metadata.image
        placed = sum(topic.partition_count for topic in image.topics.values())
        served = len(self._all_partitions) - failed
        # Not all of the image that are not served: it has a new topic before its folders are made.
        offline = failed + sources.replicas.unserved_count
        prefix = "kafka_server_replicamanager_"
        yield single(f"{prefix}partitioncount", served)
        yield single(f"{prefix}leadercount", led)
        yield from in_sync.rows()
        for side, byte_rate in sources.throttled_rates.items():
            yield single(f"kafka_server_{side}_byte_rate", round(byte_rate(), 1))
        yield single(f"{prefix}offlinereplicacount", offline)
        if sources.followed is None:
            prefix = "kafka_controller_kafkacontroller_"
            yield single(f"{prefix}activecontrollercount", 1)
            yield single(f"{prefix}offlinepartitionscount", offline)
            yield single(f"{prefix}globaltopiccount", len(image.topics))
            yield single(f"{prefix}globalpartitioncount", placed)
        else:
            prefix = "kafka_server_broker_metadata_metrics_"
            yield single(f"{prefix}last_applied_record_offset", sources.followed())
        yield single("kafka_server_kafkaserver_brokerstate", BROKER_RUNNING)
        purgatories = {
            "Fetch": sources.parked_fetches(),
            "Rebalance": sources.groups.statistics().parked_requests,
        }
        if sources.archive is not None:
            purgatories["RemoteFetch"] = sources.requests.remote_fetches.waiting
            purgatories["RemoteListOffsets"] = sources.requests.remote_lookups.waiting
        yield row_of(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            [Sample(waiting, (what,)) for what, waiting in purgatories.items()],
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
        yield row_of("strandline_log_directory_free_bytes", free_space(sources.log_dirs))

    def _transactions(self) -> Iterator[Step]:
        sources = self._sources
        found = sources.transactions.statistics()
        yield row_of(
            "strandline_transactional_ids",
            [Sample(found.ids_by_state.get(state, 0), (state.title,)) for state in _SHOWN_STATES],
        )
        oldest_ms, now_ms = found.oldest_open_ms, sources.clock.now_ms()
        yield single(
            "strandline_transactions_oldest_open_seconds",
            0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000,
        )
        yield row_of(
            "strandline_transactions_ended_total",
            [Sample(count, (str(outcome),)) for outcome, count in found.ended_total.items()],
        )
        prefix = "kafka_server_replicamanager_"
        yield single(f"{prefix}partitionswithlatetransactionscount", sources.late_transactions())
        producer_ids = 0
        for number, partition in enumerate(self._all_partitions):
            producer_ids += len(partition.log.local.producers.entries)
            if number % ADDED_UP_PER_STEP == 0:
                yield None
        yield single(f"{prefix}produceridcount", producer_ids)
        yield single(
            "kafka_server_addpartitionstotxnmanager_verificationfailure_total",
            found.refused_partitions_total,
        )
        prefix = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
        yield single(f"{prefix}unknowndestinationqueuesize", found.waiting_markers)
        yield single(f"{prefix}logappendretryqueuesize", found.waiting_ends)


_LOG_GAUGES: Mapping[str, Callable[[Partition], int]] = {
    "size": lambda p: p.log.local.size_bytes,
    "numlogsegments": lambda p: len(p.log.local.segments),
    "logstartoffset": lambda p: p.log.log_start_offset,
    "logendoffset": lambda p: p.log.end_offset,
    "retentionsizeinpercent": lambda p: (
        0 if p.log.is_tiered else _percent(p.log.local.size_bytes, p.log.config.retention_bytes)
    ),
}
# For tiered logs (KIP-1257).
_RETENTION_GAUGES: Mapping[str, Callable[[Partition], int]] = {
    "retentionsizeinpercent": lambda p: (
        _percent(p.log.tier_sizes.total_bytes, p.log.config.retention_bytes)
        if p.log.config.retention_bytes > 0
        else 0
    ),
    "localretentionsizeinpercent": lambda p: _percent(
        p.log.local.size_bytes, p.log.config.effective_local_retention_bytes
    ),
}


def _percent(size_bytes: int, limit_bytes: int) -> int:
    """Returns the used percentage of the limit; 0 without a limit."""
    return 100 * size_bytes // limit_bytes if limit_bytes > 0 else 0


def free_space(log_dirs: LogDirs) -> Iterator[Sample]:
    """Yields the space left under each log folder that is there."""
    for directory in log_dirs.directories:
        try:
            found = os.statvfs(directory.path)
        except OSError:
            continue  # Offline; its partitions are counted as such.
        yield Sample(found.f_bavail * found.f_frsize, (str(directory.path),))


# --- groups -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    place: tuple[str, str, str]
    committed: int
    lag: int | None


def _group_rows(sources: Sources, left_out: Counter[str]) -> Iterator[Step]:
    """Yields the families of groups; counts rows above `partitions_max` in `left_out`."""
    groups, shown_max = sources.groups, sources.partitions_max
    found = groups.statistics()
    prefix = "kafka_coordinator_group_groupmetadatamanager_"
    yield row_of(
        f"{prefix}numgroups",
        [Sample(count, (state.value,)) for state, count in found.groups_by_state.items()],
    )
    yield single(f"{prefix}numoffsets", found.offset_count)
    try:
        known = sorted(groups.groups(), key=lambda group: group.group_id)
    except CoordinatorFault:
        return  # Groups are still loading; the loaded ones would be half of them.
    left_out["groups"] = max(0, len(known) - shown_max)
    shown = known[:shown_max]
    yield row_of(
        "kafka_consumergroup_members",
        (Sample(group.member_count, (group.group_id,)) for group in shown),
    )
    offsets: list[_Committed] = []
    for number, offset in enumerate(_committed(sources, shown, left_out)):
        offsets.append(offset)
        if number % LOOKED_UP_PER_STEP == 0:
            yield None
    yield row_of(
        "kafka_consumergroup_current_offset",
        (Sample(offset.committed, offset.place) for offset in offsets),
    )
    yield row_of(
        "kafka_consumergroup_lag",
        (Sample(o.lag, o.place) for o in offsets if o.lag is not None),
    )


def _committed(
    sources: Sources, groups: Sequence[Group | ConsumerGroup], left_out: Counter[str]
) -> Iterator[_Committed]:
    left = sources.partitions_max
    for group in groups:
        try:
            offsets = sources.groups.offsets_of(group.group_id)
        except CoordinatorFault:
            continue
        for topic, partition, committed in offsets or ():
            if left <= 0:
                left_out["offsets"] += 1
                continue
            left -= 1
            served = sources.replicas.partition(topic, partition)
            yield _Committed(
                place=(group.group_id, topic, str(partition)),
                committed=committed.offset,
                lag=None if served is None else max(0, served.high_watermark - committed.offset),
            )

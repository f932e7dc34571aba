"""Metrics of the remote tier: archive lag, failures and cold reads.

Without an object store there are none of these families.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.telemetry.exposition import Sample
from strandline.broker.telemetry.exposure_rows import ExposureSums
from strandline.broker.telemetry.families import (
    ADDED_UP_PER_STEP,
    ALL_TOPICS,
    LOOKED_UP_PER_STEP,
    Row,
    Step,
    row_of,
    single,
)
from strandline.broker.telemetry.sources import ArchiveSources, Sources
from strandline.storage.concurrency.resizable_pool import Pool
from strandline.storage.model import TopicPartition
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.lifecycle import SegmentState
from strandline.storage.tiering.policy.retry import FailureInfo

if TYPE_CHECKING:
    from strandline.storage.tiering.log.statistics import (
        HoldingTransaction,
        PartitionStatistics,
        TopicCounters,
    )
    from strandline.storage.tiering.manager.manager import TieringManager
    from strandline.storage.tiering.policy.store_health import StoreHealth

# The text of an error that a label shows; the log has all of it.
REASON_LENGTH_MAX = 300

_TIERING_COUNTERS: Mapping[str, Callable[[TopicCounters], int]] = {
    "remotecopybytes": lambda c: c.copied_bytes,
    "remotecopyrequests": lambda c: c.copied_segments,
    "remotecopyerrors": lambda c: c.copy_errors,
    "remotedeleterequests": lambda c: c.deleted_segments,
    "remotedeleteerrors": lambda c: c.delete_errors,
}
_TIER_GAUGES: Mapping[str, Callable[[PartitionStatistics], int]] = {
    "remotecopylagbytes": lambda s: s.copy_lag_bytes,
    "remotecopylagsegments": lambda s: s.copy_lag_segments,
    "remotedeletelagbytes": lambda s: s.deleting_bytes,
    "remotedeletelagsegments": lambda s: s.deleting_segments,
    "remotelogsizebytes": lambda s: s.remote_bytes,
    "remotelogmetadatacount": lambda s: s.remote_segments,
}


def tier_rows(
    sources: Sources,
    partitions: Sequence[Partition],
    *,
    topics: Sequence[str],
    left_out: Counter[str],
) -> Iterator[Step]:
    """Yields the families of the remote tier for these topics; counts others in `left_out`.

    Sums are over all `partitions`.
    """
    archive = sources.archive
    if archive is None:
        return
    yield from _tiering_counters(archive.tiering, topics)
    sums, exposed = _Sums(), ExposureSums()
    for number, partition in enumerate(partitions):
        statistics = archive.tiering.statistics_of(partition.topic_partition)
        if statistics is not None:
            sums.add(statistics)
            exposed.add_tiered(partition.topic_partition.topic, statistics.exposed)
        else:
            exposed.add_untiered(partition)
        if number % LOOKED_UP_PER_STEP == 0:
            yield None
    prefix = "kafka_server_brokertopicmetrics_"
    for name in _TIER_GAUGES:
        yield row_of(prefix + name, sums.by_topic(name, topics))
    yield row_of("strandline_remote_copy_waiting_segments", sums.waiting(topics))
    exposed.add_state(archive.state_exposures())
    yield from exposed.rows(topics)
    now_s = sources.clock.monotonic_s()
    for name, failing in (("copy", sums.failing_copies), ("delete", sums.failing_deletes)):
        left_out[f"{name} failures"] = max(0, len(failing) - sources.partitions_max)
        yield row_of(
            f"strandline_remote_{name}_failing_seconds",
            [
                Sample(
                    round(now_s - failure.since_s, 3),
                    (where.topic, str(where.partition), failure.kind),
                )
                for where, failure in failing[: sources.partitions_max]
            ],
        )
    upkeep = sorted(
        ((state.activity, state.subject, state.failure.kind), now_s - state.failure.since_s)
        for state in archive.failing()
        if state.failure is not None
    )
    left_out["upkeep failures"] = max(0, len(upkeep) - sources.partitions_max)
    yield row_of(
        "strandline_remote_upkeep_failing_seconds",
        [Sample(round(for_s, 3), labels) for labels, for_s in upkeep[: sources.partitions_max]],
    )
    left_out["open transactions"] = max(0, len(sums.held) - sources.partitions_max)
    yield row_of("strandline_remote_copy_held_seconds", _held(sources, sums.held))
    yield from _health(archive.tiering.health, now_s)
    conditions = archive.conditions()
    if conditions is not None:
        # Here the module of the remote tier is loaded already.
        yield single("strandline_remote_conditions_atomic", int(conditions.name == "AT_ONCE"))
    yield row_of(
        "strandline_remote_lacking", [Sample(1, (name,)) for name in sorted(archive.lacks())]
    )
    if archive.replica_lag_s is not None:
        yield single("strandline_replica_lag_seconds", round(archive.replica_lag_s(), 3))
    else:
        yield from _ownership(archive)
    verified = archive.verifications()
    if verified is not None:
        yield row_of(
            "strandline_archive_verified_timestamp_seconds",
            [Sample(run.finished_ms / 1000, (depth,)) for depth, run in verified.items()],
        )
        yield row_of(
            "strandline_archive_verify_findings",
            [Sample(run.finding_count, (depth,)) for depth, run in verified.items()],
        )
    quotas = (("copy", archive.tiering.copy_quota), ("fetch", archive.tiering.fetch_quota))
    yield row_of(
        "strandline_remote_throttled_seconds_total",
        [Sample(quota.throttled_s, (what,)) for what, quota in quotas],
    )
    for what, waits in (
        ("fetch", sources.requests.remote_fetches),
        ("listoffsets", sources.requests.remote_lookups),
    ):
        yield single(f"kafka_server_delayedremote{what}metrics_expires_total", waits.expired)
    yield from _store_requests(archive)
    yield from _cold_reads(archive)
    yield from _pace(sources)


def _ownership(archive: ArchiveSources) -> Iterator[Row]:
    """What a broker has in its archive; a read-only replica has none."""
    yield single("strandline_remote_archive_owned", int(archive.tiering.lead is Lead.CONFIRMED))
    yield single("strandline_metadata_mirror_lag", archive.mirror_lag())
    yield row_of(
        "strandline_remote_deleted_objects_total",
        [Sample(count, (what,)) for what, count in archive.deleted_counts().items()],
    )


def _health(health: StoreHealth, now_s: float) -> Iterator[Row]:
    yield single("strandline_remote_up", int(health.is_up))
    yield row_of(
        "strandline_remote_last_answer_seconds",
        [Sample(round(now_s - at_s, 3), (what,)) for what, at_s in health.last_answers_s.items()],
    )
    for name, failure in (
        ("strandline_remote_down_seconds", health.outage),
        ("strandline_remote_writes_refused_seconds", health.write_refusal),
    ):
        failures = [] if failure is None else [failure]
        yield row_of(
            name,
            [
                Sample(round(now_s - one.since_s, 3), (one.kind, one.reason[:REASON_LENGTH_MAX]))
                for one in failures
            ],
        )


def _held(
    sources: Sources, held: Sequence[tuple[TopicPartition, HoldingTransaction]]
) -> Sequence[Sample]:
    """The open transactions by producer, and by transactional id where a coordinator has them."""
    coordinated = (held and sources.transactions.not_ended()) or {}
    samples = []
    for where, one in held[: sources.partitions_max]:
        known = coordinated.get(one.producer_id)
        name = known.transactional_id if known and where in known.partitions else ""
        labels = (where.topic, str(where.partition), name[:REASON_LENGTH_MAX])
        age_s = sources.open_transaction_s(where, one.start_offset)
        samples.append(
            Sample(round(age_s, 3), (*labels, str(one.producer_id), str(one.start_offset)))
        )
    return samples


class _Sums:
    """Sums over partitions, by topic; added partition by partition."""

    def __init__(self) -> None:
        # By gauge, then by topic.
        self._gauges: dict[str, Counter[str]] = {name: Counter() for name in _TIER_GAUGES}
        self._waiting: Counter[tuple[str, str]] = Counter()
        self.held: list[tuple[TopicPartition, HoldingTransaction]] = []
        self.failing_copies: list[tuple[TopicPartition, FailureInfo]] = []
        self.failing_deletes: list[tuple[TopicPartition, FailureInfo]] = []

    def add(self, found: PartitionStatistics) -> None:
        where = found.topic_partition
        for name, read in _TIER_GAUGES.items():
            self._gauges[name][where.topic] += read(found)
        for segment in found.pending:
            if segment.state is not SegmentState.ACTIVE:
                self._waiting[where.topic, segment.state.name.lower()] += 1
        if found.holding is not None:
            self.held.append((where, found.holding))
        if found.copy_failure is not None:
            self.failing_copies.append((where, found.copy_failure))
        if found.delete_failure is not None:
            self.failing_deletes.append((where, found.delete_failure))

    def by_topic(self, gauge: str, topics: Sequence[str]) -> Iterator[Sample]:
        """Yields the sum of all topics, then these topics."""
        sums = self._gauges[gauge]
        yield Sample(sums.total(), (ALL_TOPICS,))
        for topic in topics:
            if topic in sums:
                yield Sample(sums[topic], (topic,))

    def waiting(self, topics: Sequence[str]) -> Iterator[Sample]:
        """Yields closed segments that are not archived, by topic and reason."""
        shown = set(topics)
        return (
            Sample(count, where)
            for where, count in sorted(self._waiting.items())
            if where[0] in shown
        )


def _tiering_counters(tiering: TieringManager, topics: Sequence[str]) -> Iterator[Step]:
    total = replace(tiering.departed)
    # A copy: topics may come and go before the last one is summed.
    by_topic = dict(tiering.counters)
    for number, counters in enumerate(by_topic.values()):
        total.add(counters)
        if number % ADDED_UP_PER_STEP == 0:
            yield None
    shown = sorted(by_topic.keys() & set(topics))
    for name, read in _TIERING_COUNTERS.items():
        yield row_of(
            f"kafka_server_brokertopicmetrics_{name}_total",
            [
                Sample(read(total), (ALL_TOPICS,)),
                *(Sample(read(by_topic[topic]), (topic,)) for topic in shown),
            ],
        )


def _pools(pools: Mapping[str, Pool], *, running_downloads: int) -> Iterator[Row]:
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
        # A worker in another process runs most downloads, not a thread of this pool.
        min(reader.idle_part, max(0.0, 1 - running_downloads / reader.size)),
    )
    yield row_of(
        "strandline_remote_pool_size",
        [Sample(pool.size, (name,)) for name, pool in pools.items()],
    )


def _store_requests(archive: ArchiveSources) -> Iterator[Row]:
    requests = archive.store_requests()
    if requests is not None:
        by_operation, failed = requests
        yield row_of(
            "strandline_remote_requests_total",
            [Sample(count, (name,)) for name, count in sorted(by_operation.items())],
        )
        yield single("strandline_remote_failed_attempts_total", failed)


def _cold_reads(archive: ArchiveSources) -> Iterator[Row]:
    reads = archive.cold_reader.statistics()
    yield from _pools(archive.pools, running_downloads=reads.running_downloads_now)
    yield single("strandline_cold_cache_bytes", reads.live_bytes_now)
    yield single("strandline_cold_running_downloads", reads.running_downloads_now)
    yield single("strandline_cold_index_bytes", reads.index_bytes_now)
    yield single("strandline_cold_index_evictions_total", reads.evicted_indexes)
    yield row_of(
        "strandline_cold_chunks_total",
        [
            Sample(reads.memory_hits, ("memory",)),
            Sample(reads.joined_downloads, ("underway",)),
            Sample(reads.disk_hits, ("disk",)),
            Sample(reads.downloads, ("store",)),
        ],
    )
    yield single("strandline_cold_downloaded_bytes_total", reads.downloaded_bytes)
    yield row_of(
        "strandline_cold_failures_total",
        [
            Sample(reads.failed_downloads, ("failed",)),
            *(Sample(count, (reason.value,)) for reason, count in reads.unreadable.items()),
        ],
    )


def _pace(sources: Sources) -> Iterator[Row]:
    pace = sources.cold_pace.statistics(sources.clock.monotonic_s())
    yield single("strandline_cold_limit_bytes_per_second", pace.limit_bytes_per_s)
    yield single("strandline_cold_lateness_seconds_max", pace.lateness_s_max)
    yield single("strandline_cold_held_answers", pace.waiting_answers)
    yield single("strandline_cold_held_seconds_total", pace.held_s_total)
    yield single("strandline_cold_limit_cuts_total", pace.cuts_total)

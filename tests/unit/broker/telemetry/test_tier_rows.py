"""The remote tier of very many partitions is told in small pieces, whatever has to be added up."""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace

import pytest

from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.quotas.cold_pace import ColdPace, PaceConfig
from strandline.broker.telemetry.collector import SAMPLES_PER_PIECE
from strandline.broker.telemetry.exposition import LabelTexts, PageFormat, write_family
from strandline.broker.telemetry.families import Step
from strandline.broker.telemetry.requests import RequestTraffic
from strandline.broker.telemetry.tier_rows import tier_rows
from strandline.storage.concurrency.resizable_pool import ResizablePool
from strandline.storage.model import TopicPartition
from strandline.storage.remote.reader.cold_reader import ColdReader
from strandline.storage.tiering.log.exposure import Exposure
from strandline.storage.tiering.log.statistics import (
    HoldingTransaction,
    PartitionStatistics,
    PendingSegment,
    TopicCounters,
)
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.lifecycle import SegmentState
from strandline.storage.tiering.policy.retry import FailureInfo
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

TOPICS = [f"t{number:03d}" for number in range(100)]
PARTITIONS_PER_TOPIC = 40
HELD = HoldingTransaction(producer_id=77, epoch=1, start_offset=12)
# Its coordinator knows the transaction of one topic alone.
KNOWN = SimpleNamespace(transactional_id="app-1", partitions={TopicPartition(TOPICS[1], 5)})
EXPOSED = Exposure(record_count=9, size_bytes=7, age_s=6.0, late_s=1.5)
FAILURE = FailureInfo(kind="TierUnavailable", reason="away", attempts=1, since_s=0)
# Of Python's or C's functions, in one step: some hundred microseconds.
CALLS_PER_STEP_MAX = 2000


def statistics_of(where: TopicPartition) -> PartitionStatistics:
    """A segment that waits and one that is written; partition 3 of each topic fails."""
    pending = [
        PendingSegment(
            base_offset=10 * number,
            end_offset=10 * number + 10,
            size_bytes=7,
            state=state,
            reason="",
        )
        for number, state in enumerate([SegmentState.NEXT, SegmentState.ACTIVE])
    ]
    return PartitionStatistics(
        topic_partition=where,
        log_start_offset=0,
        local_start_offset=0,
        remote_end_offset=None,
        end_offset=20,
        local_bytes=14,
        remote_bytes=5,
        remote_segments=1,
        deleting_segments=0,
        deleting_bytes=0,
        pending=tuple(pending),
        copy_lag_bytes=7,
        copy_lag_segments=1,
        manifest_known=True,
        copy_failure=FAILURE if where.partition == 3 else None,
        delete_failure=None,
        holding=HELD if where.partition == 5 else None,
        exposed=None if where.partition == 3 else EXPOSED,
    )


@pytest.fixture
def steps() -> Callable[[], Iterator[Step]]:
    """The families of the remote tier, of a tiering that knows nothing but its figures."""
    clock = ManualClock()
    quota = SimpleNamespace(throttled_s=0.0)
    tiering = SimpleNamespace(
        statistics_of=statistics_of,
        counters={topic: TopicCounters(copied_bytes=2) for topic in TOPICS},
        departed=TopicCounters(),
        health=SimpleNamespace(
            is_up=True, outage=FAILURE, write_refusal=FAILURE, last_answers_s={"read": 0.0}
        ),
        lead=Lead.CONFIRMED,
        copy_quota=quota,
        fetch_quota=quota,
    )
    store, pool = MemoryStore(), ResizablePool(1, "reader")
    archive = SimpleNamespace(
        tiering=tiering,
        cold_reader=ColdReader(store, pool),
        pools={"reader": pool, "copier": pool},
        mirror_lag=lambda: 0,
        verifications=lambda: None,
        state_exposures=lambda: {OFFSETS_TOPIC: [EXPOSED, None, Exposure()]},
        failing=lambda: [SimpleNamespace(activity="purge", subject="orders", failure=FAILURE)],
        replica_lag_s=None,
        deleted_counts=dict,
        conditions=lambda: None,
        lacks=tuple,
        store_requests=lambda: None,
    )
    sources = SimpleNamespace(
        archive=archive,
        clock=clock,
        partitions_max=10,
        transactions=SimpleNamespace(not_ended=lambda: {HELD.producer_id: KNOWN}),
        open_transaction_s=lambda _partition, _first_offset: 45.0,
        requests=RequestTraffic(),
        cold_pace=ColdPace(PaceConfig),
    )
    partitions = [
        SimpleNamespace(topic_partition=TopicPartition(topic, number), topic_id=uuid.UUID(int=1))
        for topic in TOPICS
        for number in range(PARTITIONS_PER_TOPIC)
    ]
    return lambda: tier_rows(
        sources,  # type: ignore[arg-type]  # as much of it as is asked
        partitions,  # type: ignore[arg-type]
        topics=[*TOPICS, OFFSETS_TOPIC],
        left_out=Counter(),
    )


def pieces(steps: Iterator[Step]) -> Iterator[int]:
    """Lines written, step by step, as the collector makes its pieces."""
    texts: LabelTexts = {}
    for row in steps:
        if row is None:
            yield 0
            continue
        lines = write_family(*row, PageFormat.TEXT, texts)
        while count := sum(1 for _ in zip(range(SAMPLES_PER_PIECE), lines, strict=False)):
            yield count


def test_sums_over_all_partitions_are_not_made_in_one_go(
    steps: Callable[[], Iterator[Step]],
) -> None:
    calls, most = 0, 0

    def on_event(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    made = pieces(steps())
    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        for _ in made:
            most, calls = max(most, calls), 0
    finally:
        sys.setprofile(before)
    assert 0 < most < CALLS_PER_STEP_MAX


def test_sums_are_those_of_every_partition(steps: Callable[[], Iterator[Step]]) -> None:
    found = {
        (family.name, sample.labels): sample.value
        for row in steps()
        if row is not None
        for family, samples in [row]
        for sample in samples
    }
    prefix = "kafka_server_brokertopicmetrics_"
    count = len(TOPICS) * PARTITIONS_PER_TOPIC
    assert found[f"{prefix}remotecopylagbytes", ("",)] == 7 * count
    assert found[f"{prefix}remotelogsizebytes", ("t007",)] == 5 * PARTITIONS_PER_TOPIC
    assert found[f"{prefix}remotecopybytes_total", ("",)] == 2 * len(TOPICS)
    assert found[f"{prefix}remotecopybytes_total", ("t007",)] == 2
    waiting = {
        labels: value
        for (name, labels), value in found.items()
        if name == "strandline_remote_copy_waiting_segments"
    }
    assert waiting == {(topic, "next"): PARTITIONS_PER_TOPIC for topic in TOPICS}
    failing = [labels for name, labels in found if name == "strandline_remote_copy_failing_seconds"]
    assert failing == [(topic, "3", "TierUnavailable") for topic in TOPICS[:10]]
    held = {
        labels: value
        for (name, labels), value in found.items()
        if name == "strandline_remote_copy_held_seconds"
    }
    names = {TOPICS[1]: "app-1"}
    assert held == {(topic, "5", names.get(topic, ""), "77", "12"): 45.0 for topic in TOPICS[:10]}
    exposed = {
        (name.removeprefix("strandline_exposed_"), labels): value
        for (name, labels), value in found.items()
        if name.startswith("strandline_exposed_")
    }
    known = PARTITIONS_PER_TOPIC - 1
    assert exposed["records", ("", "true")] == 9 * (known * len(TOPICS) + 1)
    assert exposed["records", ("t007", "true")] == 9 * known
    assert exposed["bytes", (OFFSETS_TOPIC, "true")] == 7
    assert exposed["records", ("", "false")] == 0
    assert exposed["seconds", ("t007",)] == exposed["seconds", ("",)] == 6.0
    assert exposed["late_seconds", ("t007",)] == 1.5
    assert exposed["unknown_partitions", ()] == len(TOPICS) + 1
    # For each topic, one series of each family, and no more for its partitions.
    shown = len(TOPICS) + 1
    assert len(exposed) == 2 * (shown + 2) + 2 * (shown + 1) + 1


def test_what_fails_is_shown_with_its_labels(steps: Callable[[], Iterator[Step]]) -> None:
    texts: LabelTexts = {}
    lines = [
        line
        for row in steps()
        if row is not None
        for line in write_family(*row, PageFormat.TEXT, texts)
    ]
    page = "".join(lines)
    labels = 'activity="purge",subject="orders",error="TierUnavailable"'
    assert f"strandline_remote_upkeep_failing_seconds{{{labels}}} " in page
    assert 'strandline_remote_down_seconds{error="TierUnavailable",reason="away"} ' in page

"""A topic is changed in the middle of a copy: the bucket and what is read stay true."""

from __future__ import annotations

import pytest

from strandline.storage.tiering.audit.orphans import SAFE_REASONS
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST_TIERED,
    LogClient,
    end_of,
    make_batches,
)
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "changed"
COPY_DISABLE = "remote.log.copy.disable"
OFF_WITH_ITS_ARCHIVE = {
    "remote.storage.enable": "false",
    "remote.log.delete.on.disable": "true",
}
BATCHES = make_batches(size_bytes=7 * SEGMENT_BYTES // 2)
OTHERS = make_batches(size_bytes=5 * SEGMENT_BYTES // 2, seed=9)
SLOW_S = 1.0
# What may be altered while records go on being what they were sent as.
CHANGES: list[dict[str, str]] = [
    {"segment.bytes": str(2 * SEGMENT_BYTES), "index.interval.bytes": "100"},
    {"strandline.remote.storage.class": "STANDARD_IA", "strandline.remote.object.tags": "a=b"},
    {"strandline.remote.compression.type": "zstd"},
    {"local.retention.bytes": "0", "local.retention.ms": "0"},
    {"retention.bytes": str(100 * SEGMENT_BYTES), "remote.copy.lag.ms": "0"},
    {"strandline.remote.active.segment.upload.ms": "1000"},
    {"segment.ms": "200"},
]


@pytest.fixture
def slow(fault_proxy: FaultProxy) -> Rule:
    """The first uploads take so long that a change comes between."""
    return fault_proxy.add(
        Rule(action=Action.LATENCY, method="PUT", path=r"\.log", delay_s=SLOW_S, times=4)
    )


@pytest.fixture
def far(make_broker: MakeBroker, fault_proxy: FaultProxy) -> TieredBroker:
    """A broker behind the slow proxy."""
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    return broker


def check(broker: TieredBroker, archive: Archive, client: LogClient, batches: list[bytes]) -> None:
    """All of it is read, and the bucket has nothing else than what its manifest says."""
    broker.wait_until_archived(client)
    start = client.offset_at(EARLIEST)
    assert client.read(start, end_of(batches)) == [b for b in batches if end_of([b]) > start]
    archive.wait_until_tidy()
    assert archive.findings() == []
    # Nothing that went wrong was only made up for.
    assert broker.warnings("tiering does not succeed") == []


def test_whatever_is_altered_during_a_copy_loses_and_changes_no_record(
    far: TieredBroker, archive: Archive, slow: Rule
) -> None:
    with far.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        sent = list(BATCHES)
        eventually(lambda: slow.hit_count, timeout_s=WAIT_S)
        for number, change in enumerate(CHANGES):
            assert far.alter_topic(TOPIC, change) == 0
            more = make_batches(
                base_offset=end_of(sent), size_bytes=SEGMENT_BYTES // 2, seed=10 + number
            )
            sent += client.produce(more)
        check(far, archive, client, sent)
        far.wait_until_all_cold(client)
        assert client.read(0, end_of(sent)) == sent


def test_copying_that_is_turned_off_during_a_copy_goes_on_where_it_was(
    far: TieredBroker, archive: Archive, slow: Rule
) -> None:
    with far.client(TOPIC) as client:
        client.create_topic(TIERED)
        client.produce(BATCHES)
        hits = 0
        for _ in range(2):
            eventually(lambda hits=hits: slow.hit_count > hits, timeout_s=WAIT_S)
            assert far.alter_topic(TOPIC, {COPY_DISABLE: "true"}) == 0
            eventually(
                lambda: client.offset_at(LATEST_TIERED) + 1 == archive.end_offset(TOPIC),
                timeout_s=WAIT_S,
            )
            # Nothing begins while it is off.
            hits = slow.hit_count
            assert far.alter_topic(TOPIC, {COPY_DISABLE: "false"}) == 0
        far.wait_until_archived(client)
        assert client.read(0, end_of(BATCHES)) == BATCHES
        assert archive.findings() == []
        # One whose upload was under way in the store when it was given up may be an orphan.
        assert {orphan.reason for orphan in archive.orphans()} <= SAFE_REASONS
        assert client.offset_at(EARLIEST) == client.offset_at(EARLIEST_LOCAL) == 0


def test_tiering_that_is_turned_off_and_on_during_a_copy_begins_anew(
    far: TieredBroker, archive: Archive, slow: Rule
) -> None:
    with far.client(TOPIC) as client:
        client.create_topic(TIERED)
        client.produce(BATCHES)
        eventually(lambda: slow.hit_count, timeout_s=WAIT_S)
        for _ in range(3):
            assert far.alter_topic(TOPIC, OFF_WITH_ITS_ARCHIVE) == 0
            assert far.alter_topic(TOPIC, TIERED) == 0
        check(far, archive, client, BATCHES)
        assert archive.segments(TOPIC)[0].base_offset == 0


def test_a_topic_that_is_deleted_and_made_again_during_a_copy_has_nothing_of_the_first(
    far: TieredBroker, archive: Archive, slow: Rule
) -> None:
    with far.client(TOPIC) as client:
        for _ in range(3):
            client.create_topic({**TIERED, **FREE_LOCALLY})
            client.produce(BATCHES)
            eventually(lambda: slow.hit_count, timeout_s=WAIT_S)
            client.delete_topic()
        topic_id = client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(OTHERS)
        check(far, archive, client, OTHERS)
        far.wait_until_freed(client)
        assert client.read(0, end_of(OTHERS)) == OTHERS
    kept = archive.keys(TOPIC, topic_id)
    eventually(lambda: [*archive.store.list("topics/")][len(kept) :] == [], timeout_s=WAIT_S)
    assert archive.keys(TOPIC, topic_id) == kept

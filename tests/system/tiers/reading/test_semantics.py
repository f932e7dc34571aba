"""What Kafka 4.2 answers at the edges of tiered storage: ListOffsets, refusals, DeleteRecords.

Facts from UnifiedLog.fetchOffsetByTimestamp, LogConfig.validateTopicLogConfigValues (4.2) and
KIP-950, 1005, 1023. A compacted topic may be tiered here (decision 18); everything else is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from strandline.storage.records.batch.batch import read_header
from tests.support.broker import eventually
from tests.support.fault_proxy import FaultProxy
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
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

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.clients]

INVALID_CONFIG = 40
TIERS = (EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
BATCHES = make_batches(size_bytes=3 * SEGMENT_BYTES + SEGMENT_BYTES // 2)
END = end_of(BATCHES)
MORE = make_batches(base_offset=END, size_bytes=2 * SEGMENT_BYTES)
COPY_OFF = {
    **TIERED,
    "remote.log.copy.disable": "true",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
}


def tiers(client: LogClient) -> tuple[int, ...]:
    """The answers to -4, -5 and -6."""
    return tuple(client.offset_at(special) for special in TIERS)


def code_of(future: object) -> int:
    try:
        future.result(WAIT_S)  # type: ignore[attr-defined]
    except KafkaException as error:
        return int(error.args[0].code())
    return 0


def test_an_empty_tiered_log_has_nothing_above_and_everything_before_it(
    broker: TieredBroker,
) -> None:
    with broker.client("empty") as client:
        client.create_topic(TIERED)
        assert tiers(client) == (0, -1, 0)
        assert (client.offset_at(EARLIEST), client.offset_at(LATEST)) == (0, 0)


def test_a_log_that_is_not_tiered_has_no_upper_tier_and_one_that_becomes_it_gets_one(
    broker: TieredBroker,
) -> None:
    with broker.client("late") as client:
        client.create_topic({})
        assert tiers(client) == (0, -1, -1)
        client.produce(BATCHES)
        assert tiers(client) == (0, -1, -1)
        assert broker.alter_topic("late", dict(TIERED)) == 0
        pending = broker.wait_until_archived(client)
        # All of it is kept locally too: local.retention.* is -2, as much as altogether.
        assert tiers(client) == (0, pending - 1, pending)
        broker.kill()
        broker.start()
    with broker.client("late") as client:
        eventually(lambda: tiers(client) == (0, pending - 1, pending), timeout_s=WAIT_S)


def test_with_copying_off_nothing_is_pushed_up_or_freed_and_it_goes_on_where_it_was(
    broker: TieredBroker, archive: Archive
) -> None:
    with broker.client("paused") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        pending = broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        before = tiers(client)
        assert before == (pending, pending - 1, pending)
        assert broker.alter_topic("paused", dict(COPY_OFF)) == 0
        client.produce(MORE)
        files = len(broker.segment_files("paused"))
        assert files > 2
        uploads = archive.uploads()
        # Whatever would be copied, or freed by what was asked for before, would be by now.
        with broker.client("other") as other:
            other.create_topic({**TIERED, **FREE_LOCALLY})
            other.produce(BATCHES)
            broker.wait_until_archived(other)
            broker.wait_until_freed(other)
        assert tiers(client) == before
        assert len(broker.segment_files("paused")) == files
        assert set(uploads) == set(archive.uploads()) - set(archive.uploads(topic="other"))
        assert client.read(0, end_of(MORE)) == BATCHES + MORE
        assert (
            broker.alter_topic("paused", {**FREE_LOCALLY, "remote.log.copy.disable": "false"}) == 0
        )
        pending = broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        assert tiers(client) == (pending, pending - 1, pending)
        assert client.read(0, end_of(MORE)) == BATCHES + MORE


@pytest.mark.parametrize("leaves", ["a part of what waits", "nothing of what waits"])
def test_deleting_records_that_wait_to_be_copied_leaves_them_out_of_the_archive(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy, leaves: str
) -> None:
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    with broker.client("cut") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        archived = broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        fault_proxy.go_away()
        client.produce(MORE)
        files = [int(path.stem) for path in broker.segment_files("cut")]
        assert len(files) > 2
        # Inside the second segment that waits, or behind all there is.
        cut = files[1] + 5 if leaves.startswith("a part") else end_of(MORE)
        assert client.delete_records(cut) == cut
        assert client.offset_at(EARLIEST) == client.offset_at(EARLIEST_LOCAL) == cut
        assert client.offset_at(EARLIEST_PENDING_UPLOAD) == cut
        fault_proxy.come_back()
        pending = broker.wait_until_archived(client) if cut < files[-1] else cut
        manifest = broker.wait_until_deleted_below(client, archive)
        assert manifest.log_start_offset == cut
        assert archived < cut
        # What lies below the cut was not copied for nothing, but for the segment that it is in.
        bases = [entry.base_offset for entry in manifest.segments]
        assert all(base >= files[1] for base in bases)
        assert client.offset_at(EARLIEST_PENDING_UPLOAD) == max(pending, cut)
        kept = [batch for batch in BATCHES + MORE if read_header(batch).next_offset > cut]
        assert client.read(cut, end_of(MORE)) == kept
        assert client.fetch(cut - 1).error_code == 1
    assert archive.findings() == []


REFUSED: list[tuple[dict[str, str], dict[str, str | None]]] = [
    # As the topic is made, and what is then asked for.
    (TIERED, {"remote.storage.enable": "false"}),
    (TIERED, {"remote.storage.enable": None}),
    ({**TIERED, "remote.log.copy.disable": "true"}, {"remote.storage.enable": "false"}),
    (TIERED, {"remote.log.copy.disable": "true", "local.retention.ms": "1"}),
    (TIERED, {"remote.log.copy.disable": "true", "local.retention.bytes": "1"}),
    ({**TIERED, **FREE_LOCALLY}, {"remote.log.copy.disable": "true"}),
    ({**TIERED, "remote.log.copy.disable": "true"}, {"local.retention.ms": "5"}),
    (
        {**TIERED, "remote.log.copy.disable": "true"},
        {"retention.ms": "9", "local.retention.ms": "5"},
    ),
    (TIERED, {"retention.ms": "1000", "local.retention.ms": "1001"}),
    (TIERED, {"retention.ms": "1000", "local.retention.ms": "-1"}),
    (TIERED, {"retention.bytes": "1000", "local.retention.bytes": "1001"}),
    (TIERED, {"retention.bytes": "1000", "local.retention.bytes": "-1"}),
    # The other half of a pair was there before.
    ({**TIERED, "local.retention.ms": "500"}, {"retention.ms": "499"}),
    ({**TIERED, "local.retention.bytes": "500"}, {"retention.bytes": "499"}),
    # What contradicts itself may stand there until tiering is turned on.
    ({"retention.ms": "5", "local.retention.ms": "6"}, dict(TIERED)),
    (TIERED, {"local.retention.ms": "-3"}),
    (TIERED, {"remote.copy.lag.ms": "1001", "local.retention.ms": "1000"}),
    (TIERED, {"remote.copy.lag.bytes": "11", "local.retention.bytes": "10"}),
    (TIERED, {"remote.copy.lag.ms": "-2"}),
]
TAKEN: list[tuple[dict[str, str], dict[str, str | None]]] = [
    (TIERED, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}),
    ({**TIERED, "remote.log.delete.on.disable": "true"}, {"remote.storage.enable": "false"}),
    (
        {**TIERED, "remote.log.copy.disable": "true"},
        {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
    ),
    (TIERED, {"remote.log.delete.on.disable": "true"}),
    (TIERED, {"remote.log.copy.disable": "true"}),
    (TIERED, {"remote.log.copy.disable": "true", "retention.ms": "5", "local.retention.ms": "5"}),
    (TIERED, {"local.retention.ms": "-2", "local.retention.bytes": "-2", "retention.ms": "1"}),
    (TIERED, {"retention.ms": "-1", "local.retention.ms": "-1"}),
    (TIERED, {"retention.ms": "1000", "local.retention.ms": "1000"}),
    ({}, {"retention.ms": "5", "local.retention.ms": "6"}),
    ({}, {"retention.bytes": "5", "local.retention.bytes": "-1"}),
    ({}, {"remote.log.copy.disable": "true", "local.retention.ms": "1"}),
    ({}, {"remote.copy.lag.ms": "7", "retention.ms": "5"}),
    (TIERED, {"remote.copy.lag.ms": "-1", "local.retention.ms": "1000"}),
]


@pytest.fixture(scope="module")
def lasting(ministack: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredBroker]:
    """One broker for all the small questions."""
    from tests.conftest import make_bucket

    bucket = make_bucket(ministack.endpoint_url)  # type: ignore[attr-defined]
    with TieredBroker(tmp_path_factory.mktemp("lasting"), bucket) as running:
        yield running  # type: ignore[misc]


def name_of(number: int, kind: str) -> str:
    return f"{kind}-{number}"


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_contradicts_itself_is_refused_and_changes_nothing(
    lasting: TieredBroker, number: int
) -> None:
    before, asked = REFUSED[number]
    topic = name_of(number, "refused")
    admin = AdminClient({"bootstrap.servers": lasting.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, 1, 1, config=before)]).values()
    made.result(WAIT_S)
    assert lasting.alter_topic(topic, asked) == INVALID_CONFIG
    assert own(lasting, topic) == before
    # A topic that is made so is refused as well, where that is no change.
    whole = {**before, **{name: value for name, value in asked.items() if value is not None}}
    if whole != before and whole.get("remote.storage.enable") == "true":
        (made,) = admin.create_topics([NewTopic(f"{topic}-at-once", 1, 1, config=whole)]).values()
        assert code_of(made) == INVALID_CONFIG


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_what_kafka_takes_is_taken(lasting: TieredBroker, number: int) -> None:
    before, asked = TAKEN[number]
    topic = name_of(number, "taken")
    admin = AdminClient({"bootstrap.servers": lasting.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, 1, 1, config=before)]).values()
    made.result(WAIT_S)
    assert lasting.alter_topic(topic, asked) == 0
    assert own(lasting, topic) == {**before, **asked}


def own(broker: TieredBroker, topic: str) -> dict[str, str]:
    """What the topic says itself."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    dynamic_topic_config = 1
    return {
        name: str(entry.value)
        for name, entry in future.result(WAIT_S).items()
        if entry.source == dynamic_topic_config
    }

"""The levels of `transaction.version`: changed by administrators, kept, and in effect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.update_features import (
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    UpgradeType,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.records.batch.any_batch import iter_records, walk
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import create_topic, fetch, software
from tests.system.group_calls import committed
from tests.system.restarting import kill_and_start
from tests.system.transactions.committed import committed_values
from tests.system.transactions.wire_producer import WireProducer

pytestmark = pytest.mark.slow

BROKER_SETTINGS = {"transaction.state.log.num.partitions": "1"}
FEATURE = "transaction.version"
GROUP = "g"
NONE = ErrorCode.NONE


@pytest.fixture
def own(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """The broker, which has level 2 again after the test."""
    yield broker
    with WireClient(broker.port) as client:
        set_level(client, 2)


def set_level(
    client: WireClient,
    level: int,
    *,
    upgrade_type: UpgradeType = UpgradeType.UPGRADE,
    validate_only: bool = False,
) -> ErrorCode:
    update = FeatureUpdate(feature=FEATURE, max_version_level=level, upgrade_type=upgrade_type)
    request = UpdateFeaturesRequest(feature_updates=[update], validate_only=validate_only)
    return ErrorCode(client.ask(request, UpdateFeaturesResponse, 1).error_code)


def lower(client: WireClient, level: int) -> None:
    assert set_level(client, level, upgrade_type=UpgradeType.SAFE_DOWNGRADE) is NONE


def level_and_epoch(client: WireClient) -> tuple[int, int]:
    """The finalized level, 0 if none is; and the epoch of the features."""
    answer = client.ask(software(), ApiVersionsResponse, 4)
    supported = {one.name: one for one in answer.supported_features}
    assert (supported[FEATURE].min_version, supported[FEATURE].max_version) == (0, 2)
    levels = {one.name: one.max_version_level for one in answer.finalized_features}
    return levels.get(FEATURE, 0), answer.finalized_features_epoch


def value_versions(client: WireClient, start_offset: int) -> set[int]:
    """The versions of the values of __transaction_state from an offset on."""
    answer = fetch(client, TRANSACTION_TOPIC, start_offset)
    buffer = codec.join(answer.records)
    return {
        int.from_bytes(bytes(record.value or b"")[:2], "big")
        for batch in walk(buffer)
        for record in iter_records(buffer, batch.header, batch.position)
    }


def end_of_state(client: WireClient) -> int:
    return int(fetch(client, TRANSACTION_TOPIC, 0).high_watermark)


def test_a_level_is_raised_lowered_and_kept_over_a_restart(own: BrokerProcess) -> None:
    with WireClient(own.port) as client:
        assert level_and_epoch(client)[0] == 2
        lower(client, 1)
        level, epoch = level_and_epoch(client)
        assert level == 1
    kill_and_start(own)
    with WireClient(own.port) as client:
        assert level_and_epoch(client)[0] == 1
        lower(client, 0)
        assert level_and_epoch(client)[0] == 0
        assert set_level(client, 2) is NONE
        assert level_and_epoch(client)[0] == 2
        assert level_and_epoch(client)[1] > epoch


def test_a_level_is_lowered_on_purpose_only(own: BrokerProcess) -> None:
    refused = ErrorCode.INVALID_UPDATE_VERSION
    with WireClient(own.port) as client:
        assert set_level(client, 1) is refused
        assert set_level(client, 3) is refused
        assert set_level(client, 2, upgrade_type=UpgradeType.SAFE_DOWNGRADE) is NONE
        lower(client, 1)
        assert set_level(client, 2, upgrade_type=UpgradeType.UNSAFE_DOWNGRADE) is refused
        assert set_level(client, 2, validate_only=True) is NONE
        assert level_and_epoch(client)[0] == 1


def test_version_0_of_the_request_lowers_a_level_that_it_allows_to_lower(
    own: BrokerProcess,
) -> None:
    with WireClient(own.port) as client:
        for allows, code in ((False, ErrorCode.INVALID_UPDATE_VERSION), (True, NONE)):
            update = FeatureUpdate(feature=FEATURE, max_version_level=1, allow_downgrade=allows)
            request = UpdateFeaturesRequest(feature_updates=[update])
            assert client.ask(request, UpdateFeaturesResponse, 0).error_code == code
        assert level_and_epoch(client)[0] == 1


@pytest.mark.parametrize(("level", "value_version"), [(0, 0), (1, 1), (2, 1)])
def test_the_level_decides_on_epochs_and_on_the_format_of_the_log(
    own: BrokerProcess, level: int, value_version: int
) -> None:
    """A client takes the version of its requests from the level, as this one does."""
    topic = f"t{level}"
    with WireClient(own.port) as client:
        create_topic(client, topic, 1)
        lower(client, level)
        producer = WireProducer(client, topic, version=2 if level == 2 else 1)
        producer.begin()
        first_offset = end_of_state(client)
        epoch = producer.epoch
        producer.send(topic, b"a")
        assert producer.send_offset(GROUP, topic, 1) is NONE
        assert producer.commit() is NONE
        assert producer.epoch - epoch == (1 if level == 2 else 0)
        producer.send(topic, b"open")
        assert value_versions(client, first_offset) == {value_version}
    kill_and_start(own)
    with WireClient(own.port) as client:
        successor = WireProducer(client, topic, version=2 if level == 2 else 1)
        successor.begin()
        successor.send(topic, b"b")
        assert successor.commit() is NONE
        assert eventually(lambda: committed_values(client, topic) == [b"a", b"b"])
        assert committed(client, GROUP, topic) == 1


def test_the_partitions_of_one_request_join_with_one_record(own: BrokerProcess) -> None:
    topic = "several"
    with WireClient(own.port) as client:
        create_topic(client, topic, partitions=3)
        producer = WireProducer(client, "several", version=2)
        producer.begin()
        start = end_of_state(client)
        assert producer.write_together(topic, b"value", partitions=(0, 2)) == [NONE, NONE]
        assert end_of_state(client) == start + 1
        assert producer.commit() is NONE
        assert [committed_values(client, topic, partition=at) for at in range(3)] == [
            [b"value"],
            [],
            [b"value"],
        ]


@pytest.mark.parametrize("level", [0, 1])
def test_a_transaction_of_version_2_that_is_open_when_the_level_falls_ends_all_the_same(
    own: BrokerProcess, level: int
) -> None:
    topic = f"falls-to-{level}"
    with WireClient(own.port) as client:
        create_topic(client, topic, 1)
        producer = WireProducer(client, topic, version=2)
        producer.begin()
        producer.send(topic, b"a")
        lower(client, level)
    kill_and_start(own)
    with WireClient(own.port) as client:
        producer.client = client
        assert eventually(lambda: producer.commit() is NONE)
        assert committed_values(client, topic) == [b"a"]

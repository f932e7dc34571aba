"""Keys of brokers, altered while they run: in force at once, shown with their source, kept."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)

from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.describe_configs import (
    DescribeConfigsEntry,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from strandline.broker.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING, create_topic, software
from tests.system.config_calls import alter

pytestmark = pytest.mark.slow

INVALID_REQUEST = 42
DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 2, 3, 4, 5
SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE


BROKER_SETTINGS = {
    **KEEP_EVERYTHING,
    "max.connections": "900",
    "max.request.partition.size.limit": "3",
}


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    """Leaves the broker as it was started."""
    with WireClient(broker.port) as connected:
        yield connected
        for name in ("", "1"):
            entries = described(connected, name).values()
            altered = [
                e.name for e in entries if e.config_source in (DYNAMIC_BROKER, DYNAMIC_DEFAULT)
            ]
            alter(connected, name, *((key, DELETE, None) for key in altered))


def described(
    client: WireClient, name: str, *keys: str, kind: int = ConfigResourceType.BROKER
) -> dict[str, DescribeConfigsEntry]:
    (result,) = client.ask(
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=keys or None
                )
            ],
            include_synonyms=True,
        ),
        DescribeConfigsResponse,
        4,
    ).results
    assert result.error_code == 0, result
    return {entry.name: entry for entry in result.configs}


def test_a_default_for_all_brokers_reaches_topics_at_once_and_outlives_a_kill(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(tmp_path, settings=BROKER_SETTINGS).start()

    def shown(asked: WireClient) -> tuple[str | None, int]:
        entry = described(asked, "t", "segment.bytes", kind=ConfigResourceType.TOPIC)[
            "segment.bytes"
        ]
        return entry.value, entry.config_source

    with WireClient(broker.port) as client:
        create_topic(client, "t", 1)
        assert alter(client, "", ("log.segment.bytes", SET, "2097152")).error_code == 0
        assert shown(client) == ("2097152", DYNAMIC_DEFAULT)
        assert list(described(client, "")) == ["log.segment.bytes"]
    broker.kill()
    with broker, WireClient(broker.port) as again:
        assert shown(again) == ("2097152", DYNAMIC_DEFAULT)
        assert alter(again, "", ("log.segment.bytes", DELETE, None)).error_code == 0
        assert shown(again) == ("1073741824", DEFAULT)


def test_sources_and_synonyms_tell_the_whole_way(client: WireClient) -> None:
    assert alter(client, "", ("max.connections", SET, "800")).error_code == 0
    assert alter(client, "1", ("max.connections", SET, "700")).error_code == 0
    entry = described(client, "1", "max.connections")["max.connections"]
    assert (entry.value, entry.config_source, entry.read_only) == ("700", DYNAMIC_BROKER, False)
    assert [(s.value, s.source) for s in entry.synonyms] == [
        ("700", DYNAMIC_BROKER),
        ("800", DYNAMIC_DEFAULT),
        ("900", STATIC),
        ("2147483647", DEFAULT),
    ]
    assert described(client, "1", "node.id")["node.id"].read_only


def test_a_limit_of_connections_counts_from_the_next_one(
    broker: BrokerProcess, client: WireClient
) -> None:
    assert alter(client, "1", ("max.connections", SET, "1")).error_code == 0
    with WireClient(broker.port) as refused:
        assert refused.closed_by_broker()
    # Those who are there stay, and can take it back.
    assert alter(client, "1", ("max.connections", DELETE, None)).error_code == 0
    with WireClient(broker.port) as served:
        served.ask(software(), ApiVersionsResponse, 3)


def test_connections_from_one_address_are_limited_but_for_overrides(
    broker: BrokerProcess, client: WireClient
) -> None:
    limits = (
        ("max.connections.per.ip", SET, "2"),
        (
            "max.connections.per.ip.overrides",
            SET,
            "127.0.0.9:1",
        ),
    )
    assert alter(client, "", *limits).error_code == 0
    with WireClient(broker.port) as second, WireClient(broker.port) as third:
        second.ask(software(), ApiVersionsResponse, 3)
        assert third.closed_by_broker()

    def connect() -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", broker.port), timeout=60, source_address=("127.0.0.9", 0)
        )

    with connect() as one, connect() as two:
        assert two.recv(1) == b""
        one.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.recv(1)

    def serves_again() -> bool:
        with WireClient(broker.port) as again:
            try:
                again.ask(software(), ApiVersionsResponse, 3)
            except ConnectionError:
                return False
            return True

    # Who leaves makes room.
    assert eventually(serves_again)


@pytest.mark.parametrize(
    ("name", "operation", "complaint"),
    [
        ("1", ("node.id", SET, "2"), "Cannot update these configs dynamically: node.id"),
        ("", ("log.dirs", SET, "/tmp"), "Cannot update these configs dynamically"),
        ("1", ("max.connectons", SET, "2"), "did you mean"),
        ("1", ("max.connections", SET, "many"), "max.connections"),
        ("1", ("max.connections.per.ip.overrides", SET, "x:1"), "expected address:count"),
        ("1", ("log.retention.ms", SET, None), "Null value not supported"),
        ("2", ("max.connections", SET, "2"), "Unexpected broker id"),
        ("x", ("max.connections", SET, "2"), "must be an integer"),
    ],
)
def test_what_cannot_be_applied_is_refused_and_changes_nothing(
    client: WireClient, name: str, operation: tuple[str, int, str | None], complaint: str
) -> None:
    result = alter(client, name, operation)
    assert result.error_code == INVALID_REQUEST
    assert complaint in (result.error_message or ""), result.error_message
    assert described(client, "") == {}


def test_a_throttled_reassignment_sets_its_rates_and_takes_them_back(client: WireClient) -> None:
    """As kafka-reassign-partitions --throttle does, before and after."""
    rates = [f"{side}.replication.throttled.rate" for side in ("leader", "follower")]
    assert alter(client, "1", *((rate, SET, "1000000") for rate in rates)).error_code == 0
    assert {e.value for e in described(client, "1", *rates).values()} == {"1000000"}
    assert alter(client, "1", *((rate, DELETE, None) for rate in rates)).error_code == 0
    assert alter(client, "1", (rates[0], SET, "-1")).error_code == INVALID_REQUEST


def test_a_key_of_kafkas_that_means_nothing_here_is_refused_with_the_reason(
    client: WireClient,
) -> None:
    refused = alter(client, "1", ("num.io.threads", SET, "16"))
    assert refused.error_code == INVALID_REQUEST
    assert refused.error_message == (
        "num.io.threads has no effect here: one event loop serves all connections"
    )


@pytest.mark.parametrize("name", ["1", ""])
@pytest.mark.parametrize(
    "key",
    [
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.reader.threads",
    ],
)
def test_a_pool_of_threads_is_doubled_or_halved_in_one_step_and_no_more(
    client: WireClient, key: str, name: str
) -> None:
    (before,) = described(client, "1", key).values()
    assert before.value == "10"
    assert not before.read_only
    for size in ("21", "4", "0", "1001"):
        result = alter(client, name, (key, SET, size))
        assert result.error_code == INVALID_REQUEST, size
        assert key in (result.error_message or "")
    for size in ("20", "40", "20", "10", "5"):
        assert alter(client, name, (key, SET, size)).error_code == 0, size
        assert described(client, "1", key)[key].value == size
    # Back to the default of 10.
    assert alter(client, name, (key, DELETE, None)).error_code == 0


def test_the_cache_of_remote_indexes_is_altered(client: WireClient) -> None:
    key = "remote.log.index.file.cache.total.size.bytes"
    (before,) = described(client, "1", key).values()
    assert before.value == str(1 << 30)
    assert not before.read_only
    assert alter(client, "", (key, SET, "0")).error_code == INVALID_REQUEST
    assert alter(client, "", (key, SET, "1000")).error_code == 0
    assert described(client, "1", key)[key].value == "1000"


def test_what_is_only_validated_is_not_set(client: WireClient) -> None:
    result = alter(client, "", ("max.connections", SET, "1"), validate_only=True)
    assert result.error_code == 0
    assert described(client, "") == {}


def test_a_page_of_partitions_is_as_long_as_the_broker_lets_it_be(client: WireClient) -> None:
    """Kafka's DescribeTopicPartitionsRequestHandler: the lower of its limit and the client's."""
    create_topic(client, "paged", 5)

    def page(limit: int) -> DescribeTopicPartitionsResponse:
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsTopic(name="paged")], response_partition_limit=limit
        )
        return client.ask(request, DescribeTopicPartitionsResponse, 0)

    for limit, length in ((2000, 3), (2, 2)):
        answer = page(limit)
        assert len(answer.topics[0].partitions) == length
        assert answer.next_cursor is not None
        assert answer.next_cursor.partition_index == length


@pytest.mark.clients
def test_confluent_kafka_alters_brokers(broker: BrokerProcess, client: WireClient) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    change = ConfigEntry("log.retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[change])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
    entry = future.result(60)["log.retention.ms"]
    assert entry.value == "3600000"
    assert entry.source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
    assert not entry.is_read_only

"""Altering configurations: what is set, what is refused, and that running logs have it at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType as PythonResourceType
from kafka.admin import KafkaAdminClient

from strandline.broker.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from strandline.broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResult,
    IncrementalConfig,
)
from strandline.broker.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING, MakeTopic, append, batch, create_topic, produce

pytestmark = pytest.mark.slow

UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_CONFIG = 40
INVALID_REQUEST = 42

TOPIC = ConfigResourceType.TOPIC
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
THROTTLED = "leader.replication.throttled.replicas"
LONGEST = 32_767


def resource(
    name: str, *operations: tuple[str, int, str | None], kind: int = TOPIC
) -> IncrementalAlterConfigsResource:
    return IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        ],
    )


def alter(
    client: WireClient,
    *resources: IncrementalAlterConfigsResource,
    version: int = 1,
    validate_only: bool = False,
) -> list[IncrementalAlterConfigsResult]:
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
    return list(client.ask(request, IncrementalAlterConfigsResponse, version).responses)


def replace(
    client: WireClient,
    name: str,
    configs: Mapping[str, str | None],
    *,
    version: int = 2,
    kind: int = TOPIC,
    validate_only: bool = False,
) -> AlterConfigsResourceResponse:
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name=k, value=v) for k, v in configs.items()],
            )
        ],
        validate_only=validate_only,
    )
    (result,) = client.ask(request, AlterConfigsResponse, version).responses
    return result


def described(client: WireClient, topic: str) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=TOPIC, resource_name=topic)]
    )
    (result,) = client.ask(request, DescribeConfigsResponse, 1).results
    return result


def own(client: WireClient, topic: str) -> dict[str, str | None]:
    """The properties that are set on the topic itself."""
    return {e.name: e.value for e in described(client, topic).configs if e.config_source == 1}


# --- what is altered -------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_single_properties_are_set_and_deleted_and_the_others_stay(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(1, {"retention.ms": "1000", "segment.bytes": "2000000"})
    (result,) = alter(
        client,
        resource(topic, ("retention.ms", DELETE, None), ("flush.messages", SET, " 7 ")),
        version=version,
    )
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.resource_type, result.resource_name) == (TOPIC, topic)
    assert own(client, topic) == {"segment.bytes": "2000000", "flush.messages": "7"}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_older_api_replaces_all_properties(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(1, {"retention.ms": "1000", "segment.bytes": "2000000"})
    assert replace(client, topic, {"flush.ms": "9"}, version=version).error_code == 0
    assert own(client, topic) == {"flush.ms": "9"}
    assert replace(client, topic, {}, version=version).error_code == 0
    assert own(client, topic) == {}


def test_list_elements_are_appended_once_and_subtracted(client: WireClient, topic: str) -> None:
    for operation, value, expected in (
        (APPEND, "0:1", "0:1"),
        (APPEND, "1:1, 0:1,2:1", "0:1,1:1,2:1"),
        (SUBTRACT, "1:1,9:9", "0:1,2:1"),
        (SUBTRACT, "0:1,2:1", ""),
    ):
        (result,) = alter(client, resource(topic, (THROTTLED, operation, value)))
        assert result.error_code == 0, result
        assert own(client, topic) == {THROTTLED: expected}


def test_throttled_replicas_are_all_or_partitions_with_a_broker(
    client: WireClient, topic: str
) -> None:
    for value in ("*", "0:1 , 1:1", "0:1,,1:1", ""):
        assert alter(client, resource(topic, (THROTTLED, SET, value)))[0].error_code == 0
    for operation, value in ((SET, "zz"), (APPEND, "1"), (SET, "0:1.5"), (SET, "*,0:1")):
        (result,) = alter(client, resource(topic, (THROTTLED, operation, value)))
        assert result.error_code == INVALID_CONFIG, value
        assert THROTTLED in (result.error_message or "")
    assert own(client, topic) == {THROTTLED: ""}


def test_appending_to_an_inherited_list_begins_with_what_is_inherited(
    client: WireClient, topic: str
) -> None:
    (result,) = alter(client, resource(topic, ("cleanup.policy", APPEND, "delete")))
    assert result.error_code == 0
    assert own(client, topic) == {"cleanup.policy": "delete"}


def test_an_alteration_is_in_force_when_it_is_answered(client: WireClient, topic: str) -> None:
    large = batch(1, value=b"x" * 5000)
    assert produce(client, topic, large).error_code == 0
    alter(client, resource(topic, ("max.message.bytes", SET, "2000")))
    assert produce(client, topic, large).error_code == MESSAGE_TOO_LARGE
    alter(client, resource(topic, ("max.message.bytes", DELETE, None)))
    assert produce(client, topic, large).error_code == 0


def test_validating_changes_nothing_and_finds_the_same_faults(
    client: WireClient, topic: str
) -> None:
    good = resource(topic, ("retention.ms", SET, "5"))
    bad = resource(topic, ("retention.ms", SET, "soon"))
    assert alter(client, good, validate_only=True)[0].error_code == 0
    assert alter(client, bad, validate_only=True)[0].error_code == INVALID_CONFIG
    assert replace(client, topic, {"flush.ms": "5"}, validate_only=True).error_code == 0
    assert own(client, topic) == {}


def test_topic_properties_say_that_they_can_be_altered(client: WireClient, topic: str) -> None:
    assert not any(entry.read_only for entry in described(client, topic).configs)


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "code", "text"),
    [
        (("retention.ms", SET, "soon"), INVALID_CONFIG, "expected a whole number"),
        (("retention.ms", SET, "-2"), INVALID_CONFIG, "at least -1"),
        (("retention.mss", SET, "1"), INVALID_CONFIG, "retention.ms"),
        (("x" * LONGEST, SET, "1"), INVALID_CONFIG, "x"),
        (("cleanup.policy", APPEND, "compress"), INVALID_CONFIG, "compress"),
        (("remote.storage.enable", SET, "true"), INVALID_CONFIG, "disabled"),
        (("retention.ms", APPEND, "1"), INVALID_CONFIG, "not LIST"),
        (("no.such.list", SUBTRACT, "1"), INVALID_CONFIG, "unknown"),
        (("retention.ms", SET, None), INVALID_REQUEST, "Null"),
        ((THROTTLED, APPEND, None), INVALID_REQUEST, "Null"),
        (("retention.ms", 9, "1"), INVALID_REQUEST, "operation"),
    ],
)
def test_a_bad_alteration_is_refused_with_a_reason(
    client: WireClient, topic: str, operation: tuple[str, int, str | None], code: int, text: str
) -> None:
    (result,) = alter(client, resource(topic, ("flush.ms", SET, "1"), operation))
    assert result.error_code == code, result
    assert text in (result.error_message or "")
    assert own(client, topic) == {}, "the good half of a bad resource is not set either"


def test_one_bad_resource_does_not_hinder_the_good_ones(
    client: WireClient, make_topic: MakeTopic, topic_name: str
) -> None:
    good, bad, twice = make_topic(), make_topic(), make_topic()
    change = ("retention.ms", SET, "5")
    results = alter(
        client,
        resource(twice, change),
        resource(topic_name, change),
        resource(bad, change, change),
        resource(good, change),
        resource("", change),
        resource(twice, change),
    )
    assert [(r.resource_name, r.error_code) for r in results] == [
        (twice, INVALID_REQUEST),
        (topic_name, UNKNOWN_TOPIC_OR_PARTITION),
        (bad, INVALID_REQUEST),
        (good, 0),
        ("", INVALID_REQUEST),
    ]
    assert all(result.error_message for result in results if result.error_code)
    assert [own(client, name) for name in (good, bad, twice)] == [{"retention.ms": "5"}, {}, {}]


@pytest.mark.parametrize("kind", [ConfigResourceType.CLIENT_METRICS, 99, 0])
def test_only_topics_brokers_and_groups_can_be_altered(client: WireClient, kind: int) -> None:
    (result,) = alter(client, resource("1", ("log.retention.ms", SET, "5"), kind=kind))
    assert (result.error_code, result.resource_type) == (INVALID_REQUEST, kind)
    assert result.error_message
    assert ("read at the start" in result.error_message) == (kind == ConfigResourceType.BROKER)
    older = replace(client, "1", {"log.retention.ms": "5"}, kind=kind)
    assert (older.error_code, older.error_message) == (INVALID_REQUEST, result.error_message)


def test_a_list_cannot_grow_longer_than_a_string_of_the_protocol(
    client: WireClient, topic: str
) -> None:
    half = ",".join(f"{index}:1" for index in range(3000))
    assert LONGEST / 2 < len(half) < LONGEST
    other = half.replace(":1", ":2")
    assert alter(client, resource(topic, (THROTTLED, APPEND, half)))[0].error_code == 0
    (result,) = alter(client, resource(topic, (THROTTLED, APPEND, other)))
    assert result.error_code == INVALID_CONFIG
    assert own(client, topic) == {THROTTLED: half}


def test_a_flood_of_resources_closes_the_connection(broker: BrokerProcess) -> None:
    many = [resource(f"t{index}") for index in range(10_001)]
    with WireClient(broker.port) as client:
        client.send(IncrementalAlterConfigsRequest(resources=many), 1)
        assert client.closed_by_broker()


# --- tiering ---------------------------------------------------------------------------------


def test_turning_remote_storage_on_archives_what_is_there_and_off_needs_a_word_about_it(
    tmp_path: Path,
) -> None:
    settings = {
        **KEEP_EVERYTHING,
        "remote.log.storage.system.enable": "true",
        "remote.log.manager.task.interval.ms": "100",
        "strandline.remote.url": (tmp_path / "archive").as_uri(),
        "log.segment.bytes": str(1024 * 1024),
    }
    (tmp_path / "archive").mkdir()

    def archived() -> int:
        return len(list((tmp_path / "archive").glob("topics/*/0/*.log")))

    with BrokerProcess(tmp_path / "broker", settings=settings) as broker:
        with WireClient(broker.port) as client:
            create_topic(client, "t")
            append(client, "t", *[batch(1, value=b"x" * 400_000)] * 6)
            assert archived() == 0
            (on,) = alter(client, resource("t", ("remote.storage.enable", SET, "true")))
            assert on.error_code == 0, on
            eventually(lambda: archived() >= 2)
            # A segment that is closed from now on follows by itself.
            before = archived()
            append(client, "t", *[batch(1, value=b"x" * 400_000)] * 4)
            eventually(lambda: archived() > before)
            for off in (
                alter(client, resource("t", ("remote.storage.enable", DELETE, None)))[0],
                replace(client, "t", {"remote.storage.enable": "False"}),
            ):
                assert off.error_code == INVALID_CONFIG
                assert "remote.log.copy.disable" in (off.error_message or "")
            (early,) = alter(
                client,
                resource(
                    "t", ("remote.log.copy.disable", SET, "true"), ("local.retention.ms", SET, "1")
                ),
            )
            # What is not copied any more must not go before its time (KIP-950).
            assert early.error_code == INVALID_CONFIG
            (paused,) = alter(client, resource("t", ("remote.log.copy.disable", SET, "true")))
            assert paused.error_code == 0
        # A restart attaches it again and does not fall over what is archived already.
        assert broker.stop() == 0
        broker.start()
        with WireClient(broker.port) as client:
            assert own(client, "t") == {
                "remote.storage.enable": "true",
                "remote.log.copy.disable": "true",
            }
            before = archived()
            assert append(client, "t", *[batch(1, value=b"x" * 400_000)] * 4) == 10
            alter(client, resource("t", ("remote.log.copy.disable", DELETE, None)))
            eventually(lambda: archived() > before)
        assert "Traceback" not in broker.log_text()


# --- with other people's clients -------------------------------------------------------------


def test_confluent_kafka_alters_topics(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    changes = [
        ConfigEntry("retention.ms", "77", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry(THROTTLED, "0:1", incremental_operation=AlterConfigOpType.APPEND),
    ]
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    for future in admin.incremental_alter_configs([wanted]).values():
        assert future.result(60) is None
    assert own(client, topic) == {"retention.ms": "77", THROTTLED: "0:1"}
    (future,) = admin.alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, set_config={"flush.ms": "5"})]
    ).values()
    assert future.result(60) is None
    assert own(client, topic) == {"flush.ms": "5"}


@pytest.mark.parametrize("incremental", [True, False])
def test_kafka_python_alters_topics(
    broker: BrokerProcess, client: WireClient, topic: str, incremental: bool
) -> None:
    """It asks first which properties are not read-only, and refuses to send the others."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.alter_configs(
            [PythonResource(PythonResourceType.TOPIC, topic, {"retention.ms": "78"})],
            incremental=incremental,
        )
    finally:
        admin.close()
    assert own(client, topic) == {"retention.ms": "78"}


@pytest.mark.parametrize(
    ("version", "types", "expected"),
    [
        (0, [], set()),
        (1, [2], {2}),
        (1, [4], {4}),
        (1, [8], {8}),
        (1, [], {2, 4, 8}),
        (1, [16, 32], set()),
    ],
)
def test_what_has_a_configuration_is_listed_by_type(
    client: WireClient, make_topic: MakeTopic, version: int, types: list[int], expected: set[int]
) -> None:
    topic = make_topic(1)
    request = ListConfigResourcesRequest(resource_types=types)
    listed = client.ask(request, ListConfigResourcesResponse, version)
    assert listed.error_code == 0
    names = {(r.resource_type, r.resource_name) for r in listed.config_resources}
    assert {kind for kind, _ in names} == expected
    assert ((2, topic) in names) == (2 in expected)
    assert ((4, "1") in names) == (4 in expected)
    assert ((8, "1") in names) == (8 in expected)


def test_a_type_of_resource_that_nobody_knows_is_an_unsupported_version(
    client: WireClient,
) -> None:
    request = ListConfigResourcesRequest(resource_types=[2, 99])
    listed = client.ask(request, ListConfigResourcesResponse, 1)
    assert (listed.error_code, list(listed.config_resources)) == (35, [])

"""Properties of single groups: set, shown with where they come from, and in force for members."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from strandline.broker.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from strandline.broker.protocol.messages.describe_configs import (
    DescribeConfigsEntry,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
)
from strandline.broker.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import create_topic

pytestmark = [pytest.mark.slow, pytest.mark.clients]

GROUP = ConfigResourceType.GROUP
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
BROKER_SETTINGS = {
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "5000",
}
SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE


def alter(
    client: WireClient, group: str, *operations: tuple[str, ConfigOperation, str | None]
) -> tuple[int, str]:
    """Error code and message."""
    resource = IncrementalAlterConfigsResource(
        resource_type=GROUP,
        resource_name=group,
        configs=[
            IncrementalConfig(name=name, config_operation=operation, value=value)
            for name, operation, value in operations
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = client.ask(request, IncrementalAlterConfigsResponse, 1).responses
    return result.error_code, result.error_message or ""


def described(client: WireClient, group: str) -> dict[str, DescribeConfigsEntry]:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=GROUP, resource_name=group)],
        include_synonyms=True,
    )
    (result,) = client.ask(request, DescribeConfigsResponse, 4).results
    assert result.error_code == 0, result.error_message
    return {entry.name: entry for entry in result.configs}


def listed(client: WireClient) -> set[str]:
    answer = client.ask(
        ListConfigResourcesRequest(resource_types=[GROUP]), ListConfigResourcesResponse, 1
    )
    return {resource.resource_name for resource in answer.config_resources}


def beat(
    client: WireClient, group: str, topic: str, member: str, epoch: int
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=10_000 if epoch == 0 else -1,
        subscribed_topic_names=[topic] if epoch == 0 else None,
        topic_partitions=[] if epoch == 0 else None,
    )
    return client.ask(request, ConsumerGroupHeartbeatResponse, 1)


def test_a_group_shows_what_it_inherits_and_then_what_is_its_own(client: WireClient) -> None:
    before = described(client, "shown")
    assert before[HEARTBEAT].value == "5000"
    assert [(s.name, s.source) for s in before[HEARTBEAT].synonyms] == [
        (f"group.{HEARTBEAT}", 4),
        (f"group.{HEARTBEAT}", 5),
    ]
    assert (before[SESSION].value, before[SESSION].config_source) == ("45000", 5)
    assert "shown" not in listed(client)
    assert alter(client, "shown", (HEARTBEAT, SET, "700"), (SESSION, SET, "50000")) == (0, "")
    after = described(client, "shown")
    assert (after[HEARTBEAT].value, after[HEARTBEAT].config_source) == ("700", 8)
    assert [s.source for s in after[HEARTBEAT].synonyms] == [8, 4, 5]
    assert "shown" in listed(client)
    alter(client, "shown", (HEARTBEAT, DELETE, None), (SESSION, DELETE, None))
    assert described(client, "shown") == before
    assert "shown" not in listed(client)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (SESSION, "499", "expected 500 to 60000"),
        (SESSION, "60001", "expected 500 to 60000"),
        (SESSION, "5000", "must be greater than"),
        (HEARTBEAT, "99", "expected 100 to 15000"),
        (HEARTBEAT, "soon", HEARTBEAT),
        ("consumer.sesion.timeout.ms", "1", "Unknown group config name"),
        ("share.session.timeout.ms", "45000", "Unknown group config name"),
    ],
)
def test_what_the_bounds_of_the_broker_forbid_is_refused(
    client: WireClient, name: str, value: str, reason: str
) -> None:
    code, message = alter(client, "refused", (name, SET, value))
    assert code == ErrorCode.INVALID_CONFIG
    assert reason in message
    assert "refused" not in listed(client)


def test_there_are_no_properties_of_all_groups(client: WireClient) -> None:
    assert alter(client, "", (HEARTBEAT, SET, "700"))[0] == ErrorCode.INVALID_REQUEST


def test_members_are_told_at_once_and_are_out_after_the_time_of_their_group(
    client: WireClient,
) -> None:
    topic, member = f"t-{uuid.uuid4().hex}", uuid.uuid4().hex
    create_topic(client, topic)
    assert beat(client, "timed", topic, member, 0).heartbeat_interval_ms == 5000
    alter(client, "timed", (HEARTBEAT, SET, "200"), (SESSION, SET, "600"))
    assert beat(client, "timed", topic, member, 1).heartbeat_interval_ms == 200
    # That was the last sign of life: a member of any other group would be kept for 45 s.
    eventually(
        lambda: beat(client, "timed", topic, member, 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID,
        interval_s=1.0,
    )
    assert beat(client, "untimed", topic, member, 0).heartbeat_interval_ms == 5000


def test_the_older_api_replaces_and_all_is_kept_over_a_kill(
    broker: BrokerProcess, client: WireClient
) -> None:
    alter(client, "kept", (HEARTBEAT, SET, "300"))
    resource = AlterConfigsResource(
        resource_type=GROUP,
        resource_name="kept",
        configs=[AlterableConfig(name=SESSION, value="700")],
    )
    request = AlterConfigsRequest(resources=[resource])
    # The heartbeat goes back to 5,000 ms, which is too long for this session.
    (answer,) = client.ask(request, AlterConfigsResponse, 2).responses
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    alter(client, "kept", (SESSION, SET, "700"))
    broker.kill()
    broker.start()
    with WireClient(broker.port) as again:
        assert described(again, "kept")[SESSION].value == "700"
        assert described(again, "kept")[HEARTBEAT].value == "300"


def test_librdkafkas_admin_client_sets_and_sees_them(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry(SESSION, "46000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(
        ConfigResource.Type.GROUP, "by-librdkafka", incremental_configs=[entry]
    )
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(60)
    (found,) = admin.describe_configs([resource]).values()
    assert found.result(60)[SESSION].value == "46000"

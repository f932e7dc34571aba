"""Codes and fields in which answers once differed from Apache Kafka's 4.1, found side by side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.broker.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from strandline.broker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.describe_configs import (
    ConfigResourceType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from strandline.broker.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from strandline.broker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tests.integration.group_calls import GroupMember, new_group
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient

pytestmark = pytest.mark.slow

INVALID_TOPIC_EXCEPTION = 17
INCONSISTENT_GROUP_PROTOCOL = 23
INVALID_REQUEST = 42
# READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS, as bits.
ALL_OF_A_GROUP = 0b1101_0100_1000
NO_NAME_FOR_A_TOPIC = "two words"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("as-kafka"), settings=settings) as running:
        yield running


@pytest.fixture
def member(broker: BrokerProcess) -> Iterator[GroupMember]:
    """The first member of a new group, joined."""
    alone = GroupMember(broker.port, new_group())
    alone.join()
    yield alone
    alone.close()


def test_configurations_of_what_cannot_be_a_topic_are_refused_for_its_name(
    client: WireClient,
) -> None:
    for name in (NO_NAME_FOR_A_TOPIC, "", "x" * 250):
        wanted = DescribeConfigsResource(resource_type=ConfigResourceType.TOPIC, resource_name=name)
        described = client.ask(
            DescribeConfigsRequest(resources=[wanted]), DescribeConfigsResponse, 4
        )
        assert [r.error_code for r in described.results] == [INVALID_TOPIC_EXCEPTION]
    altered = client.ask(
        IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=ConfigResourceType.TOPIC,
                    resource_name=NO_NAME_FOR_A_TOPIC,
                    configs=[],
                )
            ]
        ),
        IncrementalAlterConfigsResponse,
        1,
    )
    assert [r.error_code for r in altered.responses] == [INVALID_TOPIC_EXCEPTION]
    replaced = client.ask(
        AlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=ConfigResourceType.TOPIC,
                    resource_name=NO_NAME_FOR_A_TOPIC,
                    configs=[],
                )
            ]
        ),
        AlterConfigsResponse,
        2,
    )
    assert [r.error_code for r in replaced.responses] == [INVALID_TOPIC_EXCEPTION]


def test_nobody_makes_a_topic_with_the_name_of_kafkas_metadata(client: WireClient) -> None:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="__cluster_metadata", num_partitions=1, replication_factor=1)]
    )
    (result,) = client.ask(request, CreateTopicsResponse, 7).topics
    assert result.error_code == INVALID_REQUEST


def test_everything_is_allowed_of_a_group_its_configuration_included(
    client: WireClient, member: GroupMember
) -> None:
    asked = DescribeGroupsRequest(groups=[member.group_id], include_authorized_operations=True)
    (described,) = client.ask(asked, DescribeGroupsResponse, 6).groups
    assert described.authorized_operations == ALL_OF_A_GROUP
    unknown = ConsumerGroupDescribeRequest(
        group_ids=[member.group_id], include_authorized_operations=True
    )
    (refused,) = client.ask(unknown, ConsumerGroupDescribeResponse, 1).groups
    assert refused.error_code


@pytest.mark.parametrize(
    ("protocol_type", "protocol_name"), [(None, "range"), ("consumer", None), (None, None)]
)
def test_a_sync_that_can_name_its_protocol_must(
    client: WireClient,
    member: GroupMember,
    protocol_type: str | None,
    protocol_name: str | None,
) -> None:
    request = SyncGroupRequest(
        group_id=member.group_id,
        generation_id=member.generation,
        member_id=member.member_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[],
    )
    refused = client.ask(request, SyncGroupResponse, 5)
    assert refused.error_code == INCONSISTENT_GROUP_PROTOCOL
    assert client.ask(request, SyncGroupResponse, 4).error_code == 0

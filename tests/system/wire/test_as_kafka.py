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
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from strandline.broker.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
)
from strandline.broker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.group_calls import GroupMember, new_group

pytestmark = pytest.mark.slow

INVALID_TOPIC_EXCEPTION = 17
INCONSISTENT_GROUP_PROTOCOL = 23
INVALID_REQUEST = 42
# READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS, as bits.
ALL_OF_A_GROUP = 0b1101_0100_1000
NO_NAME_FOR_A_TOPIC = "two words"
BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


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


# Told apart by how Java writes a value that it has read: of a number neither zeros nor signs.
WRITTEN_AND_READ = {
    "preallocate": ("TRUE", "true"),
    "retention.ms": ("+0070", "70"),
    "min.cleanable.dirty.ratio": ("1", "1.0"),
    "cleanup.policy": ("compact , delete", "compact,delete"),
    "compression.type": ("gzip", "gzip"),
}


def test_a_value_is_described_as_it_is_read_and_told_by_create_topics_as_it_was_written(
    client: WireClient,
) -> None:
    name = "as-it-is-read"
    configs = [
        CreatableTopicConfig(name=key, value=written)
        for key, (written, _) in WRITTEN_AND_READ.items()
    ]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    (created,) = client.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7).topics
    told = {config.name: config.value for config in created.configs or ()}
    asked = DescribeConfigsResource(
        resource_type=ConfigResourceType.TOPIC,
        resource_name=name,
        configuration_keys=list(WRITTEN_AND_READ),
    )
    (described,) = client.ask(
        DescribeConfigsRequest(resources=[asked], include_synonyms=True), DescribeConfigsResponse, 4
    ).results
    for key, (written, read) in WRITTEN_AND_READ.items():
        (row,) = (row for row in described.configs if row.name == key)
        assert (told[key], row.value, row.synonyms[0].value) == (written, read, read)


def test_a_value_that_is_null_is_refused_before_anything_else_is_looked_at(
    client: WireClient,
) -> None:
    operations = [
        IncrementalConfig(name="retention.ms", config_operation=ConfigOperation.APPEND, value="1"),
        IncrementalConfig(name="segment.ms", config_operation=ConfigOperation.SET, value=None),
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=ConfigResourceType.BROKER, resource_name="", configs=operations
    )
    (refused,) = client.ask(
        IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse, 1
    ).responses
    assert refused.error_code == INVALID_REQUEST

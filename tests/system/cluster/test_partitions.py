"""A controller decides on partitions with several replicas; brokers are requests alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from strandline.broker.cluster.metadata.image import PartitionImage, TopicImage
from strandline.broker.protocol.messages.alter_partition import (
    AlteredPartition,
    AlteredPartitionResult,
    AlteredTopic,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ReplicaInSync,
)
from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from strandline.broker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
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
from strandline.broker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
)
from strandline.broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.controller import CONTROLLER_ID, ControllerProcess, PretendedBroker, followed
from tests.support.wire import WireClient

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerProcess]:
    # Brokers here send heartbeats only when something is to happen.
    running = ControllerProcess(
        tmp_path_factory.mktemp("controller"), broker_session_timeout_ms="600000"
    )
    running.start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def brokers(controller: ControllerProcess) -> dict[int, PretendedBroker]:
    joined = {node: PretendedBroker(controller, node) for node in (1, 2, 3)}
    for broker in joined.values():
        broker.join()
    return joined


@pytest.fixture
def client(controller: ControllerProcess) -> Iterator[WireClient]:
    with WireClient(controller.port) as connected:
        yield connected


def make(client: WireClient, name: str, *partitions: Sequence[int], **properties: str) -> None:
    topic = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=nodes)
            for number, nodes in enumerate(partitions)
        ],
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=text)
            for key, text in properties.items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
    (made,) = client.ask(request, CreateTopicsResponse, 7).topics
    assert (made.error_code, made.error_message) == (0, None)


def topic_of(client: WireClient, name: str) -> TopicImage:
    return followed(client).topics[name]


def first(client: WireClient, name: str) -> PartitionImage:
    return topic_of(client, name).partitions[0]


def in_sync(
    brokers: dict[int, PretendedBroker],
    topic: TopicImage,
    *isr: int,
    version: int = 3,
    partition_epoch: int | None = None,
) -> AlteredPartitionResult:
    """Partition 0's leader says who is in sync."""
    partition = topic.partitions[0]
    epochs = [
        ReplicaInSync(broker_id=node, broker_epoch=brokers[node].epoch if node in brokers else 0)
        for node in isr
    ]
    leader = brokers[partition.leader]
    request = AlterPartitionRequest(
        broker_id=partition.leader,
        broker_epoch=leader.epoch,
        topics=[
            AlteredTopic(
                topic_id=topic.topic_id,
                partitions=[
                    AlteredPartition(
                        partition_index=0,
                        leader_epoch=partition.leader_epoch,
                        partition_epoch=(
                            partition.partition_epoch
                            if partition_epoch is None
                            else partition_epoch
                        ),
                        **({"new_isr_with_epochs": epochs} if version == 3 else {"new_isr": isr}),
                    )
                ],
            )
        ],
    )
    answer = leader.client.ask(request, AlterPartitionResponse, version)
    assert answer.error_code == 0
    ((result,),) = (one.partitions for one in answer.topics)
    return result


def reassign(client: WireClient, topic: str, replicas: Sequence[int] | None) -> int:
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[partition])]
    )
    answer = client.ask(request, AlterPartitionReassignmentsResponse, 1)
    ((result,),) = (one.partitions for one in answer.responses)
    return result.error_code


def test_a_topic_gets_as_many_replicas_as_there_are_brokers(
    client: WireClient, brokers: dict[int, PretendedBroker]
) -> None:
    codes = []
    for name, factor in (("three", 3), ("four", 4)):
        topic = CreatableTopic(
            name=name, num_partitions=3, replication_factor=factor, assignments=()
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        (made,) = client.ask(request, CreateTopicsResponse, 7).topics
        codes.append(made.error_code)
    assert codes == [0, ErrorCode.INVALID_REPLICATION_FACTOR]
    partitions = topic_of(client, "three").partitions
    assert {partition.leader for partition in partitions} == set(brokers)
    assert all(set(one.isr) == set(one.replicas) == set(brokers) for one in partitions)


@pytest.mark.parametrize("version", [2, 3])
def test_a_leader_says_who_is_in_sync(
    client: WireClient, brokers: dict[int, PretendedBroker], version: int
) -> None:
    name = f"in-sync-{version}"
    make(client, name, (1, 2, 3), min_insync_replicas="2")
    before = topic_of(client, name)
    result = in_sync(brokers, before, 1, version=version)
    assert (result.error_code, result.isr, result.leader_id) == (0, [1], 1)
    partition = first(client, name)
    assert (partition.isr, partition.eligible_leader_replicas) == ((1,), (2, 3))
    assert result.partition_epoch == partition.partition_epoch == 1
    stale = in_sync(brokers, before, 1, 2, version=version)
    assert stale.error_code == ErrorCode.INVALID_UPDATE_VERSION
    unknown = in_sync(brokers, topic_of(client, name), 1, 9, version=version)
    assert unknown.error_code == ErrorCode.INVALID_REQUEST


def test_an_earlier_process_of_a_broker_says_nothing(
    client: WireClient, brokers: dict[int, PretendedBroker]
) -> None:
    request = AlterPartitionRequest(broker_id=1, broker_epoch=brokers[1].epoch - 1, topics=[])
    answer = client.ask(request, AlterPartitionResponse, 3)
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_fenced_leader_is_followed_by_one_in_sync_and_leads_again_when_asked(
    client: WireClient, brokers: dict[int, PretendedBroker]
) -> None:
    make(client, "fenced", (1, 2))
    brokers[1].beat(fence=True)
    partition = first(client, "fenced")
    assert (partition.leader, partition.isr, partition.leader_epoch) == (2, (2,), 1)
    brokers[1].beat()
    request = ElectLeadersRequest(
        topic_partitions=[ElectLeadersTopic(topic="fenced", partitions=[0])]
    )

    def elected() -> int:
        answer = client.ask(request, ElectLeadersResponse, 2)
        ((result,),) = (one.partition_result for one in answer.replica_election_results)
        return result.error_code

    assert elected() == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert in_sync(brokers, topic_of(client, "fenced"), 2, 1).error_code == 0
    assert elected() == 0
    assert first(client, "fenced").leader == 1
    assert elected() == ErrorCode.ELECTION_NOT_NEEDED
    odd = client.ask(request.replaced(election_type=7), ElectLeadersResponse, 2)
    assert odd.error_code == ErrorCode.INVALID_REQUEST


def test_a_partition_moves_to_another_broker_when_that_is_in_sync(
    client: WireClient, brokers: dict[int, PretendedBroker]
) -> None:
    make(client, "moved", (1, 2))

    def ongoing() -> list[tuple[Sequence[int], Sequence[int], Sequence[int]]]:
        answer = client.ask(
            ListPartitionReassignmentsRequest(), ListPartitionReassignmentsResponse, 0
        )
        return [
            (one.replicas, one.adding_replicas, one.removing_replicas)
            for topic in answer.topics
            for one in topic.partitions
        ]

    assert reassign(client, "moved", (3, 2)) == 0
    assert ongoing() == [([3, 2, 1], [3], [1])]
    assert reassign(client, "moved", None) == 0
    assert (ongoing(), first(client, "moved").replicas) == ([], (2, 1))
    assert reassign(client, "moved", None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign(client, "moved", (3, 2)) == 0
    result = in_sync(brokers, topic_of(client, "moved"), 1, 2, 3)
    # The leader is none of the new replicas.
    assert result.error_code == ErrorCode.NEW_LEADER_ELECTED
    partition = first(client, "moved")
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 2), (2, 3), 3)
    assert ongoing() == []


def test_tools_read_properties_and_users_where_the_controller_listens(client: WireClient) -> None:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=ConfigResourceType.BROKER,
                resource_name=str(CONTROLLER_ID),
                configuration_keys=["broker.session.timeout.ms"],
            )
        ]
    )
    (found,) = client.ask(request, DescribeConfigsResponse, 4).results
    assert [(one.name, one.value) for one in found.configs] == [
        ("broker.session.timeout.ms", "600000")
    ]
    upsertion = ScramCredentialUpsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"p" * 32
    )
    altered = client.ask(
        AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]),
        AlterUserScramCredentialsResponse,
        0,
    )
    assert [one.error_code for one in altered.results] == [0]
    described = client.ask(
        DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse, 0
    )
    assert [one.user for one in described.results] == ["alice"]


def test_properties_of_each_broker_are_the_controllers_to_keep(
    client: WireClient, brokers: dict[int, PretendedBroker]
) -> None:
    rate = "leader.replication.throttled.rate"

    def altered(name: str, key: str = rate) -> int:
        resource = IncrementalAlterConfigsResource(
            resource_type=ConfigResourceType.BROKER,
            resource_name=name,
            configs=[IncrementalConfig(name=key, config_operation=0, value="1000")],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (result,) = client.ask(request, IncrementalAlterConfigsResponse, 1).responses
        return result.error_code

    assert [altered("2"), altered("77")] == [0, ErrorCode.BROKER_ID_NOT_REGISTERED]
    assert followed(client).broker_properties[2] == {rate: "1000"}
    # One value for leaders and the controller.
    assert altered("2", "min.insync.replicas") == ErrorCode.INVALID_CONFIG
    assert followed(client).broker_properties[None] == {"min.insync.replicas": "1"}


def test_nobody_stays_eligible_when_the_minimum_in_sync_changes(
    client: WireClient, brokers: dict[int, PretendedBroker]
) -> None:
    make(client, "lowered", (1, 2), min_insync_replicas="2")
    assert in_sync(brokers, topic_of(client, "lowered"), 1).error_code == 0
    assert first(client, "lowered").eligible_leader_replicas == (2,)
    resource = IncrementalAlterConfigsResource(
        resource_type=ConfigResourceType.TOPIC,
        resource_name="lowered",
        configs=[IncrementalConfig(name="min.insync.replicas", config_operation=0, value="1")],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = client.ask(request, IncrementalAlterConfigsResponse, 1).responses
    assert result.error_code == 0
    # The leader acknowledges alone from now on.
    assert first(client, "lowered").eligible_leader_replicas == ()

"""Each broker of a cluster tells the same, and whoever asks the wrong one hears who is right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
)
from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.broker.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from strandline.broker.protocol.messages.produce import ProduceResponse
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import eventually
from tests.support.wire import WireClient
from tests.system.calls import (
    LATEST,
    batch,
    fetch_request,
    fetch_topic,
    offset_at,
    produce,
    produce_request,
)
from tests.system.cluster.bounced import BouncedCluster, bounced_cluster

pytestmark = [pytest.mark.slow, pytest.mark.crash]

TOPIC = "told"
PARTITIONS = 3
# With current leaders and their addresses (KIP-951), by name and by topic id.
PRODUCE_VERSION, FETCH_VERSION = 12, 17
METADATA_VERSION = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BouncedCluster]:
    with bounced_cluster(tmp_path_factory.mktemp("told")) as running:
        running.create(TOPIC, partitions=PARTITIONS)
        yield running


def metadata_at(client: WireClient) -> MetadataResponse:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    return client.ask(request, MetadataResponse, METADATA_VERSION)


def partitions_at(client: WireClient) -> dict[int, MetadataResponsePartition]:
    (topic,) = metadata_at(client).topics
    return {one.partition_index: one for one in topic.partitions}


def all_told(client: WireClient) -> tuple[Any, ...]:
    """What one broker tells of the cluster, without what is its own."""
    metadata = metadata_at(client)
    described = client.ask(DescribeClusterRequest(), DescribeClusterResponse, 1)
    topics = client.ask(
        DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsTopic(name=TOPIC)]),
        DescribeTopicPartitionsResponse,
        0,
    )
    keys = [f"group-{number}" for number in range(20)]
    found = client.ask(
        FindCoordinatorRequest(key_type=0, coordinator_keys=keys), FindCoordinatorResponse, 4
    )
    return (
        metadata.brokers,
        metadata.cluster_id,
        metadata.topics,
        described.brokers,
        described.cluster_id,
        topics.topics,
        found.coordinators,
    )


def ensure_group_topic(cluster: BouncedCluster) -> None:
    cluster.create("__consumer_offsets", partitions=6)


def test_each_broker_tells_the_same_of_the_cluster(cluster: BouncedCluster) -> None:
    ensure_group_topic(cluster)
    with ExitStack() as stack:
        clients = [stack.enter_context(WireClient(one.port)) for one in cluster.brokers]
        first = all_told(clients[0])
        eventually(lambda: all(all_told(one) == first for one in clients))
        brokers, *_ = all_told(clients[0])
        assert [one.port for one in brokers] == [one.port for one in cluster.brokers]


def test_who_asks_another_broker_hears_of_the_leader_and_its_address(
    cluster: BouncedCluster,
) -> None:
    with ExitStack() as stack:
        clients = {
            number: stack.enter_context(WireClient(one.port))
            for number, one in enumerate(cluster.brokers, 1)
        }
        (topic,) = metadata_at(clients[1]).topics
        for partition in topic.partitions:
            for number, client in clients.items():
                produced = client.ask(
                    produce_request(TOPIC, batch(), partition=partition.partition_index),
                    ProduceResponse,
                    PRODUCE_VERSION,
                )
                fetched = client.ask(
                    fetch_request(fetch_topic(topic.topic_id, {partition.partition_index: 0})),
                    FetchResponse,
                    FETCH_VERSION,
                )
                for answer in (produced, fetched):
                    (found,) = answer.topics[0].partitions
                    if number == partition.leader_id:
                        assert found.error_code == ErrorCode.NONE
                        continue
                    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                    told = found.current_leader
                    assert told is not None
                    assert (told.leader_id, told.leader_epoch) == (
                        partition.leader_id,
                        partition.leader_epoch,
                    )
                    (node,) = answer.node_endpoints
                    port = cluster.brokers[partition.leader_id - 1].port
                    assert (node.node_id, node.port) == (partition.leader_id, port)
                code = offset_at(
                    client, TOPIC, LATEST, partition=partition.partition_index
                ).error_code
                is_leader = number == partition.leader_id
                assert code == (0 if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_another_leader_epoch_is_fenced_or_unknown(cluster: BouncedCluster) -> None:
    with WireClient(cluster.brokers[0].port) as client:
        led = next(one for one in partitions_at(client).values() if one.leader_id == 1)

        def code_under(epoch: int) -> int:
            request = fetch_request(
                fetch_topic(TOPIC, {led.partition_index: 0}, current_leader_epoch=epoch)
            )
            (found,) = client.ask(request, FetchResponse, 12).topics[0].partitions
            return int(found.error_code)

        assert code_under(led.leader_epoch) == ErrorCode.NONE
        assert code_under(led.leader_epoch + 1) == ErrorCode.UNKNOWN_LEADER_EPOCH
    # A restart is an election.
    cluster.bounce(cluster.brokers[0], is_clean=True)
    with WireClient(cluster.brokers[0].port) as client:
        eventually(lambda: partitions_at(client)[led.partition_index].leader_id == 1)
        now = partitions_at(client)[led.partition_index]
        assert now.leader_epoch > led.leader_epoch
        request = fetch_request(
            fetch_topic(TOPIC, {led.partition_index: 0}, current_leader_epoch=led.leader_epoch)
        )
        (found,) = client.ask(request, FetchResponse, 12).topics[0].partitions
        assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_of_a_broker_that_is_away_the_others_say_so_and_not_longer(
    cluster: BouncedCluster,
) -> None:
    gone = cluster.brokers[2]
    with WireClient(cluster.brokers[0].port) as client:
        before = partitions_at(client)
        own = [number for number, one in before.items() if list(one.replica_nodes) == [3]]
        assert own
        assert all(list(one.offline_replicas) == [] for one in before.values())
        assert gone.stop() == 0
        for number, one in partitions_at(client).items():
            is_gone = number in own
            assert one.leader_id == (-1 if is_gone else before[number].leader_id)
            assert list(one.offline_replicas) == ([3] if is_gone else [])
        assert [one.node_id for one in metadata_at(client).brokers] == [1, 2]
        answer = produce(client, TOPIC, batch(), partition=own[0])
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        gone.start()
        eventually(
            lambda: all(list(one.offline_replicas) == [] for one in partitions_at(client).values())
        )
        assert [one.node_id for one in metadata_at(client).brokers] == [1, 2, 3]
        leaders = [one.leader_id for one in partitions_at(client).values()]
        assert leaders == [one.leader_id for one in before.values()]

"""Metadata and its neighbours in every version: who is here, who leads what, with which configs."""

from __future__ import annotations

import struct
import uuid

import pytest

from strandline.broker.protocol.codec.codec import decode
from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.describe_configs import (
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from strandline.broker.protocol.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
)
from strandline.broker.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.schema import Request
from strandline.storage.model import ZERO_TOPIC_ID
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient, encode_request_header
from tests.system.calls import (
    MakeTopic,
    ask_to_create,
    assert_serves,
    create_topic,
    delete_topic,
    describe_topic,
    new_topic,
)

pytestmark = pytest.mark.slow

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
INVALID_REQUEST = 42
# A kind of coordinator.
TOPIC_DELETION_DISABLED = 73
UNKNOWN_TOPIC_ID = 100
MISMATCHED_ENDPOINT_TYPE = 114
UNSUPPORTED_ENDPOINT_TYPE = 115
INVALID_TOPIC_EXCEPTION = 17

METADATA_VERSIONS = range(14)
ZERO_ID = uuid.UUID(int=0)


def ask(
    client: WireClient, *names: str, version: int = 12, create: bool = False
) -> MetadataResponse:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
    )
    return client.ask(request, MetadataResponse, version)


# --- Metadata --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_metadata_describes_broker_and_topic_in_every_version(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(3)
    response = ask(client, topic, version=version)
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port) == (1, "127.0.0.1", broker.port)
    assert response.controller_id == (1 if version >= 1 else -1)
    assert (response.cluster_id is not None) == (version >= 2)
    assert response.error_code == 0
    (described,) = response.topics
    assert (described.name, described.error_code, described.is_internal) == (topic, 0, False)
    assert (described.topic_id != ZERO_ID) == (version >= 10)
    assert [
        (p.partition_index, p.leader_id, p.leader_epoch, list(p.replica_nodes), list(p.isr_nodes))
        for p in described.partitions
    ] == [(index, 1, 0 if version >= 7 else -1, [1], [1]) for index in range(3)]
    assert all(list(p.offline_replicas) == [] for p in described.partitions)


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_all_topics_are_an_empty_list_in_version_0_and_null_in_later_ones(
    client: WireClient, topic: str, version: int
) -> None:
    everything = MetadataRequest(topics=[] if version == 0 else None)
    names = {t.name for t in client.ask(everything, MetadataResponse, version).topics}
    assert topic in names
    if version > 0:
        nothing = client.ask(MetadataRequest(topics=[]), MetadataResponse, version)
        assert (list(nothing.topics), len(nothing.brokers)) == ([], 1)


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_topics_are_created_on_the_way_if_the_client_allows_it(
    client: WireClient, topic_name: str, version: int
) -> None:
    """Versions below 4 cannot decline."""
    if version >= 4:
        (declined,) = ask(client, topic_name, version=version).topics
        assert declined.error_code == UNKNOWN_TOPIC_OR_PARTITION
        assert describe_topic(client, topic_name).error_code == UNKNOWN_TOPIC_OR_PARTITION
    (created,) = ask(client, topic_name, version=version, create=True).topics
    assert (created.error_code, len(created.partitions)) == (0, 1)
    assert describe_topic(client, topic_name).error_code == 0


def test_an_impossible_name_is_not_created_on_the_way(client: WireClient, topic_name: str) -> None:
    bad = ("", ".", "a/b", "x" * 250, "x" * 32_767)
    response = ask(client, *bad, topic_name, create=True)
    assert [topic.error_code for topic in response.topics] == [INVALID_TOPIC] * 5 + [0]


def test_a_name_that_collides_is_not_created_on_the_way(
    client: WireClient, topic_name: str
) -> None:
    create_topic(client, f"{topic_name}.a")
    (answer,) = ask(client, f"{topic_name}_a", create=True).topics
    assert answer.error_code != 0
    assert describe_topic(client, f"{topic_name}_a").error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_named_twice_is_answered_once(client: WireClient, topic: str) -> None:
    assert [t.name for t in ask(client, topic, topic).topics] == [topic]


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_is_found_by_its_id(client: WireClient, topic: str, version: int) -> None:
    topic_id, unknown = describe_topic(client, topic).topic_id, uuid.uuid4()
    request = MetadataRequest(
        topics=[MetadataRequestTopic(topic_id=wanted) for wanted in (topic_id, unknown)]
    )
    found, missing = client.ask(request, MetadataResponse, version).topics
    assert (found.error_code, found.name) == (0, topic)
    assert (missing.error_code, missing.topic_id) == (UNKNOWN_TOPIC_ID, unknown)


@pytest.mark.parametrize("version", [10, 11])
def test_versions_before_12_carry_ids_and_cannot_be_asked_for_them(
    client: WireClient, topic: str, version: int
) -> None:
    """Kafka refuses both forms; a null name could not even be answered in these versions."""
    topic_id = describe_topic(client, topic).topic_id
    for wanted in (
        MetadataRequestTopic(topic_id=topic_id),
        MetadataRequestTopic(),
        MetadataRequestTopic(name=topic, topic_id=topic_id),
    ):
        response = client.ask(MetadataRequest(topics=[wanted]), MetadataResponse, version)
        assert [t.error_code for t in response.topics] == [INVALID_REQUEST]


def test_a_topic_has_another_id_after_it_was_deleted_and_created(
    client: WireClient, topic: str
) -> None:
    before = describe_topic(client, topic).topic_id
    assert describe_topic(client, topic).topic_id == before
    delete_topic(client, topic)
    assert describe_topic(client, topic).error_code == UNKNOWN_TOPIC_OR_PARTITION
    after = create_topic(client, topic)
    assert after not in (before, ZERO_ID)
    assert describe_topic(client, topic).topic_id == after


# --- a broker that creates and deletes nothing by itself -------------------------------------


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_with_auto_creation_off_nothing_is_created_on_the_way(
    strict_client: WireClient, topic_name: str, version: int
) -> None:
    for _ in range(2):
        (answer,) = ask(strict_client, topic_name, version=version, create=True).topics
        assert answer.error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_a_new_topic_has_num_partitions_partitions(
    strict_client: WireClient, topic_name: str
) -> None:
    (result,) = ask_to_create(strict_client, new_topic(topic_name, -1, replication_factor=-1))
    assert (result.error_code, result.num_partitions) == (0, 3)


def test_with_deletion_turned_off_nothing_is_deleted(
    strict_client: WireClient, topic_name: str
) -> None:
    """Versions before 3 do not know the code for it."""
    create_topic(strict_client, topic_name)
    for version in range(1, 7):
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=topic_name)],
            topic_names=[topic_name],
            timeout_ms=5000,
        )
        (result,) = strict_client.ask(request, DeleteTopicsResponse, version).responses
        assert result.error_code == (TOPIC_DELETION_DISABLED if version >= 3 else INVALID_REQUEST)
    assert describe_topic(strict_client, topic_name).error_code == 0


# --- DescribeCluster -------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_cluster_is_described_as_metadata_does(
    broker: BrokerProcess, client: WireClient, version: int
) -> None:
    response = client.ask(DescribeClusterRequest(), DescribeClusterResponse, version)
    assert (response.error_code, response.controller_id) == (0, 1)
    assert response.cluster_id == ask(client).cluster_id
    assert [(b.broker_id, b.host, b.port, b.is_fenced) for b in response.brokers] == [
        (1, "127.0.0.1", broker.port, False)
    ]


def test_there_is_no_controller_endpoint_to_describe(client: WireClient) -> None:
    request = DescribeClusterRequest(endpoint_type=2)
    response = client.ask(request, DescribeClusterResponse, 1)
    assert (response.error_code, list(response.brokers)) == (MISMATCHED_ENDPOINT_TYPE, [])
    request = DescribeClusterRequest(endpoint_type=7)
    response = client.ask(request, DescribeClusterResponse, 1)
    assert (response.error_code, list(response.brokers)) == (UNSUPPORTED_ENDPOINT_TYPE, [])


# --- DescribeQuorum --------------------------------------------------------------------------


def describe_quorum(client: WireClient, topic: str, version: int) -> DescribeQuorumResponse:
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopic(
                topic_name=topic, partitions=[DescribeQuorumRequestPartition(partition_index=0)]
            )
        ]
    )
    return client.ask(request, DescribeQuorumResponse, version)


@pytest.mark.parametrize("version", range(3))
def test_this_broker_alone_keeps_the_metadata(
    broker: BrokerProcess, client: WireClient, topic_name: str, version: int
) -> None:
    def described() -> DescribeQuorumPartition:
        response = describe_quorum(client, "__cluster_metadata", version)
        assert response.error_code == 0
        listener = QuorumListener(name="PLAINTEXT", host="127.0.0.1", port=broker.port)
        node = QuorumNode(node_id=1, listeners=[listener])
        assert list(response.nodes) == ([node] if version >= 2 else [])
        return response.topics[0].partitions[0]

    before = described()
    assert (before.error_code, before.leader_id, list(before.observers)) == (0, 1, [])
    (voter,) = before.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, before.high_watermark)
    assert (voter.last_caught_up_timestamp > 0) == (version >= 1)
    assert (voter.replica_directory_id != ZERO_TOPIC_ID) == (version >= 2)
    create_topic(client, topic_name)
    assert described().high_watermark > before.high_watermark


def test_no_other_topic_has_a_quorum(client: WireClient) -> None:
    (topic,) = describe_quorum(client, "__consumer_offsets", 2).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].leader_id) == (3, -1)


# --- FindCoordinator -------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_a_single_coordinator_is_answered_in_the_single_fields(
    broker: BrokerProcess, client: WireClient, version: int
) -> None:
    response = client.ask(FindCoordinatorRequest(key="group"), FindCoordinatorResponse, version)
    assert (response.error_code, response.node_id) == (0, 1)
    assert (response.host, response.port) == ("127.0.0.1", broker.port)
    assert list(response.coordinators) == []


@pytest.mark.parametrize("version", range(4, 7))
def test_coordinators_of_many_keys_are_answered_one_by_one(
    broker: BrokerProcess, client: WireClient, version: int
) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["group", "", "other"])
    response = client.ask(request, FindCoordinatorResponse, version)
    assert [(c.key, c.error_code, c.node_id, c.port) for c in response.coordinators] == [
        ("group", 0, 1, broker.port),
        ("", 0, 1, broker.port),
        ("other", 0, 1, broker.port),
    ]
    nobody = client.ask(FindCoordinatorRequest(), FindCoordinatorResponse, version)
    assert list(nobody.coordinators) == []


@pytest.mark.parametrize("key_type", [2, 99])
def test_what_has_no_coordinator_is_said_so_with_a_message(
    client: WireClient, key_type: int
) -> None:
    for version in range(1, 7):
        request = FindCoordinatorRequest(key="k", coordinator_keys=["k"], key_type=key_type)
        response = client.ask(request, FindCoordinatorResponse, version)
        found = response.coordinators[0] if version >= 4 else response
        assert (found.error_code, found.node_id) == (INVALID_REQUEST, -1)
        assert "not served" in (found.error_message or "")


# --- DescribeConfigs -------------------------------------------------------------------------


def describe_configs(
    client: WireClient,
    kind: int,
    name: str,
    *keys: str,
    version: int = 4,
    synonyms: bool = False,
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys or None
            )
        ],
        include_synonyms=synonyms,
        include_documentation=True,
    )
    (result,) = client.ask(request, DescribeConfigsResponse, version).results
    return result


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_topic_is_described_with_values_and_where_they_come_from(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(1, {"segment.bytes": "2000000"})
    result = describe_configs(
        client, ConfigResourceType.TOPIC, topic, version=version, synonyms=True
    )
    assert result.error_code == 0
    entries = {entry.name: entry for entry in result.configs}
    own, inherited, default = (
        entries[name] for name in ("segment.bytes", "retention.ms", "max.message.bytes")
    )
    assert (own.value, own.config_source) == ("2000000", ConfigSource.TOPIC_CONFIG)
    assert (inherited.value, inherited.config_source) == ("-1", ConfigSource.STATIC_BROKER_CONFIG)
    assert (default.value, default.config_source) == ("1048588", ConfigSource.DEFAULT_CONFIG)
    assert [s.name for s in own.synonyms] == ["segment.bytes", "log.segment.bytes"]
    assert bool(own.documentation) == (version >= 3)
    assert (own.config_type != 0) == (version >= 3)


@pytest.mark.parametrize("version", [1, 4])
def test_an_empty_list_of_wanted_configs_means_all_of_them(
    client: WireClient, topic: str, version: int
) -> None:
    resource = DescribeConfigsResource(
        resource_type=ConfigResourceType.TOPIC, resource_name=topic, configuration_keys=[]
    )
    request = DescribeConfigsRequest(resources=[resource])
    (result,) = client.ask(request, DescribeConfigsResponse, version).results
    everything = describe_configs(client, ConfigResourceType.TOPIC, topic, version=version)
    assert [entry.name for entry in result.configs] == [entry.name for entry in everything.configs]
    assert "retention.ms" in {entry.name for entry in result.configs}


def test_only_the_wanted_configs_are_described(client: WireClient, topic: str) -> None:
    result = describe_configs(
        client, ConfigResourceType.TOPIC, topic, "retention.ms", "no.such.config"
    )
    assert [entry.name for entry in result.configs] == ["retention.ms"]
    assert list(result.configs[0].synonyms) == []


def test_the_broker_describes_itself_with_the_port_that_it_has(
    broker: BrokerProcess, client: WireClient
) -> None:
    result = describe_configs(client, ConfigResourceType.BROKER, "1")
    assert result.error_code == 0
    values = {entry.name: entry.value for entry in result.configs}
    assert values["node.id"] == "1"
    assert f":{broker.port}" in (values["listeners"] or "")
    assert values["log.dirs"] == str(broker.data)


def test_unknown_resources_are_refused_each_for_itself(
    client: WireClient, topic: str, topic_name: str
) -> None:
    for kind, name, code in (
        (ConfigResourceType.TOPIC, topic_name, UNKNOWN_TOPIC_OR_PARTITION),
        (ConfigResourceType.TOPIC, "\0" * 30_000, INVALID_TOPIC_EXCEPTION),
        (ConfigResourceType.BROKER, "2", INVALID_REQUEST),
        (ConfigResourceType.BROKER, "one", INVALID_REQUEST),
        (ConfigResourceType.GROUP, "", INVALID_REQUEST),
        (99, "x", INVALID_REQUEST),
    ):
        result = describe_configs(client, kind, name)
        assert (result.error_code, result.resource_name) == (code, name)
        assert result.error_message
        assert list(result.configs) == []
    assert describe_configs(client, ConfigResourceType.TOPIC, topic).error_code == 0


def test_a_resource_that_is_named_twice_is_described_once(client: WireClient, topic: str) -> None:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name)
            for kind, name in [(2, topic), (4, "1"), (2, topic), (2, topic)]
        ]
    )
    results = client.ask(request, DescribeConfigsResponse, 4).results
    assert [(result.resource_type, result.resource_name) for result in results] == [
        (2, topic),
        (4, "1"),
    ]


# --- floods ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (FindCoordinatorRequest(coordinator_keys=[""] * 500_000), 4),
        (
            DescribeConfigsRequest(
                resources=[DescribeConfigsResource(resource_type=2, resource_name="t")] * 300_000
            ),
            4,
        ),
    ],
    ids=["coordinators", "configurations"],
)
def test_a_small_request_for_an_enormous_answer_closes_the_connection(
    broker: BrokerProcess, request_: Request, version: int
) -> None:
    """Two bytes of a request may ask for kilobytes; the broker's memory is not for that."""
    memory_mib = broker.resident_mib()
    with WireClient(broker.port) as client:
        client.send(request_, version)
        assert client.closed_by_broker()
    assert_serves(broker.port)
    assert broker.resident_mib() - memory_mib < 64


# --- headers ---------------------------------------------------------------------------------


def test_the_correlation_id_comes_back_whatever_it_is(client: WireClient) -> None:
    for correlation_id in (0, 1, -1, 2**31 - 1, -(2**31)):
        header = encode_request_header(3, 0, correlation_id, None)
        body = struct.pack(">i", 1) + struct.pack(">h", 1) + b"."
        client.send_raw(struct.pack(">i", len(header) + len(body)) + header + body)
        frame = client.receive_frame()
        assert struct.unpack_from(">i", frame) == (correlation_id,)
        assert decode(MetadataResponse, 0, memoryview(frame)[4:]).brokers

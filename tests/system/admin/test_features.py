"""Features, unregistering, and racks: the answers of a cluster of one broker."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.create_acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
)
from strandline.broker.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from strandline.broker.protocol.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.fetch import FetchRequest, FetchResponse
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from strandline.broker.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from strandline.broker.protocol.messages.update_features import (
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import (
    KEEP_EVERYTHING,
    append,
    batch,
    create_topic,
    fetch_topic,
    software,
)

with warnings.catch_warnings():
    # kafka-python reads its definitions in a way that Python is going to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.admin import KafkaAdminClient

pytestmark = pytest.mark.slow

INVALID_REQUEST = 42
SECURITY_DISABLED = 54
INVALID_UPDATE_VERSION = 95
BROKER_ID_NOT_REGISTERED = 102
RACK = "zone-a"
BROKER_SETTINGS = {**KEEP_EVERYTHING, "broker.rack": RACK}


# --- features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4])
def test_api_versions_tells_the_features_of_the_cluster(client: WireClient, version: int) -> None:
    response = client.ask(software(), ApiVersionsResponse, version)
    finalized = {f.name: f.max_version_level for f in response.finalized_features}
    supported = {f.name: (f.min_version, f.max_version) for f in response.supported_features}
    assert finalized["metadata.version"] == 25
    assert supported["metadata.version"] == (7, 25)
    assert response.finalized_features_epoch > 0
    # Below v4, clients cannot take a feature that may be off.
    assert all(lowest > 0 for lowest, _ in supported.values()) or version >= 4


def update(client: WireClient, version: int, **levels: int) -> UpdateFeaturesResponse:
    updates = [
        FeatureUpdate(feature=name.replace("_", "."), max_version_level=level)
        for name, level in levels.items()
    ]
    return client.ask(
        UpdateFeaturesRequest(feature_updates=updates), UpdateFeaturesResponse, version
    )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_feature_can_be_set_to_what_it_is(client: WireClient, version: int) -> None:
    response = update(client, version, metadata_version=25)
    assert response.error_code == 0
    assert [result.feature for result in response.results] == (
        ["metadata.version"] if version < 2 else []
    )


@pytest.mark.parametrize(
    "levels",
    [
        {"metadata_version": 24},
        {"metadata_version": 26},
        {"metadata_version": -1},
        {"group_version": 0},
        {"no_such": 1},
        {"no_such": 0},
    ],
)
def test_any_other_level_is_refused_with_the_reason(
    client: WireClient, levels: dict[str, int]
) -> None:
    response = update(client, 1, **levels)
    assert response.error_code == INVALID_UPDATE_VERSION
    assert "Invalid update version" in (response.error_message or "")


def test_an_update_of_nothing_or_of_one_thing_twice_is_refused(client: WireClient) -> None:
    twice = [FeatureUpdate(feature="metadata.version", max_version_level=25)] * 2
    for updates in ([], twice):
        response = client.ask(
            UpdateFeaturesRequest(feature_updates=updates), UpdateFeaturesResponse, 1
        )
        assert response.error_code == INVALID_REQUEST


@pytest.mark.clients
def test_kafka_python_describes_the_features(broker: BrokerProcess) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    features = admin.describe_features()
    admin.close()
    assert "metadata.version" in str(features)


# --- unregistering -------------------------------------------------------------------------------


def test_the_broker_that_runs_cannot_be_unregistered_and_others_are_not_known(
    client: WireClient,
) -> None:
    for node_id, code in ((1, INVALID_REQUEST), (2, BROKER_ID_NOT_REGISTERED)):
        response = client.ask(
            UnregisterBrokerRequest(broker_id=node_id), UnregisterBrokerResponse, 0
        )
        assert response.error_code == code
        assert response.error_message


# --- racks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_who_asks_for_acls_is_told_that_there_is_no_authorizer(
    client: WireClient, version: int
) -> None:
    described = client.ask(
        DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1),
        DescribeAclsResponse,
        version,
    )
    creation = AclCreation(
        resource_type=2,
        resource_name="t",
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    created = client.ask(CreateAclsRequest(creations=[creation] * 2), CreateAclsResponse, version)
    wanted = DeleteAclsFilter(resource_type_filter=1, operation=1, permission_type=1)
    deleted = client.ask(DeleteAclsRequest(filters=[wanted]), DeleteAclsResponse, version)
    answers = [described, *created.results, *deleted.filter_results]
    assert [answer.error_code for answer in answers] == [SECURITY_DISABLED] * 4
    assert all("No Authorizer" in (answer.error_message or "") for answer in answers)


def test_the_rack_is_told_in_metadata(client: WireClient) -> None:
    (known,) = client.ask(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
    (described,) = client.ask(DescribeClusterRequest(), DescribeClusterResponse, 1).brokers
    assert (known.rack, described.rack) == (RACK, RACK)


@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("rack", ["", RACK, "another zone"])
def test_a_consumer_of_any_rack_is_served_here(client: WireClient, version: int, rack: str) -> None:
    """The one replica is the closest; -1 says that no other should be read (KIP-392)."""
    topic = f"racks-{version}-{len(rack)}"
    create_topic(client, topic, 1)
    append(client, topic, batch())
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, topics=[fetch_topic(topic, {0: 0})], rack_id=rack
    )
    (found,) = client.ask(request, FetchResponse, version).topics[0].partitions
    assert found.records_bytes > 0
    assert found.preferred_read_replica == -1


@pytest.mark.clients
def test_librdkafka_with_a_rack_reads(broker: BrokerProcess, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("racked", b"value")
    producer.flush(60)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "racked",
            "client.rack": "zone-b",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["racked"])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    assert message.value() == b"value"

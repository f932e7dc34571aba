"""A controller in a process of its own: brokers register, follow its log, and forward requests."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.formats.metadata_records import (
    RegisterBrokerRecord,
)
from strandline.broker.protocol.formats.principal_data import write_principal
from strandline.broker.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
)
from strandline.broker.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from strandline.broker.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from strandline.broker.protocol.schema.api import CONTROLLER_SPECS, ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import BrokerProcess, eventually
from tests.support.controller import (
    CONTROLLER_ID,
    METADATA,
    METADATA_ID,
    ControllerProcess,
    PretendedBroker,
    fetch,
    followed,
    leader_epoch_of,
    records_of,
    snapshot_of,
)
from tests.support.wire import WireClient, decode_response_header, encode_request_header
from tests.system.calls import software

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerProcess]:
    running = ControllerProcess(
        tmp_path_factory.mktemp("controller"), broker_session_timeout_ms="3000"
    )
    running.start()
    yield running
    running.kill()


@pytest.fixture
def client(controller: ControllerProcess) -> Iterator[WireClient]:
    with WireClient(controller.port) as connected:
        yield connected


def enveloped(
    client: WireClient, request: CreateTopicsRequest, *, version: int = 7, user: str = "alice"
) -> tuple[EnvelopeResponse, CreateTopicsResponse | None]:
    header = encode_request_header(ApiKey.CREATE_TOPICS, version, 4711, "forwarded")
    answer = client.ask(
        EnvelopeRequest(
            request_data=header + codec.join(codec.encode(request, version)),
            request_principal=write_principal("User", user),
            client_host_address=socket.inet_aton("10.1.2.3"),
        ),
        EnvelopeResponse,
        0,
    )
    if answer.response_data is None:
        return answer, None
    frame = memoryview(bytes(answer.response_data))
    correlation_id, position = decode_response_header(ApiKey.CREATE_TOPICS, version, frame)
    assert correlation_id == 4711
    return answer, codec.decode(CreateTopicsResponse, version, frame[position:])


def create(client: WireClient, *names: str, factor: int = 1) -> list[int]:
    topics = [
        CreatableTopic(name=name, num_partitions=4, replication_factor=factor, assignments=())
        for name in names
    ]
    _, answer = enveloped(client, CreateTopicsRequest(topics=topics, timeout_ms=1000))
    assert answer is not None
    return [topic.error_code for topic in answer.topics]


# --- what it serves ------------------------------------------------------------------------------


def test_a_controller_advertises_what_brokers_ask_and_not_what_clients_read(
    client: WireClient,
) -> None:
    answer = client.ask(software(), ApiVersionsResponse, 4)
    listed = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    served = CONTROLLER_SPECS.keys() - {ApiKey.ALTER_PARTITION}
    assert served <= listed.keys()
    assert not {ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.JOIN_GROUP} & listed.keys()
    assert {one.name for one in answer.finalized_features} >= {"metadata.version"}


def test_a_controller_supports_each_feature_at_the_level_that_is_finalized(
    client: WireClient,
) -> None:
    answer = client.ask(software(), ApiVersionsResponse, 4)
    known = {
        one.name: range(one.min_version, one.max_version + 1) for one in answer.supported_features
    }
    finalized = {one.name: one.max_version_level for one in answer.finalized_features}
    assert finalized["eligible.leader.replicas.version"] == 1
    assert all(level in known.get(name, ()) for name, level in finalized.items()), known


def test_a_request_that_it_does_not_serve_costs_the_connection(client: WireClient) -> None:
    header = encode_request_header(ApiKey.METADATA, 9, 1, "x")
    client.send_raw(struct.pack(">i", len(header)) + header)
    assert client.closed_by_broker()


@pytest.mark.parametrize("key", sorted(CONTROLLER_SPECS))
def test_a_broker_serves_nothing_of_controllers(shared_broker: BrokerProcess, key: int) -> None:
    with WireClient(shared_broker.port) as client:
        header = encode_request_header(key, CONTROLLER_SPECS[key].supported.highest, 1, "x")
        client.send_raw(struct.pack(">i", len(header)) + header)
        assert client.closed_by_broker()


# --- brokers -------------------------------------------------------------------------------------


def test_a_broker_registers_is_unfenced_and_leads(
    controller: ControllerProcess, client: WireClient
) -> None:
    broker = PretendedBroker(controller, 11)
    broker.join()
    assert create(client, "of-11") == [0]
    image = followed(client)
    assert not image.brokers[11].fenced
    assert 11 in {one.leader for one in image.topics["of-11"].partitions}
    assert broker.beat(shut_down=True).should_shut_down is False
    eventually(lambda: broker.beat(shut_down=True).should_shut_down)
    assert 11 not in {one.leader for one in followed(client).topics["of-11"].partitions}


def test_a_process_of_another_cluster_or_without_features_is_refused(
    controller: ControllerProcess,
) -> None:
    broker = PretendedBroker(controller, 12)
    assert broker.register(cluster_id="WIjw3grwRZmR2uOpdpVXbg") == 104
    assert broker.register(features=[]) == ErrorCode.UNSUPPORTED_VERSION
    assert broker.register(log_dirs=[]) == ErrorCode.INVALID_REGISTRATION


def test_a_second_process_waits_for_the_first_unless_that_hung_up(
    controller: ControllerProcess,
) -> None:
    first, second = PretendedBroker(controller, 13), PretendedBroker(controller, 13)
    first.join()
    assert second.register() == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    second.log_dir = first.log_dir
    assert second.register() == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    first.client.close()
    # Long before its session ends.
    eventually(lambda: second.register() == 0)
    assert second.epoch > first.epoch
    assert second.beat().error_code == 0


def test_a_heartbeat_of_an_earlier_process_is_stale(controller: ControllerProcess) -> None:
    broker = PretendedBroker(controller, 14)
    broker.join()
    broker.epoch -= 1
    assert broker.beat().error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_silent_broker_is_fenced_and_comes_back(
    controller: ControllerProcess, client: WireClient
) -> None:
    broker = PretendedBroker(controller, 15)
    broker.join()
    eventually(lambda: followed(client).brokers[15].fenced)
    answer = broker.beat()
    assert (answer.error_code, answer.is_fenced) == (0, False)


def test_producer_ids_are_given_once_and_to_living_brokers(controller: ControllerProcess) -> None:
    broker = PretendedBroker(controller, 16)
    broker.join()

    def block(epoch: int) -> AllocateProducerIdsResponse:
        request = AllocateProducerIdsRequest(broker_id=16, broker_epoch=epoch)
        return broker.client.ask(request, AllocateProducerIdsResponse, 0)

    one, two = block(broker.epoch), block(broker.epoch)
    assert (one.error_code, one.producer_id_len) == (0, 1000)
    assert two.producer_id_start == one.producer_id_start + 1000
    assert block(broker.epoch - 1).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_folders_of_replicas_are_noted(controller: ControllerProcess, client: WireClient) -> None:
    broker = PretendedBroker(controller, 17)
    other = uuid.uuid4()
    assert broker.register(log_dirs=[broker.log_dir, other]) == 0
    broker.beat()
    create(client, "in-folders")
    topic = followed(client).topics["in-folders"]
    # Its session may have expired meanwhile, so that it leads nothing.
    led = [one.partition for one in topic.partitions if 17 in one.replicas]
    request = AssignReplicasToDirsRequest(
        broker_id=17,
        broker_epoch=broker.epoch,
        directories=[
            AssignedDirectory(
                id=other,
                topics=[
                    AssignedTopic(
                        topic_id=topic.topic_id,
                        partitions=[AssignedPartition(partition_index=one) for one in led],
                    )
                ],
            )
        ],
    )
    answer = broker.client.ask(request, AssignReplicasToDirsResponse, 0)
    assert answer.error_code == 0
    found = followed(client).topics["in-folders"]
    assert {one.directories for one in found.partitions if 17 in one.replicas} == {(other,)}


def test_an_unregistered_broker_is_gone(controller: ControllerProcess, client: WireClient) -> None:
    broker = PretendedBroker(controller, 18)
    broker.join()
    request = UnregisterBrokerRequest(broker_id=18)
    assert client.ask(request, UnregisterBrokerResponse, 0).error_code == 0
    assert 18 not in followed(client).brokers
    assert client.ask(request, UnregisterBrokerResponse, 0).error_code == 102


# --- followers -----------------------------------------------------------------------------------


def test_a_follower_hears_of_an_entry_at_once(
    controller: ControllerProcess, client: WireClient
) -> None:
    leader_epoch = leader_epoch_of(client)
    empty = fetch(client, 0, 0, leader_epoch)
    assert empty.snapshot_id is not None
    end = empty.high_watermark
    with WireClient(controller.port) as other:
        request = FetchRequest(
            max_wait_ms=60_000,
            min_bytes=0,
            topics=[
                FetchTopic(
                    topic_id=METADATA_ID,
                    partitions=[
                        FetchPartition(
                            partition=0,
                            current_leader_epoch=leader_epoch,
                            fetch_offset=end,
                            last_fetched_epoch=leader_epoch,
                            partition_max_bytes=2**20,
                        )
                    ],
                )
            ],
        )
        asked = other.send(request, 17)
        assert PretendedBroker(controller, 19).register() == 0
        (partition,) = other.receive(FetchResponse, 17, asked).topics[0].partitions
    (record,) = records_of(b"".join(bytes(part) for part in partition.records))  # type: ignore[arg-type]
    assert isinstance(record, RegisterBrokerRecord)
    assert (record.broker_id, record.broker_epoch) == (19, end)
    assert partition.high_watermark == end + 1


def test_epochs_snapshots_and_topics_that_are_not_there_have_their_errors(
    client: WireClient,
) -> None:
    leader_epoch = leader_epoch_of(client)
    ahead = fetch(client, 0, 0, leader_epoch + 1)
    assert ahead.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetch(client, -1, 0, leader_epoch).error_code == ErrorCode.INVALID_REQUEST
    _, missing = snapshot_of(client, 10**6, 1, leader_epoch)
    assert missing.error_code == ErrorCode.SNAPSHOT_NOT_FOUND
    wrong = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[])
    assert client.ask(wrong, FetchResponse, 17).error_code == ErrorCode.INVALID_REQUEST
    other = wrong.replaced(cluster_id="another")
    assert client.ask(other, FetchResponse, 17).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_a_snapshot_comes_in_pieces_of_any_size(client: WireClient) -> None:
    leader_epoch = leader_epoch_of(client)
    start = fetch(client, 0, 0, leader_epoch).snapshot_id
    assert start is not None
    whole, _ = snapshot_of(client, start.end_offset, start.epoch, leader_epoch)
    pieces, _ = snapshot_of(client, start.end_offset, start.epoch, leader_epoch, piece=7)
    assert pieces == whole


def test_the_quorum_is_the_controller_and_those_who_follow(
    controller: ControllerProcess, client: WireClient
) -> None:
    PretendedBroker(controller, 77).join()
    leader_epoch = leader_epoch_of(client)
    fetch(client, 0, 0, leader_epoch)
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopic(
                topic_name=METADATA, partitions=[DescribeQuorumRequestPartition(partition_index=0)]
            )
        ]
    )
    answer = client.ask(request, DescribeQuorumResponse, 2)
    (partition,) = answer.topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch) == (CONTROLLER_ID, leader_epoch)
    assert [voter.replica_id for voter in partition.current_voters] == [CONTROLLER_ID]
    assert [observer.replica_id for observer in partition.observers] == [77]
    (node,) = answer.nodes
    assert (node.node_id, node.listeners[0].port) == (CONTROLLER_ID, controller.port)


def test_the_endpoint_tells_its_cluster_and_that_it_is_one_of_controllers(
    controller: ControllerProcess, client: WireClient
) -> None:
    asked = DescribeClusterRequest(endpoint_type=2)
    answer = client.ask(asked, DescribeClusterResponse, 1)
    assert (answer.error_code, answer.cluster_id) == (0, controller.cluster_id)
    assert (answer.controller_id, answer.endpoint_type) == (CONTROLLER_ID, 2)
    assert [(one.broker_id, one.port) for one in answer.brokers] == [
        (CONTROLLER_ID, controller.port)
    ]
    other = client.ask(DescribeClusterRequest(), DescribeClusterResponse, 1)
    assert other.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


# --- envelopes -----------------------------------------------------------------------------------


def test_a_forwarded_request_is_answered_in_the_clients_version(
    controller: ControllerProcess, client: WireClient
) -> None:
    PretendedBroker(controller, 20).join()
    topic = CreatableTopic(name="old", num_partitions=1, replication_factor=1, assignments=())
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
    answer, created = enveloped(client, request, version=2)
    assert answer.error_code == 0
    assert created is not None
    assert [one.error_code for one in created.topics] == [0]
    assert create(client, "old", "new") == [ErrorCode.TOPIC_ALREADY_EXISTS, 0]


def test_what_may_not_be_in_an_envelope_is_refused_and_the_connection_stays(
    client: WireClient,
) -> None:
    def refused(**changes: object) -> int:
        request = EnvelopeRequest(
            request_data=encode_request_header(ApiKey.CREATE_TOPICS, 7, 1, "x") + b"\x01",
            request_principal=write_principal("User", "a"),
            client_host_address=b"\x7f\0\0\1",
        )
        return client.ask(request.replaced(**changes), EnvelopeResponse, 0).error_code

    deserialization = ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
    assert refused() == ErrorCode.INVALID_REQUEST
    assert refused(request_data=b"") == ErrorCode.INVALID_REQUEST
    heartbeat = encode_request_header(ApiKey.BROKER_HEARTBEAT, 0, 1, "x")
    assert refused(request_data=heartbeat) == ErrorCode.UNSUPPORTED_VERSION
    assert refused(request_principal=None) == deserialization
    assert refused(request_principal=b"\0\7") == deserialization
    assert refused(client_host_address=b"\1\2\3") == deserialization
    assert client.ask(software(), ApiVersionsResponse, 4).error_code == 0


# --- restarts ------------------------------------------------------------------------------------


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[ControllerProcess]:
    """A controller with whom no session expires while a slow disk starts it again."""
    running = ControllerProcess(tmp_path, broker_session_timeout_ms="600000")
    running.start()
    yield running
    running.kill()


def test_a_controller_that_was_killed_begins_a_new_epoch_and_knows_all(
    patient: ControllerProcess,
) -> None:
    broker = PretendedBroker(patient, 21)
    broker.join()
    with WireClient(patient.port) as client:
        before = leader_epoch_of(client)
        assert create(client, "kept") == [0]
        known = followed(client)
    patient.kill()
    patient.start()
    with WireClient(patient.port) as client:
        assert leader_epoch_of(client) == before + 1
        after = followed(client)
        assert after.topics["kept"] == known.topics["kept"]
        assert after.brokers[21] == known.brokers[21]
        # The broker goes on with its epoch.
        broker.client = WireClient(patient.port)
        assert broker.beat().error_code == 0
        # A follower at the end of the log before needs no snapshot.
        end = fetch(client, 0, 0, before + 1).snapshot_id
        assert end is not None
        assert end.epoch == before
        ahead = fetch(client, end.end_offset, before, before + 1)
        assert ahead.snapshot_id is None
        assert ahead.records_bytes > 0


@pytest.mark.crash
def test_a_controller_that_stood_still_fences_nobody_for_it(controller: ControllerProcess) -> None:
    broker = PretendedBroker(controller, 22)
    broker.join()
    os.kill(controller.pid, signal.SIGSTOP)
    try:
        # Longer than a session.
        time.sleep(4)
    finally:
        os.kill(controller.pid, signal.SIGCONT)
    with WireClient(controller.port) as client:
        assert not followed(client).brokers[22].fenced

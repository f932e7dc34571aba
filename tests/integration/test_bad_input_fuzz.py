"""A few hundred broken requests of every API and version: the broker stays, and stays small.

Valid frames are mutated with a seeded generator: bits, extreme numbers, cuts, repeats, splices. For
each the broker may answer or close; it may not fall over it, and a failure names the frame. To look
for more than the fixed seed finds: STRANDLINE_FUZZ_SEED=... STRANDLINE_FUZZ_ROUNDS=...
"""

from __future__ import annotations

import os
import random
import socket
import struct
import uuid
from collections.abc import Iterator, Sequence

import pytest

from strandline.broker.protocol.api import SPECS
from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterQuotaEntry,
    QuotaEntity,
    QuotaOperation,
)
from strandline.broker.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from strandline.broker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from strandline.broker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from strandline.broker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
)
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from strandline.broker.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from strandline.broker.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from strandline.broker.protocol.messages.delete_groups import DeleteGroupsRequest
from strandline.broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from strandline.broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from strandline.broker.protocol.messages.describe_acls import DescribeAclsRequest
from strandline.broker.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    QuotaComponent,
)
from strandline.broker.protocol.messages.describe_cluster import DescribeClusterRequest
from strandline.broker.protocol.messages.describe_configs import (
    ConfigResourceType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from strandline.broker.protocol.messages.describe_groups import DescribeGroupsRequest
from strandline.broker.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from strandline.broker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersTopic,
)
from strandline.broker.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
)
from strandline.broker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersTopic,
)
from strandline.broker.protocol.messages.fetch import ForgottenTopic
from strandline.broker.protocol.messages.find_coordinator import FindCoordinatorRequest
from strandline.broker.protocol.messages.heartbeat import HeartbeatRequest
from strandline.broker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalConfig,
)
from strandline.broker.protocol.messages.init_producer_id import InitProducerIdRequest
from strandline.broker.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from strandline.broker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from strandline.broker.protocol.messages.list_config_resources import ListConfigResourcesRequest
from strandline.broker.protocol.messages.list_groups import ListGroupsRequest
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopic,
)
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from strandline.broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from strandline.broker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from strandline.broker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from strandline.broker.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from strandline.broker.protocol.messages.unregister_broker import UnregisterBrokerRequest
from strandline.broker.protocol.messages.update_features import (
    FeatureUpdate,
    UpdateFeaturesRequest,
)
from strandline.broker.protocol.schema import Request
from strandline.storage.records.batch import iter_batches
from strandline.storage.records.record import with_crc
from tests.integration.calls import (
    KEEP_EVERYTHING,
    append,
    assert_serves,
    batch,
    create_topic,
    end_offset,
    fetch,
    fetch_request,
    fetch_topic,
    fetched_bytes,
    frame_of,
    offset_at,
    produce,
    produce_request,
    software,
)
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient

pytestmark = [pytest.mark.slow, pytest.mark.crash]

SEED = int(os.environ.get("STRANDLINE_FUZZ_SEED", "20260131"))
ROUNDS = int(os.environ.get("STRANDLINE_FUZZ_ROUNDS", "4"))
BATCH_CASES = 150
# A mutated fetch may ask to wait for days; its client goes away instead.
PATIENCE_S = 0.3
GROWTH_MIB_MAX = 48
TOPIC = "fuzzed"
# Answers to a mutated request are told from this one's by the correlation id.
LAST_CORRELATION_ID = 0x5AFE


def requests() -> Sequence[Request]:
    """One of each API, with something in every field; none changes much when it succeeds."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    records = DeleteRecordsPartition(partition_index=0, offset=0)
    epoch = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return [
        produce_request(TOPIC, batch(2, producer_id=1, producer_epoch=0, base_sequence=0)),
        fetch_request(
            fetch_topic(TOPIC, {0: 0, 1: 0}),
            session_epoch=0,
            forgotten=[ForgottenTopic(name=TOPIC, partitions=[0, 1])],
        ),
        ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])]),
        MetadataRequest(
            topics=[MetadataRequestTopic(name=TOPIC), MetadataRequestTopic(name="another")],
            allow_auto_topic_creation=False,
        ),
        FindCoordinatorRequest(key="group", coordinator_keys=["group", "other"]),
        software(),
        CreateTopicsRequest(
            validate_only=True,
            topics=[
                CreatableTopic(
                    name="new",
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
                    configs=[CreatableTopicConfig(name="retention.ms", value="1")],
                )
            ],
        ),
        DeleteTopicsRequest(
            topics=[DeleteTopicState(name="absent")], topic_names=["absent"], timeout_ms=1000
        ),
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=TOPIC, partitions=[records])], timeout_ms=1000
        ),
        InitProducerIdRequest(transaction_timeout_ms=1000),
        OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[epoch])], replica_id=-1
        ),
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=ConfigResourceType.TOPIC,
                    resource_name=TOPIC,
                    configuration_keys=["retention.ms"],
                )
            ]
        ),
        CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=TOPIC, count=3, assignments=[CreatePartitionsAssignment(broker_ids=[1])]
                )
            ],
            timeout_ms=1000,
            validate_only=True,
        ),
        DescribeClusterRequest(),
        *admin_requests(),
        *group_requests(),
    ]


def group_requests() -> Sequence[Request]:
    """Like `requests`, of a member that the group does not know, so that none is kept waiting."""
    group, member = "fuzzed-group", "member-1"
    topic_of_fetch = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0, 1])
    return [
        OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=3,
            member_id=member,
            group_instance_id="instance",
            topics=[
                OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1, committed_metadata="note"
                        )
                    ],
                )
            ],
        ),
        OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0, 1])],
            groups=[OffsetFetchRequestGroup(group_id=group, topics=[topic_of_fetch])],
        ),
        JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member,
            group_instance_id="instance",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\x00\x01")],
            reason="fuzz",
        ),
        HeartbeatRequest(
            group_id=group, generation_id=3, member_id=member, group_instance_id="instance"
        ),
        LeaveGroupRequest(
            group_id=group,
            member_id=member,
            members=[MemberIdentity(member_id=member, group_instance_id="instance")],
        ),
        SyncGroupRequest(
            group_id=group,
            generation_id=3,
            member_id=member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member, assignment=b"\x00\x01")],
        ),
        DescribeGroupsRequest(groups=[group, "other"], include_authorized_operations=True),
        ListGroupsRequest(states_filter=["Stable"], types_filter=["classic"]),
        DeleteGroupsRequest(groups_names=[group]),
        ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=3,
            instance_id="instance",
            rack_id="rack",
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[TOPIC],
            subscribed_topic_regex="(a|b)*",
            server_assignor="uniform",
            topic_partitions=[
                HeartbeatTopicPartitions(topic_id=uuid.UUID(int=1), partitions=[0, 1])
            ],
        ),
        ConsumerGroupDescribeRequest(
            group_ids=[group, "other"], include_authorized_operations=True
        ),
        OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=TOPIC, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
                )
            ],
        ),
    ]


def admin_requests() -> Sequence[Request]:
    """Like `requests`, for what administrators ask."""
    config = AlterableConfig(name="retention.ms", value="-1")
    operation = IncrementalConfig(name="cleanup.policy", config_operation=2, value="delete")
    move = ReassignablePartition(partition_index=0, replicas=[1])
    return [
        AlterConfigsRequest(
            resources=[
                AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[config])
            ],
            validate_only=True,
        ),
        IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=2, resource_name=TOPIC, configs=[operation]
                )
            ],
            validate_only=True,
        ),
        DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsTopic(name=TOPIC)],
            response_partition_limit=1,
            cursor=Cursor(topic_name=TOPIC, partition_index=1),
        ),
        DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=TOPIC, partitions=[0, 1])]),
        DescribeProducersRequest(
            topics=[DescribeProducersTopic(name=TOPIC, partition_indexes=[0, 1])]
        ),
        AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path="/absent",
                    topics=[AlterReplicaLogDirTopic(name=TOPIC, partitions=[0, 1])],
                )
            ]
        ),
        ListConfigResourcesRequest(resource_types=[2, 4]),
        ElectLeadersRequest(topic_partitions=[ElectLeadersTopic(topic=TOPIC, partitions=[0, 1])]),
        AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=TOPIC, partitions=[move])]
        ),
        DescribeClientQuotasRequest(
            components=[QuotaComponent(entity_type="user", match_type=0, match="nobody")],
            strict=True,
        ),
        AlterClientQuotasRequest(
            entries=[
                AlterQuotaEntry(
                    entity=[QuotaEntity(entity_type="user", entity_name="nobody")],
                    ops=[QuotaOperation(key="producer_byte_rate", value=1e9)],
                )
            ],
            validate_only=True,
        ),
        UpdateFeaturesRequest(
            feature_updates=[FeatureUpdate(feature="metadata.version", max_version_level=25)],
            validate_only=True,
        ),
        UnregisterBrokerRequest(broker_id=9),
        DescribeAclsRequest(
            resource_type_filter=2,
            resource_name_filter=TOPIC,
            principal_filter="User:a",
            host_filter="*",
            operation=3,
            permission_type=3,
        ),
        CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=2,
                    resource_name=TOPIC,
                    principal="User:a",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
            ]
        ),
        DeleteAclsRequest(
            filters=[DeleteAclsFilter(resource_type_filter=2, operation=3, permission_type=3)]
        ),
        DescribeUserScramCredentialsRequest(users=[UserName(name="alice")]),
        AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name="alice", mechanism=1)],
            upsertions=[
                ScramCredentialUpsertion(
                    name="bob",
                    mechanism=2,
                    iterations=4096,
                    salt=b"salt",
                    salted_password=b"salted",
                )
            ],
        ),
        SaslHandshakeRequest(mechanism="PLAIN"),
        SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"),
        ListPartitionReassignmentsRequest(
            topics=[ListPartitionReassignmentsTopic(name=TOPIC, partition_indexes=[0])]
        ),
    ]


def recorded_frames() -> list[bytes]:
    """A valid frame of each API in each version that is served."""
    known = {request.spec.key: request for request in requests()}
    assert set(known) == set(SPECS), "an API without a frame to mutate"
    return [
        frame_of(known[spec.key], version) for spec in SPECS.values() for version in spec.supported
    ]


# --- mutations -------------------------------------------------------------------------------

EXTREMES = [b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff"]
WIDE_EXTREMES = [
    struct.pack(">i", number)
    for number in (-1, 0, 1, 2**31 - 1, -(2**31), 0x00FFFFFF, 32767, 65536)
] + [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x01"]


def mutated(generator: random.Random, frames: Sequence[bytes]) -> bytes:
    """One frame, changed in one to three places; mostly with a length that is true again."""
    body = bytearray(generator.choice(frames)[4:])
    for _ in range(generator.randint(1, 3)):
        # The first bytes say which API it is; most mutations leave them, to get behind the door.
        low = 0 if generator.random() < 0.1 else min(8, len(body) - 1)
        position = generator.randrange(low, len(body)) if len(body) > low else 0
        match generator.randrange(8):
            case 0:
                body[position] ^= 1 << generator.randrange(8)
            case 1:
                body[position : position + 1] = generator.choice(EXTREMES)
            case 2:
                wide = generator.choice(WIDE_EXTREMES)
                body[position : position + len(wide)] = wide
            case 3:
                del body[position : position + generator.randint(1, 12)]
            case 4:
                body[position:position] = generator.randbytes(generator.randint(1, 12))
            case 5:
                end = min(len(body), position + generator.randint(1, 40))
                body[position:position] = body[position:end] * generator.randint(1, 30)
            case 6:
                other = generator.choice(frames)
                body[position:] = other[generator.randrange(4, len(other)) :]
            case _:
                del body[position:]
        if not body:
            body = bytearray(b"\x00")
    length = len(body) if generator.random() < 0.9 else generator.choice((0, 7, len(body) + 5, -3))
    return struct.pack(">i", length) + bytes(body)


# --- the broker under fire -------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("target"), settings=KEEP_EVERYTHING) as running:
        with WireClient(running.port) as client:
            create_topic(client, TOPIC, 2)
            append(client, TOPIC, batch(10))
        yield running


def fire(port: int, frame: bytes) -> None:
    """Sends a frame and a good one behind it; returns when the broker has dealt with both."""
    good = frame_of(software(), 3, correlation_id=LAST_CORRELATION_ID)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connected:
        try:
            connected.sendall(frame + good)
            received = bytearray()
            while struct.pack(">i", LAST_CORRELATION_ID) not in received:
                part = connected.recv(65536)
                if not part:
                    return
                received += part
        except OSError:
            return  # It closed in the middle, or waits for more: both are answers.


class FaultDetector:
    """Reads what the broker logged since the last look."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._seen_bytes = broker.log_path.stat().st_size

    def check(self, frame: bytes) -> None:
        """Fails with the frame if the broker fell over it."""
        size_bytes = self._broker.log_path.stat().st_size
        if size_bytes > self._seen_bytes:
            new = self._broker.log_path.read_bytes()[self._seen_bytes :].decode(errors="replace")
            self._seen_bytes = size_bytes
            assert "Traceback" not in new, f"seed {SEED}, frame {frame.hex()}:\n{new[:3000]}"
        assert self._broker.running, f"seed {SEED}: it died of frame {frame.hex()}"


def test_every_recorded_frame_is_a_good_one(target: BrokerProcess) -> None:
    """Else the mutations would only knock at the door."""
    for frame in recorded_frames():
        with WireClient(target.port) as client:
            client.send_raw(frame)
            assert len(client.receive_frame()) > 4


def test_mutated_requests_neither_stop_nor_bloat_the_broker(target: BrokerProcess) -> None:
    frames = recorded_frames()
    generator = random.Random(SEED)
    detector = FaultDetector(target)
    for frame in frames:
        fire(target.port, frame)  # So that what is loaded on first use does not count as growth.
    before_mib = target.resident_mib()
    for _ in range(ROUNDS * len(frames)):
        frame = mutated(generator, frames)
        fire(target.port, frame)
        detector.check(frame)
    assert_serves(target.port)
    assert target.resident_mib() - before_mib < GROWTH_MIB_MAX
    with WireClient(target.port) as client:
        assert end_offset(client, TOPIC) >= 10


def mutated_batch(generator: random.Random) -> bytes:
    """A batch with a few bytes changed, its CRC true again in two of three cases."""
    encoded = bytearray(
        batch(
            generator.randint(1, 4),
            producer_id=generator.choice((-1, 5)),
            producer_epoch=generator.choice((-1, 0)),
            base_sequence=generator.choice((-1, 0, 1)),
        )
    )
    for _ in range(generator.randint(1, 3)):
        position = generator.randrange(len(encoded))
        encoded[position] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, encoded[position] ^ 4))
    if generator.random() < 0.2:
        del encoded[generator.randrange(1, len(encoded)) :]
    if len(encoded) > 61 and generator.random() < 0.66:
        with_crc(encoded)
    return bytes(encoded)


def stored_bytes(client: WireClient, topic: str) -> bytes:
    """The whole log; each fetch ends with a segment, and odd timestamps make many of those."""
    stored = b""
    offset, end = 0, end_offset(client, topic)
    while offset < end:
        part = fetched_bytes(fetch(client, topic, offset, partition_max_bytes=50_000_000))
        for positioned in iter_batches(part):
            assert positioned.header.base_offset == offset
            offset = positioned.header.next_offset
        assert part, (offset, end)
        stored += part
    assert offset == end
    return stored


def test_whatever_batches_are_taken_the_log_stays_readable_and_survives_a_crash(
    target: BrokerProcess,
) -> None:
    """Batches with a true CRC over nonsense are stored as they came; offsets stay dense."""
    topic = "batches"
    generator = random.Random(SEED)
    detector = FaultDetector(target)
    taken = 0
    with WireClient(target.port) as client:
        create_topic(client, topic)
        for _ in range(BATCH_CASES):
            encoded = mutated_batch(generator)
            answer = produce(client, topic, encoded, version=generator.choice((3, 7, 9, 12)))
            taken += answer.error_code == 0
            detector.check(encoded)
        end = end_offset(client, topic)
        before = stored_bytes(client, topic)
        for timestamp in (0, 2**62, -3):
            offset_at(client, topic, timestamp)
            detector.check(b"ListOffsets")
    assert 5 < taken < BATCH_CASES
    target.kill()
    target.start()
    with WireClient(target.port) as client:
        assert end_offset(client, topic) == end
        assert stored_bytes(client, topic) == before

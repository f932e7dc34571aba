"""A request for each row of `rights.tsv`, and what a client sees in its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from strandline.broker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterQuotaEntry,
    EntityData,
)
from strandline.broker.protocol.messages.alter_configs import (
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
)
from strandline.broker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from strandline.broker.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from strandline.broker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from strandline.broker.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from strandline.broker.protocol.messages.delete_groups import DeleteGroupsRequest
from strandline.broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicState,
)
from strandline.broker.protocol.messages.describe_acls import DescribeAclsRequest
from strandline.broker.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from strandline.broker.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from strandline.broker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from strandline.broker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersTopic,
)
from strandline.broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
)
from strandline.broker.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
)
from strandline.broker.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from strandline.broker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersTopic,
)
from strandline.broker.protocol.messages.end_txn import EndTxnRequest
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchReplicaState,
    FetchRequest,
    FetchTopic,
)
from strandline.broker.protocol.messages.find_coordinator import FindCoordinatorRequest
from strandline.broker.protocol.messages.heartbeat import HeartbeatRequest
from strandline.broker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from strandline.broker.protocol.messages.init_producer_id import InitProducerIdRequest
from strandline.broker.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from strandline.broker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from strandline.broker.protocol.messages.list_config_resources import ListConfigResourcesRequest
from strandline.broker.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopic,
)
from strandline.broker.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
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
    OffsetFetchResponse,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from strandline.broker.protocol.messages.sync_group import SyncGroupRequest
from strandline.broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from strandline.broker.protocol.messages.unregister_broker import UnregisterBrokerRequest
from strandline.broker.protocol.messages.update_features import UpdateFeaturesRequest
from strandline.broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.schema import Request, Response, Struct
from strandline.broker.security.acl import AclOperation
from strandline.storage.records.batch.record import encode_batch
from tests.support.response_class import response_class
from tests.support.wire import WireClient
from tests.system.authorization.world import World
from tests.system.calls import batch, records

HIDDEN, UNSET = "hidden", "unset"
_BROKER, _LOGGER, _METRICS, _TOPIC, _GROUP = (
    (ConfigResourceType.BROKER, "1"),
    (ConfigResourceType.BROKER_LOGGER, "1"),
    (ConfigResourceType.CLIENT_METRICS, "m"),
    (ConfigResourceType.TOPIC, "t"),
    (ConfigResourceType.GROUP, "g"),
)


def codes(answer: Struct) -> set[str]:
    """Every error code of an answer, but 0."""
    return {str(code) for code in _codes(answer) if code}


def _codes(value: object) -> Iterator[int]:
    if isinstance(value, Struct):
        for name, inner in value.values():
            if name.endswith("error_code"):
                assert isinstance(inner, int)
                yield inner
            else:
                yield from _codes(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _codes(inner)


def seen(is_seen: bool) -> set[str]:
    return set() if is_seen else {HIDDEN}


def bit(operations: int, operation: AclOperation) -> set[str]:
    return set() if operations >> operation & 1 else {UNSET}


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A request in several versions, and what is looked at in its answer."""

    request: Callable[[World, int], Request]
    versions: tuple[int, ...]
    see: Callable[..., set[str]] = codes

    def outcomes(self, client: WireClient, world: World) -> dict[int, set[str]]:
        return {version: self.see(self.ask(client, world, version)) for version in self.versions}

    def ask(self, client: WireClient, world: World, version: int) -> Response:
        request = self.request(world, version)
        return client.ask(request, response_class(request.spec.key), version)


def probe(request: Request, *versions: int, see: Callable[..., set[str]] = codes) -> Probe:
    return Probe(request=lambda _world, _version: request, versions=versions, see=see)


def made(
    request: Callable[[World, int], Request],
    *versions: int,
    see: Callable[..., set[str]] = codes,
) -> Probe:
    return Probe(request=request, versions=versions, see=see)


# --- requests whose fields depend on the version, or on what is there ----------------------------


def produce(world: World, version: int, *, transactional: bool = False) -> ProduceRequest:
    raw = (
        encode_batch(
            records(), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
        )
        if transactional
        else batch()
    )
    return ProduceRequest(
        transactional_id="x" if transactional else None,
        acks=1,
        timeout_ms=1000,
        topics=[
            ProduceTopic(
                name="t" if version < 13 else "",
                topic_id=world.topic_id("t") if version >= 13 else None,
                partitions=[ProducePartition(index=0, records=memoryview(bytearray(raw)))],
            )
        ],
    )


def fetch(world: World, version: int, *, replica_id: int = -1) -> FetchRequest:
    return FetchRequest(
        replica_id=replica_id,
        replica_state=FetchReplicaState(replica_id=replica_id) if version >= 15 else None,
        max_wait_ms=0,
        min_bytes=1,
        topics=[
            FetchTopic(
                name="t" if version < 13 else "",
                topic_id=world.topic_id("t") if version >= 13 else None,
                partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)],
            )
        ],
    )


def metadata(*names: str, **asked: bool) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        **{"allow_auto_topic_creation": False, **asked},
    )


def metadata_by_id(world: World, _version: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(topic_id=world.topic_id("t"))])


def creating_metadata(world: World, _version: int) -> MetadataRequest:
    world.drop("made")
    return metadata("made", allow_auto_topic_creation=True)


def all_metadata(_world: World, version: int) -> MetadataRequest:
    return MetadataRequest(topics=None if version else [])


def coordinator(key: str, key_type: int) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])


def commit(world: World, version: int) -> OffsetCommitRequest:
    topic_id = {"topic_id": world.topic_id("t")} if version >= 10 else {"name": "t"}
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequestTopic(partitions=[partition], **topic_id)  # type: ignore[arg-type]
    return OffsetCommitRequest(group_id="g", topics=[topic])


def commit_in_transaction(world: World, version: int) -> TxnOffsetCommitRequest:
    topic_id = {"topic_id": world.topic_id("t")} if version >= 6 else {"name": "t"}
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = TxnOffsetCommitRequestTopic(
        partitions=[partition],
        **topic_id,  # type: ignore[arg-type]
    )
    return TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=9, producer_epoch=0, topics=[topic]
    )


def offsets(world: World, version: int) -> OffsetFetchRequest:
    named = {"topic_id": world.topic_id("t")} if version >= 10 else {"name": "t"}
    topics = [OffsetFetchRequestTopics(partition_indexes=[0], **named)]  # type: ignore[arg-type]
    return OffsetFetchRequest(
        group_id="g",
        topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
        groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)],
    )


def all_offsets(_world: World, _version: int) -> OffsetFetchRequest:
    groups = [OffsetFetchRequestGroup(group_id="g", topics=None)]
    return OffsetFetchRequest(group_id="g", topics=None, groups=groups)


def see_offsets(answer: OffsetFetchResponse) -> set[str]:
    assert not codes(answer)
    return seen(bool([*answer.topics, *(topic for one in answer.groups for topic in one.topics)]))


def of_member(world: World, _version: int) -> ConsumerGroupDescribeRequest:
    world.keep_member()
    return ConsumerGroupDescribeRequest(group_ids=["c"], include_authorized_operations=True)


def deletion(world: World, version: int) -> DeleteTopicsRequest:
    world.make("doomed")
    return DeleteTopicsRequest(
        topics=[DeleteTopicState(name="doomed")], topic_names=["doomed"], timeout_ms=1000
    )


def deletion_by_id(world: World, _version: int) -> DeleteTopicsRequest:
    state = DeleteTopicState(topic_id=world.make("doomed"))
    return DeleteTopicsRequest(topics=[state], timeout_ms=1000)


def creation(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], validate_only=True)


def dropped(request: Request) -> Callable[[World, int], Request]:
    def after_drop(world: World, _version: int) -> Request:
        world.drop("made")
        return request

    return after_drop


def add(*names: str) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names]
    return AddPartitionsToTxnRequest(
        transactional_id="x", producer_id=9, producer_epoch=0, topics=topics
    )


def described(resource: tuple[ConfigResourceType, str]) -> DescribeConfigsRequest:
    kind, name = resource
    wanted = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=["none"]
    )
    return DescribeConfigsRequest(resources=[wanted])


def altered(resource: tuple[ConfigResourceType, str]) -> AlterConfigsRequest:
    kind, name = resource
    wanted = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
    return AlterConfigsRequest(resources=[wanted], validate_only=True)


def changed(resource: tuple[ConfigResourceType, str]) -> IncrementalAlterConfigsRequest:
    kind, name = resource
    wanted = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
    return IncrementalAlterConfigsRequest(resources=[wanted], validate_only=True)


def see_topic(answer: MetadataResponse | DescribeTopicPartitionsResponse) -> set[str]:
    return seen("t" in {topic.name for topic in answer.topics})


def see_topic_write(answer: MetadataResponse | DescribeTopicPartitionsResponse) -> set[str]:
    (topic,) = answer.topics
    return bit(topic.topic_authorized_operations, AclOperation.WRITE)


def see_cluster_operations(answer: MetadataResponse | DescribeClusterResponse) -> set[str]:
    return {str(answer.cluster_authorized_operations)}


def see_group_delete(answer: DescribeGroupsResponse | ConsumerGroupDescribeResponse) -> set[str]:
    (group,) = answer.groups
    return bit(group.authorized_operations, AclOperation.DELETE)


def see_group(answer: ListGroupsResponse) -> set[str]:
    return seen("g" in {group.group_id for group in answer.groups})


def see_transaction(answer: ListTransactionsResponse) -> set[str]:
    return seen("x" in {one.transactional_id for one in answer.transaction_states})


def see_transaction_topic(answer: DescribeTransactionsResponse) -> set[str]:
    (one,) = answer.transaction_states
    assert not one.error_code
    return seen("t" in {topic.topic for topic in one.topics})


PROBES: Mapping[str, Probe] = {
    "produce-transaction": made(
        lambda world, version: produce(world, version, transactional=True), 3, 9, 12, 13
    ),
    "produce": made(produce, 3, 9, 12, 13),
    "fetch": made(fetch, 4, 12, 13, 18),
    "fetch-follower": made(
        lambda world, version: fetch(world, version, replica_id=7), 4, 12, 13, 18
    ),
    "list-offsets": probe(
        ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
                )
            ]
        ),
        *(0, 1, 11),
    ),
    "delete-records": probe(
        DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=0)]
                )
            ],
            timeout_ms=1000,
        ),
        *(0, 2),
    ),
    "epochs": probe(
        OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(
                    topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
                )
            ]
        ),
        *(0, 3, 4),
    ),
    "producers": probe(
        DescribeProducersRequest(topics=[DescribeProducersTopic(name="t", partition_indexes=[0])]),
        0,
    ),
    "metadata-all": made(all_metadata, 0, 1, 13, see=see_topic),
    "metadata": probe(metadata("t"), 0, 1, 4, 13),
    "metadata-by-id": made(metadata_by_id, 12, 13),
    "metadata-missing": probe(metadata("absent"), 4, 13),
    "metadata-create": made(creating_metadata, 0, 4, 13),
    "metadata-cluster": probe(
        metadata("none", include_cluster_authorized_operations=True),
        *(8, 10),
        see=see_cluster_operations,
    ),
    "metadata-operations": probe(
        metadata("t", include_topic_authorized_operations=True), 8, 13, see=see_topic_write
    ),
    "partitions-all": probe(DescribeTopicPartitionsRequest(topics=[]), 0, see=see_topic),
    "partitions": probe(
        DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsTopic(name="t")]), 0
    ),
    "partitions-operations": probe(
        DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsTopic(name="t")]),
        0,
        see=see_topic_write,
    ),
    "cluster": probe(
        DescribeClusterRequest(include_cluster_authorized_operations=True),
        *(0, 2),
        see=see_cluster_operations,
    ),
    "coordinator-group": probe(coordinator("g", 0), 0, 3, 4, 6),
    "coordinator-transaction": probe(coordinator("x", 1), 1, 3, 4, 6),
    "coordinator-share": probe(coordinator("g:AAAAAAAAAAAAAAAAAAAAAA:0", 2), 6),
    "commit-group": made(commit, 2, 8, 10),
    "commit": made(commit, 2, 8, 10),
    "offsets-group": made(offsets, 0, 2, 7, 8, 10),
    "offsets": made(offsets, 1, 7, 8, 10),
    "offsets-all": made(all_offsets, 2, 7, 8, 10, see=see_offsets),
    "join": probe(
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        *(4, 6, 9),
    ),
    "heartbeat": probe(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 0, 4),
    "leave": probe(
        LeaveGroupRequest(group_id="g", member_id="m", members=[MemberIdentity(member_id="m")]),
        *(0, 5),
    ),
    "sync": probe(
        SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id="m",
            protocol_type="consumer",
            protocol_name="range",
            assignments=[],
        ),
        *(0, 5),
    ),
    "groups": probe(DescribeGroupsRequest(groups=["g"]), 0, 6),
    "groups-operations": probe(
        DescribeGroupsRequest(groups=["g"], include_authorized_operations=True),
        *(3, 6),
        see=see_group_delete,
    ),
    "list-groups": probe(ListGroupsRequest(), 0, 5, see=see_group),
    "delete-groups": probe(DeleteGroupsRequest(groups_names=["gone"]), 0, 3),
    "delete-offsets-group": probe(
        OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name="t", partitions=[OffsetDeleteRequestPartition(partition_index=7)]
                )
            ],
        ),
        0,
    ),
    "delete-offsets": probe(
        OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name="t", partitions=[OffsetDeleteRequestPartition(partition_index=7)]
                )
            ],
        ),
        0,
    ),
    "consumer-heartbeat": probe(
        ConsumerGroupHeartbeatRequest(group_id="gone", member_id="m", member_epoch=5), 0, 1
    ),
    "consumer-topics": probe(
        ConsumerGroupHeartbeatRequest(
            group_id="gone", member_id="m", member_epoch=5, subscribed_topic_names=["t"]
        ),
        *(0, 1),
    ),
    "consumer-groups": probe(ConsumerGroupDescribeRequest(group_ids=["gone"]), 0, 1),
    "consumer-members": made(of_member, 0, 1),
    "consumer-operations": made(of_member, 0, 1, see=see_group_delete),
    "init-transaction": probe(
        InitProducerIdRequest(transactional_id="y", transaction_timeout_ms=1000), 0, 5
    ),
    "init": probe(InitProducerIdRequest(transaction_timeout_ms=1000), 0, 5),
    "add-transaction": probe(add("t"), 0, 3),
    "add": probe(add("t", "u"), 0, 3),
    "add-batched": probe(
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id="x", producer_id=9, producer_epoch=0, topics=[]
                )
            ]
        ),
        *(4, 5),
    ),
    "add-offsets-transaction": probe(
        AddOffsetsToTxnRequest(transactional_id="x", producer_id=9, producer_epoch=0, group_id="g"),
        *(0, 4),
    ),
    "add-offsets-group": probe(
        AddOffsetsToTxnRequest(transactional_id="x", producer_id=9, producer_epoch=0, group_id="g"),
        *(0, 4),
    ),
    "end": probe(
        EndTxnRequest(transactional_id="y", producer_id=9, producer_epoch=0, committed=True),
        *(0, 5),
    ),
    "markers": probe(
        WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=9,
                    producer_epoch=0,
                    transaction_result=False,
                    topics=[WritableTxnMarkerTopic(name="absent", partition_indexes=[0])],
                    coordinator_epoch=0,
                )
            ]
        ),
        *(0, 2),
    ),
    "commit-transaction": made(commit_in_transaction, 0, 3, 6),
    "commit-transaction-group": made(commit_in_transaction, 0, 3, 6),
    "commit-transaction-topic": made(commit_in_transaction, 0, 3, 6),
    "transactions": probe(DescribeTransactionsRequest(transactional_ids=["x"]), 0),
    "transactions-topics": probe(
        DescribeTransactionsRequest(transactional_ids=["x"]), 0, see=see_transaction_topic
    ),
    "list-transactions": probe(
        ListTransactionsRequest(state_filters=[], producer_id_filters=[]),
        *(0, 2),
        see=see_transaction,
    ),
    "create": made(dropped(creation("made")), 1, 5, 7),
    "create-existing": probe(creation("t"), 1, 7),
    "create-configs": made(dropped(creation("made")), 5, 7),
    "delete": made(deletion, 1, 5, 6),
    "delete-by-id": made(deletion_by_id, 6),
    "add-partitions": probe(
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=2)], timeout_ms=1000, validate_only=True
        ),
        *(0, 3),
    ),
    "configs-topic": probe(described(_TOPIC), 0, 4),
    "configs-group": probe(described(_GROUP), 0, 4),
    "configs-broker": probe(described(_BROKER), 0, 4),
    "configs-logger": probe(described(_LOGGER), 1, 4),
    "configs-metrics": probe(described(_METRICS), 1, 4),
    "alter-topic": probe(altered(_TOPIC), 0, 2),
    "alter-group": probe(altered(_GROUP), 0, 2),
    "alter-broker": probe(altered(_BROKER), 0, 2),
    "alter-metrics": probe(altered(_METRICS), 0, 2),
    "change-topic": probe(changed(_TOPIC), 0, 1),
    "change-group": probe(changed(_GROUP), 0, 1),
    "change-broker": probe(changed(_BROKER), 0, 1),
    "change-logger": probe(changed(_LOGGER), 0, 1),
    "change-metrics": probe(changed(_METRICS), 0, 1),
    "resources": probe(ListConfigResourcesRequest(), 0, 1),
    "quotas": probe(DescribeClientQuotasRequest(components=[]), 0, 1),
    "alter-quotas": probe(
        AlterClientQuotasRequest(
            entries=[
                AlterQuotaEntry(entity=[EntityData(entity_type="user", entity_name="u")], ops=[])
            ],
            validate_only=True,
        ),
        *(0, 1),
    ),
    "users": probe(DescribeUserScramCredentialsRequest(users=[UserName(name="u")]), 0),
    "alter-users": probe(
        AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name="u", mechanism=1)]
        ),
        0,
    ),
    "acls": probe(
        DescribeAclsRequest(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        ),
        *(1, 3),
    ),
    "create-acls": probe(
        CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=2,
                    resource_name="",
                    principal="User:u",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
            ]
        ),
        *(0, 3),
    ),
    "delete-acls": probe(
        DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=2,
                    resource_name_filter="nothing",
                    operation=1,
                    permission_type=1,
                )
            ]
        ),
        *(0, 3),
    ),
    "move-folders": probe(
        AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path="/nowhere", topics=[AlterReplicaLogDirTopic(name="t", partitions=[0])]
                )
            ]
        ),
        *(0, 2),
    ),
    "folders": probe(DescribeLogDirsRequest(topics=None), 3, 5),
    "elect": probe(
        ElectLeadersRequest(topic_partitions=[ElectLeadersTopic(topic="t", partitions=[0])]),
        *(0, 2),
    ),
    "reassign": probe(
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name="t", partitions=[ReassignablePartition(partition_index=0, replicas=None)]
                )
            ]
        ),
        *(0, 1),
    ),
    "reassignments": probe(
        ListPartitionReassignmentsRequest(
            topics=[ListPartitionReassignmentsTopic(name="t", partition_indexes=[0])]
        ),
        0,
    ),
    "features": probe(UpdateFeaturesRequest(feature_updates=[]), 0, 2),
    "unregister": probe(UnregisterBrokerRequest(broker_id=99), 0),
    "quorum": probe(
        DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopic(
                    topic_name="__cluster_metadata",
                    partitions=[DescribeQuorumRequestPartition(partition_index=0)],
                )
            ]
        ),
        *(0, 2),
    ),
}

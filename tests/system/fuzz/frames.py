"""A valid request of each API, with something in every field, and its frame in each version.

None changes much when it succeeds, so that a broker can be asked all of them again and again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

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
from strandline.broker.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
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
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from strandline.broker.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
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
from strandline.broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
)
from strandline.broker.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
)
from strandline.broker.protocol.messages.describe_transactions import DescribeTransactionsRequest
from strandline.broker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersTopic,
)
from strandline.broker.protocol.messages.end_txn import EndTxnRequest
from strandline.broker.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
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
from strandline.broker.protocol.messages.list_transactions import ListTransactionsRequest
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
from strandline.broker.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from strandline.broker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from strandline.broker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from strandline.broker.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from strandline.broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from strandline.broker.protocol.messages.unregister_broker import UnregisterBrokerRequest
from strandline.broker.protocol.messages.update_features import (
    FeatureUpdate,
    UpdateFeaturesRequest,
)
from strandline.broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from strandline.broker.protocol.schema.api import SPECS
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.schema import Request
from tests.system.calls import (
    batch,
    fetch_request,
    fetch_topic,
    frame_of,
    produce_request,
    software,
)

TOPIC = "fuzzed"


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
        DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopic(
                    topic_name="__cluster_metadata",
                    partitions=[DescribeQuorumRequestPartition(partition_index=0)],
                )
            ]
        ),
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
                    entity=[EntityData(entity_type="user", entity_name="nobody")],
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
        CreateDelegationTokenRequest(
            renewers=[CreatableRenewers(principal_type="User", principal_name="a")],
            max_lifetime_ms=1000,
        ),
        RenewDelegationTokenRequest(hmac=b"hmac", renew_period_ms=1000),
        ExpireDelegationTokenRequest(hmac=b"hmac", expiry_time_period_ms=1000),
        DescribeDelegationTokenRequest(
            owners=[DescribeDelegationTokenOwner(principal_type="User", principal_name="a")]
        ),
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
        *transaction_requests(),
    ]


def transaction_requests() -> list[Request]:
    """One of each API of transactions; nobody has the transactional id."""
    added = AddPartitionsToTxnTopic(name=TOPIC, partitions=[0, 1])
    return [
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id="tx",
                    producer_id=77,
                    producer_epoch=0,
                    verify_only=True,
                    topics=[added],
                )
            ],
            transactional_id="tx",
            producer_id=77,
            producer_epoch=0,
            topics=[added],
        ),
        AddOffsetsToTxnRequest(
            transactional_id="tx", producer_id=77, producer_epoch=0, group_id="group"
        ),
        TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id="group",
            producer_id=77,
            producer_epoch=0,
            generation_id_or_member_epoch=1,
            member_id="member",
            group_instance_id="instance",
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=3, committed_metadata="m"
                        )
                    ],
                )
            ],
        ),
        EndTxnRequest(transactional_id="tx", producer_id=77, producer_epoch=0, committed=True),
        WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=77,
                    producer_epoch=0,
                    transaction_result=False,
                    topics=[WritableTxnMarkerTopic(name="no-such-topic", partition_indexes=[0])],
                    coordinator_epoch=1,
                )
            ]
        ),
        DescribeTransactionsRequest(transactional_ids=["tx", "other"]),
        ListTransactionsRequest(
            state_filters=["Ongoing"], producer_id_filters=[77], transactional_id_pattern="t.*"
        ),
    ]


def recorded_frames() -> list[bytes]:
    """A valid frame of each API in each version that is served."""
    known = {request.spec.key: request for request in requests()}
    assert set(known) == set(SPECS), "an API without a frame to mutate"
    return [
        frame_of(known[spec.key], version) for spec in SPECS.values() for version in spec.supported
    ]

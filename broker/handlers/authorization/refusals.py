"""Answers to who lacks a right: of a whole request, and rows for one thing that it names.

They say what Kafka's requests say of an error (`AbstractRequest.getErrorResponse`), and nothing of
whether that thing exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaResult,
)
from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from strandline.broker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from strandline.broker.protocol.messages.alter_user_scram_credentials import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from strandline.broker.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from strandline.broker.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from strandline.broker.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from strandline.broker.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse
from strandline.broker.protocol.messages.describe_producers import (
    DescribeProducersPartition,
    DescribeProducersTopic,
    DescribeProducersTopicResult,
)
from strandline.broker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserScramCredentials,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from strandline.broker.protocol.messages.join_group import JoinGroupResponse
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from strandline.broker.protocol.messages.offset_delete import (
    OffsetDeleteRequestTopic,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from strandline.broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from strandline.broker.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Response


def top_level(
    kind: Callable[..., Response], **empty: object
) -> Callable[[Any, ErrorCode], Response]:
    """Returns what answers with the code alone, and its message where the answer has one."""
    has_message = _has_message(kind)

    def refuse(_request: Any, code: ErrorCode) -> Response:
        message = {"error_message": code.message} if has_message else {}
        return kind(error_code=code, **message, **empty)

    return refuse


def _has_message(kind: Any) -> bool:
    return "error_message" in kind.fields


# --- topics ----------------------------------------------------------------------------------


def list_offsets_topic(topic: ListOffsetsTopic, code: ErrorCode) -> ListOffsetsResponseTopic:
    return ListOffsetsResponseTopic(
        name=topic.name,
        partitions=[
            ListOffsetsResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in topic.partitions
        ],
    )


def delete_records_topic(topic: DeleteRecordsTopic, code: ErrorCode) -> DeleteRecordsTopicResult:
    return DeleteRecordsTopicResult(
        name=topic.name,
        partitions=[
            DeleteRecordsPartitionResult(partition_index=one.partition_index, error_code=code)
            for one in topic.partitions
        ],
    )


def epochs_topic(topic: OffsetForLeaderTopic, code: ErrorCode) -> OffsetForLeaderTopicResult:
    return OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=[
            EpochEndOffset(partition=one.partition, error_code=code) for one in topic.partitions
        ],
    )


def producers_topic(topic: DescribeProducersTopic, code: ErrorCode) -> DescribeProducersTopicResult:
    return DescribeProducersTopicResult(
        name=topic.name,
        partitions=[
            DescribeProducersPartition(
                partition_index=index, error_code=code, error_message=code.message
            )
            for index in topic.partition_indexes
        ],
    )


# --- offsets of groups -----------------------------------------------------------------------


def commit_topic(topic: OffsetCommitRequestTopic, code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in topic.partitions
        ],
    )


def commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[commit_topic(topic, code) for topic in request.topics])


def txn_commit_topic(
    topic: TxnOffsetCommitRequestTopic, code: ErrorCode
) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in topic.partitions
        ],
    )


def txn_commit(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[txn_commit_topic(topic, code) for topic in request.topics]
    )


def offset_delete_topic(
    topic: OffsetDeleteRequestTopic, code: ErrorCode
) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in topic.partitions
        ],
    )


def join(_request: Any, code: ErrorCode) -> JoinGroupResponse:
    # Before v7 the name may not be null.
    return JoinGroupResponse(error_code=code, protocol_name="")


# --- transactions ----------------------------------------------------------------------------


def add_topic(topic: AddPartitionsToTxnTopic, code: ErrorCode) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            for index in topic.partitions
        ],
    )


def markers(request: WriteTxnMarkersRequest, code: ErrorCode) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


# --- administration --------------------------------------------------------------------------


def log_dir_moves(
    request: AlterReplicaLogDirsRequest, code: ErrorCode
) -> AlterReplicaLogDirsResponse:
    wanted: dict[str, dict[int, None]] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index in indexes
                ],
            )
            for name, indexes in wanted.items()
        ]
    )


def elections(request: ElectLeadersRequest, code: ErrorCode) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=code, error_message=code.message)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def reassignments(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=code.message,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=one.partition_index,
                        error_code=code,
                        error_message=code.message,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def ongoing_reassignments(
    request: ListPartitionReassignmentsRequest, code: ErrorCode
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(
        error_code=code,
        error_message=code.message,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    OngoingPartitionReassignment(partition_index=index, replicas=())
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
    )


def quotas(request: AlterClientQuotasRequest, code: ErrorCode) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlterQuotaResult(entity=entry.entity, error_code=code, error_message=code.message)
            for entry in request.entries
        ]
    )


def described_quotas(_request: Any, code: ErrorCode) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=code.message, entries=None)


def described_users(
    request: DescribeUserScramCredentialsRequest, code: ErrorCode
) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(
        error_code=code,
        error_message=code.message,
        results=[
            UserScramCredentials(user=user.name, error_code=code, error_message=code.message)
            for user in request.users or ()
        ],
    )


def altered_users(
    request: AlterUserScramCredentialsRequest, code: ErrorCode
) -> AlterUserScramCredentialsResponse:
    names = [one.name for one in request.deletions] + [one.name for one in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            AlteredScramUser(user=name, error_code=code, error_message=code.message)
            for name in dict.fromkeys(names)
        ]
    )


def created_acls(request: CreateAclsRequest, code: ErrorCode) -> CreateAclsResponse:
    refusal = AclCreationResult(error_code=code, error_message=code.message)
    return CreateAclsResponse(results=[refusal] * len(request.creations))


def deleted_acls(request: DeleteAclsRequest, code: ErrorCode) -> DeleteAclsResponse:
    refusal = DeleteAclsFilterResult(error_code=code, error_message=code.message)
    return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))


def named(kind: type[Any], name_field: str) -> Callable[[Any, ErrorCode], object]:
    """Returns what makes a row of a name and the code, with its message if the row has one."""
    has_message = _has_message(kind)

    def row(item: Any, code: ErrorCode) -> object:
        message = {"error_message": code.message} if has_message else {}
        name = item if isinstance(item, str) else item.name
        return kind(**{name_field: name}, error_code=code, **message)

    return row


def config_row(kind: type[Any]) -> Callable[[Any, ErrorCode], object]:
    """Returns what makes a row of a resource with a configuration."""

    def row(resource: Any, code: ErrorCode) -> object:
        return kind(
            error_code=code,
            error_message=code.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return row

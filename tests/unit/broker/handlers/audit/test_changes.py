"""What is recorded of requests that change something."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from strandline.broker.audit.record import AuditRecord
from strandline.broker.handlers.audit.changes import RECORDED, recorded_handlers
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaEntry,
    AlterQuotaResult,
    EntityData,
    QuotaOperation,
)
from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from strandline.broker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    AlterReplicaLogDirTopicResult,
)
from strandline.broker.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from strandline.broker.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from strandline.broker.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from strandline.broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResult,
    IncrementalConfig,
)
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from strandline.broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from strandline.broker.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from strandline.broker.protocol.messages.update_features import (
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from strandline.broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.broker.security.identity import ClientIdentity
from tests.support.manual_clock import ManualClock

CALLER = RequestContext(api_version=3, client_id="c", caller=ClientIdentity(user="alice"))


def recorded(
    key: ApiKey, request: Request, response: Response, *, late: bool = False
) -> list[dict[str, Any]]:
    """The lines of one request, without what is the same in all."""
    texts: list[str] = []
    record = AuditRecord(texts.append, ManualClock())

    async def wait(_request: Request, _context: RequestContext) -> Response:
        await asyncio.sleep(0)
        return response

    handler = wait if late else (lambda _request, _context: response)
    answer = recorded_handlers({key: handler}, record)[key](request, CALLER)

    async def awaited() -> Response:
        return answer if isinstance(answer, Response) else await answer

    assert asyncio.run(awaited()) is response
    lines = [json.loads(text) for text in texts]
    assert all(line["principal"] == "User:alice" for line in lines)
    known = ("time", "event", "principal", "address", "listener", "request")
    return [{name: line[name] for name in line if name not in known} for line in lines]


def test_a_change_is_recorded_when_its_answer_is_there() -> None:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="a", count=3)], timeout_ms=1
    )
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    response = CreatePartitionsResponse(
        results=[CreatePartitionsTopicResult(name="a", error_code=code)]
    )
    expected = [{"topic": "a", "partitions": 3, "error": "TOPIC_AUTHORIZATION_FAILED"}]
    for late in (False, True):
        assert recorded(ApiKey.CREATE_PARTITIONS, request, response, late=late) == expected
    tried = request.replaced(validate_only=True)
    assert recorded(ApiKey.CREATE_PARTITIONS, tried, response) == []


def test_rules_are_recorded_as_they_are() -> None:
    rule = {
        "principal": "User:bob",
        "host": "*",
        "resource_type": 2,
        "resource": "a",
        "pattern_type": 3,
        "operation": 3,
        "permission": 2,
    }
    made: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "a",
        "principal": "User:bob",
        "host": "*",
        "operation": 3,
        "permission_type": 2,
    }
    create = CreateAclsRequest(creations=[AclCreation(resource_pattern_type=3, **made)])
    added = CreateAclsResponse(results=[AclCreationResult()])
    assert recorded(ApiKey.CREATE_ACLS, create, added) == [{"rule_added": rule, "error": "NONE"}]
    delete = DeleteAclsRequest(
        filters=[DeleteAclsFilter(resource_type_filter=1, operation=1, permission_type=1)] * 2
    )
    removed = DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(matching_acls=[DeleteAclsMatchingAcl(pattern_type=3, **made)]),
            DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST),
        ]
    )
    assert recorded(ApiKey.DELETE_ACLS, delete, removed) == [
        {"rule_removed": rule, "error": "NONE"},
        {"rule_removed": None, "error": "INVALID_REQUEST"},
    ]


def test_quotas_features_groups_and_records_are_recorded() -> None:
    entity = [EntityData(entity_type="user", entity_name=None)]
    operations = [
        QuotaOperation(key="producer_byte_rate", value=5.0),
        QuotaOperation(key="request_percentage", remove=True),
    ]
    quotas = AlterClientQuotasRequest(entries=[AlterQuotaEntry(entity=entity, ops=operations)])
    altered = AlterClientQuotasResponse(entries=[AlterQuotaResult(entity=entity)])
    assert recorded(ApiKey.ALTER_CLIENT_QUOTAS, quotas, altered) == [
        {
            "quotas_of": {"user": None},
            "quotas": {"producer_byte_rate": 5.0, "request_percentage": None},
            "error": "NONE",
        }
    ]
    update = UpdateFeaturesRequest(
        feature_updates=[FeatureUpdate(feature="group.version", max_version_level=1)]
    )
    assert recorded(ApiKey.UPDATE_FEATURES, update, UpdateFeaturesResponse()) == [
        {"feature": "group.version", "level": 1, "error": "NONE"}
    ]
    groups = DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=69)])
    assert recorded(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=["g"]), groups) == [
        {"group": "g", "error": "GROUP_ID_NOT_FOUND"}
    ]
    upto = DeleteRecordsPartition(partition_index=1, offset=9)
    delete = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="a", partitions=[upto])], timeout_ms=1
    )
    gone = DeleteRecordsTopicResult(
        name="a", partitions=[DeleteRecordsPartitionResult(partition_index=1)]
    )
    assert recorded(ApiKey.DELETE_RECORDS, delete, DeleteRecordsResponse(topics=[gone])) == [
        {"topic": "a", "partition": 1, "deleted_up_to": 9, "error": "NONE"}
    ]


def test_a_rule_that_two_filters_match_is_removed_once() -> None:
    rule = DeleteAclsMatchingAcl(
        resource_type=2,
        resource_name="a",
        principal="User:bob",
        host="*",
        operation=3,
        permission_type=2,
    )
    result = DeleteAclsFilterResult(matching_acls=[rule])
    request = DeleteAclsRequest(filters=[])
    response = DeleteAclsResponse(filter_results=[result, result])
    (line,) = recorded(ApiKey.DELETE_ACLS, request, response)
    assert line["rule_removed"]["resource"] == "a"


def test_a_list_that_is_added_to_is_told_from_one_that_is_set() -> None:
    kinds = ConfigOperation
    configs = [
        IncrementalConfig(name="cleanup.policy", config_operation=kinds.APPEND, value="compact"),
        IncrementalConfig(name="retention.ms", config_operation=kinds.DELETE, value=None),
        IncrementalConfig(name="segment.bytes", config_operation=kinds.SET, value="5"),
    ]
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name="a", configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    result = IncrementalAlterConfigsResult(resource_type=2, resource_name="a")
    response = IncrementalAlterConfigsResponse(responses=[result])
    (line,) = recorded(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, response)
    assert line["properties"] == {
        "cleanup.policy": {"append": "compact"},
        "retention.ms": None,
        "segment.bytes": "5",
    }


@pytest.mark.parametrize(
    ("kind", "name", "value", "shown"),
    [
        (8, "root", "DEBUG", "DEBUG"),
        (32, "consumer.session.timeout.ms", "45000", "45000"),
        (4, "listener.name.x.ssl.keystore.key", "secret", "(hidden)"),
        (4, "listener.name.x.plain.sasl.jaas.config", "secret", "(hidden)"),
        (2, "sasl.jaas.config", "secret", "(hidden)"),
    ],
)
def test_values_are_shown_unless_they_may_be_secret(
    kind: int, name: str, value: str, shown: str
) -> None:
    configs = [IncrementalConfig(name=name, config_operation=0, value=value)]
    resource = IncrementalAlterConfigsResource(
        resource_type=kind, resource_name="1", configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    result = IncrementalAlterConfigsResult(resource_type=kind, resource_name="1")
    response = IncrementalAlterConfigsResponse(responses=[result])
    (line,) = recorded(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, response)
    assert line["properties"] == {name: shown}


def test_reassignments_moves_elections_brokers_offsets_and_markers_are_recorded() -> None:
    reassign = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name="a", partitions=[ReassignablePartition(partition_index=1, replicas=[1, 2])]
            )
        ]
    )
    reassigned = AlterPartitionReassignmentsResponse(
        responses=[
            ReassignableTopicResponse(
                name="a", partitions=[ReassignablePartitionResponse(partition_index=1)]
            )
        ]
    )
    at: dict[str, object] = {"topic": "a", "partition": 1}
    assert recorded(ApiKey.ALTER_PARTITION_REASSIGNMENTS, reassign, reassigned) == [
        {**at, "replicas": [1, 2], "error": "NONE"}
    ]
    folder = AlterReplicaLogDir(
        path="/d", topics=[AlterReplicaLogDirTopic(name="a", partitions=[1])]
    )
    moved = AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name="a", partitions=[AlterReplicaLogDirPartitionResult(partition_index=1)]
            )
        ]
    )
    move = AlterReplicaLogDirsRequest(dirs=[folder])
    assert recorded(ApiKey.ALTER_REPLICA_LOG_DIRS, move, moved) == [
        {**at, "folder": "/d", "error": "NONE"}
    ]
    elect = ElectLeadersRequest(topic_partitions=None)
    elected = ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(topic="a", partition_result=[PartitionResult(partition_id=1)])
        ]
    )
    assert recorded(ApiKey.ELECT_LEADERS, elect, elected) == [{**at, "error": "NONE"}]
    gone = UnregisterBrokerRequest(broker_id=9)
    assert recorded(ApiKey.UNREGISTER_BROKER, gone, UnregisterBrokerResponse()) == [
        {"broker": 9, "error": "NONE"}
    ]
    forget = OffsetDeleteRequest(group_id="g", topics=[])
    forgotten = OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name="a", partitions=[OffsetDeleteResponsePartition(partition_index=1)]
            )
        ]
    )
    assert recorded(ApiKey.OFFSET_DELETE, forget, forgotten) == [
        {"offsets_of": "g", **at, "error": "NONE"}
    ]
    end = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=7,
                producer_epoch=0,
                transaction_result=False,
                topics=[WritableTxnMarkerTopic(name="a", partition_indexes=[1])],
                coordinator_epoch=0,
            )
        ]
    )
    ended = WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=7,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name="a", partitions=[WritableTxnMarkerPartitionResult(partition_index=1)]
                    )
                ],
            )
        ]
    )
    assert recorded(ApiKey.WRITE_TXN_MARKERS, end, ended) == [
        {"transaction_of": 7, "committed": False, **at, "error": "NONE"}
    ]


def test_a_change_whose_end_the_broker_does_not_see_is_recorded() -> None:
    """It may be in the metadata log when the broker stops."""
    texts: list[str] = []
    record = AuditRecord(texts.append, ManualClock())

    async def wait(_request: Request, _context: RequestContext) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def stopped() -> None:
        handler = recorded_handlers({ApiKey.DELETE_GROUPS: wait}, record)[ApiKey.DELETE_GROUPS]
        asked = DeleteGroupsRequest(groups_names=["g"])
        task = asyncio.ensure_future(handler(asked, CALLER))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stopped())
    (line,) = map(json.loads, texts)
    assert (line["request"], line["result"]) == ("DeleteGroups", "unknown")


def test_what_changes_nothing_is_not_recorded() -> None:
    response = MetadataResponse(brokers=(), topics=())
    assert recorded(ApiKey.METADATA, MetadataRequest(topics=()), response) == []
    assert ApiKey.PRODUCE not in RECORDED

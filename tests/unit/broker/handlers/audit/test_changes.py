"""What is recorded of requests that change something."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any

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
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from strandline.broker.protocol.messages.update_features import (
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
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
    output = io.StringIO()
    record = AuditRecord(logging.StreamHandler(output), ManualClock())

    async def wait(_request: Request, _context: RequestContext) -> Response:
        await asyncio.sleep(0)
        return response

    handler = wait if late else (lambda _request, _context: response)
    answer = recorded_handlers({key: handler}, record)[key](request, CALLER)

    async def awaited() -> Response:
        return answer if isinstance(answer, Response) else await answer

    assert asyncio.run(awaited()) is response
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
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


def test_what_changes_nothing_is_not_recorded() -> None:
    response = MetadataResponse(brokers=(), topics=())
    assert recorded(ApiKey.METADATA, MetadataRequest(topics=()), response) == []
    assert ApiKey.PRODUCE not in RECORDED

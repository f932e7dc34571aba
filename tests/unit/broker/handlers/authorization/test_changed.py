"""Which denials the checks of changes tell: each that refuses something, and no other."""

from __future__ import annotations

from strandline.broker.authorization.authorizer import Denial
from strandline.broker.handlers.authorization.changed import producer_id, shown_configs
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.init_producer_id import InitProducerIdRequest
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import CLUSTER_NAME, AclOperation, ResourceKind
from tests.unit.broker.authorization.ruled import ALICE, HOST, authorizer_of, rule

WITHOUT_ID = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)


def context(told: list[Denial], *operations: AclOperation) -> RequestContext:
    rules = [rule(one, "t") for one in operations]
    access = authorizer_of(rules, told=told).access(ALICE, HOST)
    return RequestContext(api_version=5, client_id="", access=access)


def test_a_producer_that_gets_no_id_is_told_of() -> None:
    told: list[Denial] = []
    assert producer_id(WITHOUT_ID, context(told)) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    (denial,) = told
    assert (denial.operation, denial.kind, denial.name) == (
        AclOperation.IDEMPOTENT_WRITE,
        ResourceKind.CLUSTER,
        CLUSTER_NAME,
    )
    told.clear()
    assert producer_id(WITHOUT_ID, context(told, AclOperation.WRITE)) is ErrorCode.NONE
    assert told == []


def test_who_creates_a_topic_is_no_intruder_because_its_configuration_stays_hidden() -> None:
    told: list[Denial] = []
    made = CreateTopicsResponse(topics=[CreatableTopicResult(name="t", num_partitions=3)])
    asked = CreateTopicsRequest(topics=[])
    (shown,) = shown_configs(made, asked, context(told, AclOperation.CREATE)).topics
    assert (shown.topic_config_error_code, shown.num_partitions) == (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        -1,
    )
    assert told == []

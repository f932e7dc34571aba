"""Checks of the APIs that change topics and transactions, where one right is not enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS, METADATA_TOPIC
from strandline.broker.handlers.authorization import refusals
from strandline.broker.handlers.authorization.described import may_create
from strandline.broker.handlers.authorization.steps import Answer, Step, then, with_rows
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.services.limits import refuse_flood, refuse_partition_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from strandline.broker.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from strandline.broker.protocol.messages.init_producer_id import InitProducerIdRequest
from strandline.broker.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import AclOperation, ResourceKind
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.model import ZERO_TOPIC_ID, TopicPartition

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
FIRST_DELETION_BY_ID = 6
FIRST_BATCHED_ADD = 4


# --- topics ----------------------------------------------------------------------------------


def created_topic(topic: CreatableTopic, context: RequestContext) -> ErrorCode:
    """The need of each topic of CreateTopics; the handler refuses the metadata log itself."""
    if topic.name == METADATA_TOPIC or may_create(context.access, topic.name):
        return ErrorCode.NONE
    return TOPIC_DENIED


def shown_configs(
    response: CreateTopicsResponse, _request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Masks the configuration of new topics, which are made all the same."""
    return response.replaced(
        topics=[
            topic
            if topic.error_code
            or context.access.shows(AclOperation.DESCRIBE_CONFIGS, ResourceKind.TOPIC, topic.name)
            else topic.replaced(
                topic_config_error_code=TOPIC_DENIED,
                num_partitions=-1,
                replication_factor=-1,
                configs=(),
            )
            for topic in response.topics
        ]
    )


def delete_topics(services: NodeServices) -> Step:
    """The step of DeleteTopics: who may not describe a topic does not learn whether it exists."""

    def step(handler: Handler) -> Handler:
        def guarded(request: DeleteTopicsRequest, context: RequestContext) -> Answer:
            by_state = context.api_version >= FIRST_DELETION_BY_ID
            topics = (
                request.topics
                if by_state
                else [DeleteTopicState(name=name) for name in request.topic_names]
            )
            refuse_flood(len(topics))
            if not services.topic_defaults.deletion_enabled or context.access.shows_cluster(
                AclOperation.DELETE
            ):
                return handler(request, context)
            allowed, denied = _deletable(services, topics, context)
            if not denied:
                return handler(request, context)
            names = [topic.name for topic in allowed]
            rest = {"topics": allowed} if by_state else {"topic_names": names}
            return then(handler(request.replaced(**rest), context), with_rows("responses", denied))

        return guarded

    return step


def _deletable(
    services: NodeServices, topics: Sequence[DeleteTopicState], context: RequestContext
) -> tuple[list[DeleteTopicState], list[DeletableTopicResult]]:
    """Returns the topics that the handler may answer, and answers for the others."""
    access, existing = context.access, services.metadata.image.topics
    times = Counter((topic.name, topic.topic_id) for topic in topics)
    allowed, denied = [], []
    for topic in topics:
        by_id = topic.topic_id != ZERO_TOPIC_ID
        name = services.metadata.topic_name(topic.topic_id) if by_id else topic.name
        is_unclear = times[topic.name, topic.topic_id] > 1 or (by_id and topic.name is not None)
        if name is None or is_unclear:
            allowed.append(topic)
            continue
        is_shown = access.shows(AclOperation.DESCRIBE, ResourceKind.TOPIC, name)
        is_missing = is_shown and name not in existing
        if is_missing or access.may(AclOperation.DELETE, ResourceKind.TOPIC, name):
            allowed.append(topic)
        else:
            denied.append(
                DeletableTopicResult(
                    name=name if is_shown or not by_id else None,
                    topic_id=topic.topic_id,
                    error_code=TOPIC_DENIED,
                    error_message=TOPIC_DENIED.message,
                )
            )
    return allowed, denied


# --- transactions ----------------------------------------------------------------------------


def producer_id(request: InitProducerIdRequest, context: RequestContext) -> ErrorCode:
    """The need of InitProducerId: WRITE to its id, or for none to any topic at all (KIP-679)."""
    access = context.access
    if request.transactional_id is not None:
        if access.may(AclOperation.WRITE, ResourceKind.TRANSACTIONAL_ID, request.transactional_id):
            return ErrorCode.NONE
        return ID_DENIED
    if access.may_somewhere(AclOperation.WRITE, ResourceKind.TOPIC) or access.may_cluster(
        AclOperation.IDEMPOTENT_WRITE
    ):
        return ErrorCode.NONE
    return CLUSTER_DENIED


def add_partitions(services: NodeServices) -> Step:
    """The step of AddPartitionsToTxn: all partitions, or none."""

    def step(handler: Handler) -> Handler:
        def guarded(request: AddPartitionsToTxnRequest, context: RequestContext) -> Answer:
            access = context.access
            if context.api_version >= FIRST_BATCHED_ADD:
                # Sent by brokers, which have looked at the rights of their clients.
                if access.may_cluster(AclOperation.CLUSTER_ACTION):
                    return handler(request, context)
                return AddPartitionsToTxnResponse(error_code=CLUSTER_DENIED)
            refuse_partition_flood(topic.partitions for topic in request.topics)
            if not access.may(
                AclOperation.WRITE, ResourceKind.TRANSACTIONAL_ID, request.transactional_id
            ):
                return AddPartitionsToTxnResponse(
                    results_by_topic=[
                        refusals.add_topic(topic, ID_DENIED) for topic in request.topics
                    ]
                )
            denied = {
                topic.name
                for topic in request.topics
                if not access.may(AclOperation.WRITE, ResourceKind.TOPIC, topic.name)
            }
            if not denied:
                return handler(request, context)
            denied |= INTERNAL_TOPICS
            return AddPartitionsToTxnResponse(
                results_by_topic=[
                    refusals.add_topic(topic, TOPIC_DENIED)
                    if topic.name in denied
                    else _not_added(services, topic)
                    for topic in request.topics
                ]
            )

        return guarded

    return step


def _not_added(
    services: NodeServices, topic: AddPartitionsToTxnTopic
) -> AddPartitionsToTxnTopicResult:
    image = services.metadata.image
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(
                partition_index=index,
                partition_error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if image.partition(TopicPartition(topic.name, index)) is None
                else ErrorCode.OPERATION_NOT_ATTEMPTED,
            )
            for index in topic.partitions
        ],
    )


def described_transactions(
    response: DescribeTransactionsResponse,
    _request: DescribeTransactionsRequest,
    context: RequestContext,
) -> DescribeTransactionsResponse:
    """Leaves out the topics that may not be described."""
    return response.replaced(
        transaction_states=[
            one.replaced(
                topics=[
                    topic
                    for topic in one.topics
                    if context.access.may(AclOperation.DESCRIBE, ResourceKind.TOPIC, topic.topic)
                ]
            )
            for one in response.transaction_states
        ]
    )


async def listed_transactions(
    response: ListTransactionsResponse,
    _request: ListTransactionsRequest,
    context: RequestContext,
) -> ListTransactionsResponse:
    """Leaves out the ids that may not be described."""
    return response.replaced(
        transaction_states=[
            one
            async for one in in_turns(response.transaction_states)
            if context.access.shows(
                AclOperation.DESCRIBE, ResourceKind.TRANSACTIONAL_ID, one.transactional_id
            )
        ]
    )

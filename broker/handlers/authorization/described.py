"""Checks of what describes the cluster: Metadata, DescribeTopicPartitions, DescribeCluster.

A topic that a client may not describe looks the same whether it exists or not. Where a client asks
for all topics, those are left out.

Authorized operations (KIP-430) are the bits of what the client may do; handlers fill in those of
the resource's type.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from strandline.broker.authorization.authorizer import Access
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS
from strandline.broker.handlers.authorization.steps import Answer, Step, then, with_rows
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.services.limits import refuse_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.describe_topic_partitions import (
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
)
from strandline.broker.protocol.messages.metadata import (
    OPERATIONS_UNKNOWN,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Response
from strandline.broker.security.acl import CLUSTER_NAME, AclOperation, ResourceKind
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.model import ZERO_TOPIC_ID

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
FIRST_METADATA_BY_TOPIC_ID = 12
# In v0 an empty list of topics means all of them.
FIRST_METADATA_OF_NO_TOPIC = 1


def only_allowed(operations: int, access: Access, kind: ResourceKind, name: str) -> int:
    """Returns the bits of what is allowed; a number that says nothing as it is."""
    if operations == OPERATIONS_UNKNOWN:
        return operations
    return operations & access.operations(kind, name)


def cluster_operations(operations: int, access: Access) -> int:
    """Returns the bits of the cluster: none for a client that may not describe it."""
    if operations == OPERATIONS_UNKNOWN:
        return operations
    if not access.may_cluster(AclOperation.DESCRIBE):
        return 0
    return operations & access.operations(ResourceKind.CLUSTER, CLUSTER_NAME)


def describe_cluster(
    response: DescribeClusterResponse, _request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """Masks the operations on the cluster."""
    shown = cluster_operations(response.cluster_authorized_operations, context.access)
    return response.replaced(cluster_authorized_operations=shown)


# --- Metadata --------------------------------------------------------------------------------


def metadata(services: NodeServices) -> Step:
    """The step of Metadata."""

    def step(handler: Handler) -> Handler:
        def guarded(request: MetadataRequest, context: RequestContext) -> Answer:
            topics, version = request.topics, context.api_version
            if topics is None or (not topics and version < FIRST_METADATA_OF_NO_TOPIC):
                return then(
                    handler(request, context), lambda response: _all_described(response, context)
                )
            refuse_flood(len(topics))
            allowed, denied = _sorted_out(services, request, topics, context)
            if not allowed:
                context = context._replace(api_version=max(version, FIRST_METADATA_OF_NO_TOPIC))
            return then(
                handler(request.replaced(topics=allowed), context),
                lambda response: _described(response, denied, context),
            )

        return guarded

    return step


async def _all_described(response: MetadataResponse, context: RequestContext) -> MetadataResponse:
    access = context.access
    shown = [
        topic
        async for topic in in_turns(response.topics)
        if topic.name is not None
        and access.shows(AclOperation.DESCRIBE, ResourceKind.TOPIC, topic.name)
    ]
    return _described(response.replaced(topics=shown), (), context)


def _described(
    response: MetadataResponse, denied: Sequence[MetadataResponseTopic], context: RequestContext
) -> MetadataResponse:
    access = context.access
    topics = [
        topic
        if topic.topic_authorized_operations == OPERATIONS_UNKNOWN or topic.name is None
        else topic.replaced(
            topic_authorized_operations=only_allowed(
                topic.topic_authorized_operations, access, ResourceKind.TOPIC, topic.name
            )
        )
        for topic in response.topics
    ]
    return response.replaced(
        topics=[*topics, *denied],
        cluster_authorized_operations=cluster_operations(
            response.cluster_authorized_operations, access
        ),
    )


def _sorted_out(
    services: NodeServices,
    request: MetadataRequest,
    topics: Sequence[MetadataRequestTopic],
    context: RequestContext,
) -> tuple[list[MetadataRequestTopic], list[MetadataResponseTopic]]:
    """Returns the topics that the handler may answer, and answers for the others.

    A topic that is not there yet may need to be created, which is another right.
    """
    access, existing = context.access, services.metadata.image.topics
    creates = request.allow_auto_topic_creation and services.config.topics.auto_creation_enabled
    allowed, denied = [], []
    for topic in {(topic.name, topic.topic_id): topic for topic in topics}.values():
        by_id = topic.name is None or topic.topic_id != ZERO_TOPIC_ID
        name = services.metadata.topic_name(topic.topic_id) if by_id else topic.name
        if name is None or (by_id and context.api_version < FIRST_METADATA_BY_TOPIC_ID):
            # An unknown id, or a request that means nothing.
            allowed.append(topic)
        elif not access.may(AclOperation.DESCRIBE, ResourceKind.TOPIC, name):
            denied.append(
                MetadataResponseTopic(error_code=DENIED, name=None, topic_id=topic.topic_id)
                if by_id
                else MetadataResponseTopic(error_code=DENIED, name=name)
            )
        elif creates and not by_id and name not in existing and not may_create(access, name):
            denied.append(
                MetadataResponseTopic(
                    error_code=DENIED, name=name, is_internal=name in INTERNAL_TOPICS
                )
            )
        else:
            allowed.append(topic)
    return allowed, denied


def may_create(access: Access, topic: str) -> bool:
    """Returns whether a topic may be created: by a right to the cluster, or to its name."""
    return access.shows_cluster(AclOperation.CREATE) or access.may(
        AclOperation.CREATE, ResourceKind.TOPIC, topic
    )


# --- DescribeTopicPartitions -----------------------------------------------------------------


def topic_partitions(services: NodeServices) -> Step:
    """The step of DescribeTopicPartitions: topics that are hidden do not count as its page."""

    def step(handler: Handler) -> Handler:
        def guarded(request: DescribeTopicPartitionsRequest, context: RequestContext) -> Answer:
            refuse_flood(len(request.topics))
            cursor, access = request.cursor, context.access
            first = "" if cursor is None else cursor.topic_name
            named = {topic.name for topic in request.topics}
            if cursor is not None and (
                cursor.partition_index < 0 or (named and first not in named)
            ):
                # The cursor itself is refused, whatever there is.
                return handler(request, context)
            if not named:
                page = min(
                    request.response_partition_limit, services.config.partitions.described_max
                )
                coming = _first_shown(services, access, first, max(page, 1) + 1)
                return _page(handler, request, context, coming)
            denied: list[DescribedTopic] = []
            shown = []
            for name in sorted(name for name in named if name >= first):
                if access.may(AclOperation.DESCRIBE, ResourceKind.TOPIC, name):
                    shown.append(name)
                else:
                    denied.append(DescribedTopic(error_code=DENIED, name=name))
            return then(_of_shown(handler, request, context, shown), with_rows("topics", denied))

        return guarded

    return step


async def _page(
    handler: Handler,
    request: DescribeTopicPartitionsRequest,
    context: RequestContext,
    coming: Awaitable[Sequence[str]],
) -> Response:
    answer = _of_shown(handler, request, context, await coming)
    return answer if isinstance(answer, Response) else await answer


def _of_shown(
    handler: Handler,
    request: DescribeTopicPartitionsRequest,
    context: RequestContext,
    shown: Sequence[str],
) -> Answer:
    if not shown:
        return DescribeTopicPartitionsResponse(topics=())
    cursor = request.cursor
    asked = request.replaced(
        topics=[DescribeTopicPartitionsTopic(name=name) for name in shown],
        cursor=cursor if cursor is not None and cursor.topic_name in shown else None,
    )
    return then(handler(asked, context), lambda response: _masked(response, context.access))


async def _first_shown(services: NodeServices, access: Access, first: str, count: int) -> list[str]:
    """Returns as many topics as a page and the next cursor can name; each has a partition."""
    shown: list[str] = []
    names = sorted(name for name in services.metadata.image.topics if name >= first)
    async for name in in_turns(names):
        if access.shows(AclOperation.DESCRIBE, ResourceKind.TOPIC, name):
            shown.append(name)
            if len(shown) == count:
                break
    return shown


def _masked(
    response: DescribeTopicPartitionsResponse, access: Access
) -> DescribeTopicPartitionsResponse:
    return response.replaced(
        topics=[
            topic.replaced(
                topic_authorized_operations=only_allowed(
                    topic.topic_authorized_operations, access, ResourceKind.TOPIC, topic.name or ""
                )
            )
            for topic in response.topics
        ]
    )

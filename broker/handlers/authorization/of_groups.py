"""Checks of the APIs of groups whose answers have to be looked at: offsets, listings, members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.broker.authorization.authorizer import Access
from strandline.broker.handlers.authorization.described import only_allowed
from strandline.broker.handlers.authorization.steps import Answer, Step, then
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.services.limits import refuse_flood, refuse_partition_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from strandline.broker.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from strandline.broker.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from strandline.broker.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import AclOperation, ResourceKind
from strandline.storage.concurrency.turns import in_turns

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
FIRST_FETCH_WITH_TOP_LEVEL_ERROR = 2
FIRST_FETCH_OF_SEVERAL_GROUPS = 8
FIRST_FETCH_BY_TOPIC_ID = 10
FIRST_BATCHED_FIND_COORDINATOR = 4
FIRST_SHARE_COORDINATOR = 6
HIDDEN_TOPIC = "The client may not describe a topic that a member of the group is assigned."
_GROUP_KEY, _TRANSACTION_KEY, _SHARE_KEY = range(3)


# --- coordinators ----------------------------------------------------------------------------


def find_coordinator(handler: Handler) -> Handler:
    """The step of FindCoordinator: the right to describe what each key names."""

    def guarded(request: FindCoordinatorRequest, context: RequestContext) -> Answer:
        batched = context.api_version >= FIRST_BATCHED_FIND_COORDINATOR
        keys = request.coordinator_keys if batched else (request.key,)
        refuse_flood(len(keys))
        codes = {key: _coordinator_code(key, request.key_type, context) for key in keys}
        denied = [key for key in keys if codes[key] is not ErrorCode.NONE]
        if not denied:
            return handler(request, context)
        if not batched:
            code = codes[request.key]
            return FindCoordinatorResponse(error_code=code, error_message=code.message)
        rows = [
            Coordinator(
                key=key,
                node_id=-1,
                host="",
                port=-1,
                error_code=codes[key],
                error_message=codes[key].message,
            )
            for key in denied
        ]
        allowed = [key for key in keys if codes[key] is ErrorCode.NONE]
        if not allowed:
            return FindCoordinatorResponse(coordinators=rows)
        return then(
            handler(request.replaced(coordinator_keys=allowed), context),
            lambda response: response.replaced(coordinators=[*response.coordinators, *rows]),
        )

    return guarded


def _coordinator_code(key: str, key_type: int, context: RequestContext) -> ErrorCode:
    access = context.access
    if key_type == _GROUP_KEY and not access.may(AclOperation.DESCRIBE, ResourceKind.GROUP, key):
        return GROUP_DENIED
    if key_type == _TRANSACTION_KEY and not access.may(
        AclOperation.DESCRIBE, ResourceKind.TRANSACTIONAL_ID, key
    ):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if (
        key_type == _SHARE_KEY
        and context.api_version >= FIRST_SHARE_COORDINATOR
        and not access.may_cluster(AclOperation.CLUSTER_ACTION)
    ):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.NONE


# --- members ---------------------------------------------------------------------------------


def subscribed_topics(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> ErrorCode:
    """The need of a heartbeat: each topic that it names may be described."""
    names = request.subscribed_topic_names or ()
    refuse_flood(len(names))
    if all(context.access.may(AclOperation.DESCRIBE, ResourceKind.TOPIC, name) for name in names):
        return ErrorCode.NONE
    return TOPIC_DENIED


def described_groups(
    response: DescribeGroupsResponse, _request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """Masks the operations on each group."""
    return response.replaced(groups=[_with_operations(one, context) for one in response.groups])


def described_consumer_groups(
    response: ConsumerGroupDescribeResponse,
    _request: ConsumerGroupDescribeRequest,
    context: RequestContext,
) -> ConsumerGroupDescribeResponse:
    """Masks the operations; a group with a hidden topic shows none of its members."""
    return response.replaced(
        groups=[
            _with_operations(_without_hidden(group, context), context) for group in response.groups
        ]
    )


def _with_operations(group: Any, context: RequestContext) -> Any:
    operations = only_allowed(
        group.authorized_operations, context.access, ResourceKind.GROUP, group.group_id
    )
    return group.replaced(authorized_operations=operations)


def _without_hidden(
    group: DescribedConsumerGroup, context: RequestContext
) -> DescribedConsumerGroup:
    topics = {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    may_describe = [
        context.access.may(AclOperation.DESCRIBE, ResourceKind.TOPIC, name)
        for name in sorted(topics)
    ]
    if all(may_describe):
        return group
    return group.replaced(error_code=TOPIC_DENIED, error_message=HIDDEN_TOPIC, members=())


async def listed_groups(
    response: ListGroupsResponse, _request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse:
    """Leaves out the groups that may not be described."""
    access = context.access
    if access.shows_cluster(AclOperation.DESCRIBE):
        return response
    return response.replaced(
        groups=[
            group
            async for group in in_turns(response.groups)
            if access.shows(AclOperation.DESCRIBE, ResourceKind.GROUP, group.group_id)
        ]
    )


# --- OffsetFetch -----------------------------------------------------------------------------


def offset_fetch(services: NodeServices) -> Step:
    """The step of OffsetFetch: the right to describe each group, and each topic."""

    def step(handler: Handler) -> Handler:
        def guarded(request: OffsetFetchRequest, context: RequestContext) -> Answer:
            if context.api_version < FIRST_FETCH_OF_SEVERAL_GROUPS:
                return _fetch_of_one(handler, request, context)
            return _fetch_of_groups(handler, request, context, services)

        return guarded

    return step


def _fetch_of_one(handler: Handler, request: OffsetFetchRequest, context: RequestContext) -> Answer:
    topics = request.topics
    refuse_partition_flood(topic.partition_indexes for topic in topics or ())
    if not context.access.may(AclOperation.DESCRIBE, ResourceKind.GROUP, request.group_id):
        has_own_code = context.api_version >= FIRST_FETCH_WITH_TOP_LEVEL_ERROR
        return OffsetFetchResponse(
            error_code=GROUP_DENIED if has_own_code else ErrorCode.NONE,
            topics=[_failed(one, GROUP_DENIED) for one in topics or ()],
        )
    if topics is None:
        return then(
            handler(request, context),
            lambda response: response.replaced(topics=_shown(response.topics, context.access)),
        )
    denied = [
        topic
        for topic in topics
        if not context.access.may(AclOperation.DESCRIBE, ResourceKind.TOPIC, topic.name)
    ]
    if not denied:
        return handler(request, context)
    hidden = {topic.name for topic in denied}
    rows = [_failed(topic, TOPIC_DENIED) for topic in denied]
    return then(
        handler(
            request.replaced(topics=[one for one in topics if one.name not in hidden]), context
        ),
        lambda response: response.replaced(topics=[*response.topics, *rows]),
    )


def _fetch_of_groups(
    handler: Handler, request: OffsetFetchRequest, context: RequestContext, services: NodeServices
) -> Answer:
    refuse_flood(len(request.groups))
    refuse_partition_flood(
        topic.partition_indexes for group in request.groups for topic in group.topics or ()
    )
    access = context.access
    by_id = context.api_version >= FIRST_FETCH_BY_TOPIC_ID
    allowed: list[OffsetFetchRequestGroup] = []
    denied: list[OffsetFetchResponseGroup] = []
    # Rows of each allowed group.
    hidden: list[list[OffsetFetchResponseTopic]] = []
    for group in request.groups:
        if not access.may(AclOperation.DESCRIBE, ResourceKind.GROUP, group.group_id):
            denied.append(
                OffsetFetchResponseGroup(group_id=group.group_id, error_code=GROUP_DENIED)
            )
            continue
        shown, rows = [], []
        for topic in group.topics or ():
            name = services.metadata.topic_name(topic.topic_id) if by_id else topic.name
            if name is None or access.may(AclOperation.DESCRIBE, ResourceKind.TOPIC, name):
                shown.append(topic)
            else:
                rows.append(_failed(topic, TOPIC_DENIED))
        allowed.append(group if group.topics is None else group.replaced(topics=shown))
        hidden.append(rows)

    def merged(response: OffsetFetchResponse) -> OffsetFetchResponse:
        groups = [
            _merged(asked, group, rows, context.access, services)
            for asked, group, rows in zip(allowed, response.groups, hidden, strict=True)
        ]
        return response.replaced(groups=[*groups, *denied])

    return then(handler(request.replaced(groups=allowed), context), merged)


def _merged(
    asked: OffsetFetchRequestGroup,
    group: OffsetFetchResponseGroup,
    rows: Sequence[OffsetFetchResponseTopic],
    access: Access,
    services: NodeServices,
) -> OffsetFetchResponseGroup:
    if group.error_code:
        return group
    if asked.topics is None:
        return group.replaced(topics=_shown(group.topics, access))
    return group.replaced(topics=[*group.topics, *rows]) if rows else group


def _shown(
    topics: Sequence[OffsetFetchResponseTopic], access: Access
) -> list[OffsetFetchResponseTopic]:
    return [
        topic
        for topic in topics
        if access.may(AclOperation.DESCRIBE, ResourceKind.TOPIC, topic.name)
    ]


def _failed(
    topic: OffsetFetchRequestTopic | OffsetFetchRequestTopics, code: ErrorCode
) -> OffsetFetchResponseTopic:
    partitions = [
        OffsetFetchResponsePartition(partition_index=index, error_code=code)
        for index in topic.partition_indexes
    ]
    if isinstance(topic, OffsetFetchRequestTopic):
        return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)
    return OffsetFetchResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)

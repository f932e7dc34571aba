"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).

ConsumerGroupHeartbeat  0-1   1 regular expressions; the member makes its own id
ConsumerGroupDescribe   0-1   1 member type

`coordination/consumer/decisions.py` decides on heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.coordination.groups.group_coordinator import GroupCoordinator
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.model.consumer_messages import (
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    DescribedConsumer,
    Partitions,
)
from strandline.broker.handlers.services.authorized_operations import ALL_OF_A_GROUP
from strandline.broker.handlers.services.limits import clipped, refuse_flood, refuse_partition_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.consumer_group_describe import (
    AssignedTopicPartitions,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMember,
    ConsumerMemberType,
    DescribedConsumerGroup,
    MemberAssignment,
)
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
from strandline.broker.protocol.messages.metadata import OPERATIONS_UNKNOWN
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import AclOperation, ResourceKind
from strandline.storage.model import TopicId

FIRST_HEARTBEAT_OF_A_MEMBER_WITH_ID = 1


class ConsumerGroupHandlers:
    """Handlers of the KIP-848 APIs: decode, ask the coordinator, encode."""

    def __init__(self, services: Services, coordinator: GroupCoordinator) -> None:
        self._metadata = services.metadata
        self._coordinator = coordinator

    async def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        refuse_flood(len(request.subscribed_topic_names or ()))
        refuse_partition_flood(topic.partitions for topic in request.topic_partitions or ())
        try:
            if context.api_version >= FIRST_HEARTBEAT_OF_A_MEMBER_WITH_ID and not request.member_id:
                raise CoordinatorFault(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
            answer = await self._coordinator.consumer_heartbeat(_heartbeat_of(request, context))
        except CoordinatorFault as fault:
            return ConsumerGroupHeartbeatResponse(
                error_code=fault.error_code,
                error_message=clipped(fault.message or fault.error_code.message),
            )
        return ConsumerGroupHeartbeatResponse(
            member_id=answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval_ms=answer.heartbeat_interval_ms,
            assignment=None
            if answer.assignment is None
            else HeartbeatAssignment(
                topic_partitions=[
                    HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(found))
                    for topic_id, found in answer.assignment.items()
                ]
            ),
        )

    async def describe(
        self, request: ConsumerGroupDescribeRequest, _context: RequestContext
    ) -> ConsumerGroupDescribeResponse:
        refuse_flood(len(request.group_ids))
        operations = ALL_OF_A_GROUP if request.include_authorized_operations else OPERATIONS_UNKNOWN
        return ConsumerGroupDescribeResponse(
            groups=[await self._describe(group_id, operations) for group_id in request.group_ids]
        )

    async def _describe(self, group_id: str, operations: int) -> DescribedConsumerGroup:
        try:
            description = await self._coordinator.describe_consumers(group_id)
        except CoordinatorFault as fault:
            return DescribedConsumerGroup(
                group_id=group_id,
                error_code=fault.error_code,
                error_message=clipped(fault.message or fault.error_code.message),
            )
        return _described(description, self._metadata.image, operations)


def _heartbeat_of(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerHeartbeat:
    owned: dict[TopicId, frozenset[int]] | None = None
    if request.topic_partitions is not None:
        owned = {entry.topic_id: frozenset(entry.partitions) for entry in request.topic_partitions}
    return ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=request.subscribed_topic_names,
        topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=owned,
        client_id=context.client_id,
        # Kafka's form of an address without a name.
        client_host=f"/{context.caller.address}",
        shows_topic=partial(context.access.shows, AclOperation.DESCRIBE, ResourceKind.TOPIC),
    )


def _described(
    group: ConsumerGroupDescription, image: MetadataImage, operations: int
) -> DescribedConsumerGroup:
    names = {
        topic_id: topic.name
        for member in group.members
        for topic_id in (*member.assigned, *member.target)
        if (topic := image.topics_by_id.get(topic_id)) is not None
    }
    return DescribedConsumerGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_member(member, names) for member in group.members],
        authorized_operations=operations,
    )


def _member(member: DescribedConsumer, names: Mapping[TopicId, str]) -> ConsumerGroupMember:
    subscription = member.subscription
    return ConsumerGroupMember(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=subscription.topic_names,
        subscribed_topic_regex=subscription.topic_regex or None,
        assignment=_assignment(member.assigned, names),
        target_assignment=_assignment(member.target, names),
        member_type=(
            ConsumerMemberType.CONSUMER
            if subscription.classic is None
            else ConsumerMemberType.CLASSIC
        ),
    )


def _assignment(partitions: Partitions, names: Mapping[TopicId, str]) -> MemberAssignment:
    """Converts to names; leaves out deleted topics, as Kafka does."""
    return MemberAssignment(
        topic_partitions=[
            AssignedTopicPartitions(
                topic_id=topic_id, topic_name=names[topic_id], partitions=sorted(found)
            )
            for topic_id, found in partitions.items()
            if topic_id in names
        ]
    )

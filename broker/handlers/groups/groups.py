"""Classic group APIs: membership, and the admin requests for groups of either protocol.

JoinGroup       0-9   1 rebalance timeout, 4 new members rejoin by id (KIP-394), 5 static members,
                      6 flexible, 7 protocol type and nullable name, 8 reason, 9 skip assignment
SyncGroup       0-5   3 static members, 4 flexible, 5 protocol type and name
Heartbeat       0-4   3 static members, 4 flexible
LeaveGroup      0-5   3 several members at once, 4 flexible, 5 reason
ListGroups      0-5   3 flexible, 4 states, 5 types
DescribeGroups  0-6   3 authorized operations, 4 static members, 5 flexible, 6 GROUP_ID_NOT_FOUND
DeleteGroups    0-3   2 flexible, 3 an error message

JoinGroup and SyncGroup wait for other members; all decisions are in `coordination/`. The new
protocol's own APIs are in `consumer_groups.py`; a group of that protocol may have members of this
one.

Where we differ from Kafka: a refused join leaves no empty group behind; and when a member repeats a
request while its first one still waits, the first one is answered REBALANCE_IN_PROGRESS, where
Kafka never answers it.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.consumer.consumer_group import ConsumerGroup
from strandline.broker.coordination.groups.group_coordinator import GroupCoordinator
from strandline.broker.coordination.model.classic_messages import (
    CoordinatorFault,
    GroupDescription,
    JoinRequest,
    LeavingMember,
    MemberProtocol,
    SyncRequest,
)
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.groups.consumer_groups import ConsumerGroupHandlers
from strandline.broker.handlers.groups.group_offsets import GroupOffsetHandlers
from strandline.broker.handlers.services.authorized_operations import ALL_OF_A_GROUP
from strandline.broker.handlers.services.limits import PARTITIONS_MAX, clipped, refuse_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from strandline.broker.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from strandline.broker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from strandline.broker.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from strandline.broker.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from strandline.broker.protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from strandline.broker.protocol.messages.metadata import OPERATIONS_UNKNOWN
from strandline.broker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode

FIRST_JOIN_WITH_REBALANCE_TIMEOUT = 1
FIRST_JOIN_THAT_NEEDS_MEMBER_ID = 4
FIRST_JOIN_WITH_NULLABLE_PROTOCOL = 7
FIRST_JOIN_THAT_SKIPS_ASSIGNMENT = 9
FIRST_BATCHED_LEAVE = 3
FIRST_SYNC_THAT_NAMES_ITS_PROTOCOL = 5
FIRST_DESCRIBE_THAT_MISSES_GROUPS = 6

STATE_OF_MISSING_GROUPS = "Dead"


def make_group_handlers(
    services: Services, coordinator: GroupCoordinator
) -> Mapping[ApiKey, Handler]:
    """Handlers of all APIs of groups and their offsets."""
    groups = GroupHandlers(coordinator)
    consumers = ConsumerGroupHandlers(services, coordinator)
    offsets = GroupOffsetHandlers(services, coordinator)
    return {
        ApiKey.JOIN_GROUP: groups.join_group,
        ApiKey.SYNC_GROUP: groups.sync_group,
        ApiKey.HEARTBEAT: groups.heartbeat,
        ApiKey.LEAVE_GROUP: groups.leave_group,
        ApiKey.LIST_GROUPS: groups.list_groups,
        ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
        ApiKey.DELETE_GROUPS: groups.delete_groups,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: consumers.heartbeat,
        ApiKey.CONSUMER_GROUP_DESCRIBE: consumers.describe,
        ApiKey.OFFSET_COMMIT: offsets.offset_commit,
        ApiKey.OFFSET_FETCH: offsets.offset_fetch,
        ApiKey.OFFSET_DELETE: offsets.offset_delete,
    }


class GroupHandlers:
    """Handlers of the group APIs: decode, ask the coordinator, encode."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    # --- members -----------------------------------------------------------------------------

    async def join_group(
        self, request: JoinGroupRequest, context: RequestContext
    ) -> JoinGroupResponse:
        refuse_flood(len(request.protocols))
        try:
            answer = await self._coordinator.join(request.group_id, _join_of(request, context))
        except CoordinatorFault as fault:
            return JoinGroupResponse(
                error_code=fault.error_code,
                member_id=request.member_id,
                protocol_name=_protocol_name(None, context.api_version),
            )
        return JoinGroupResponse(
            error_code=answer.error_code,
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=_protocol_name(answer.protocol_name, context.api_version),
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=[
                JoinGroupResponseMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    metadata=member.metadata,
                )
                for member in answer.members
            ],
        )

    async def sync_group(
        self, request: SyncGroupRequest, context: RequestContext
    ) -> SyncGroupResponse:
        refuse_flood(len(request.assignments), PARTITIONS_MAX)
        if context.api_version >= FIRST_SYNC_THAT_NAMES_ITS_PROTOCOL and (
            request.protocol_type is None or request.protocol_name is None
        ):
            # Nullable only so that older versions can be decoded into it (KIP-559).
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        wanted = SyncRequest(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            # Copies: the request's buffer is reused while this waits.
            assignments={a.member_id: bytes(a.assignment) for a in request.assignments},
        )
        try:
            answer = await self._coordinator.sync(request.group_id, wanted)
        except CoordinatorFault as fault:
            return SyncGroupResponse(error_code=fault.error_code)
        return SyncGroupResponse(
            error_code=answer.error_code,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignment=answer.assignment,
        )

    async def heartbeat(
        self, request: HeartbeatRequest, _context: RequestContext
    ) -> HeartbeatResponse:
        code = await self._coordinator.heartbeat(
            request.group_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation=request.generation_id,
        )
        return HeartbeatResponse(error_code=code)

    async def leave_group(
        self, request: LeaveGroupRequest, context: RequestContext
    ) -> LeaveGroupResponse:
        refuse_flood(len(request.members))
        is_batched = context.api_version >= FIRST_BATCHED_LEAVE
        leaving = (
            [
                LeavingMember(
                    member_id=member.member_id, group_instance_id=member.group_instance_id
                )
                for member in request.members
            ]
            if is_batched
            else [LeavingMember(member_id=request.member_id)]
        )
        try:
            results = await self._coordinator.leave(request.group_id, leaving)
        except CoordinatorFault as fault:
            return LeaveGroupResponse(error_code=fault.error_code)
        if not is_batched:
            return LeaveGroupResponse(error_code=results[0].error_code)
        return LeaveGroupResponse(
            members=[
                MemberResponse(
                    member_id=result.member_id,
                    group_instance_id=result.group_instance_id,
                    error_code=result.error_code,
                )
                for result in results
            ]
        )

    # --- operators ---------------------------------------------------------------------------

    async def list_groups(
        self, request: ListGroupsRequest, _context: RequestContext
    ) -> ListGroupsResponse:
        states = {state.strip().lower() for state in request.states_filter}
        kinds = {kind.strip().lower() for kind in request.types_filter}
        try:
            found = await self._coordinator.read_groups(_listed)
        except CoordinatorFault as fault:
            return ListGroupsResponse(error_code=fault.error_code)
        return ListGroupsResponse(
            groups=[
                group
                for group in found
                if (not states or group.group_state.lower() in states)
                and (not kinds or group.group_type.lower() in kinds)
            ]
        )

    async def describe_groups(
        self, request: DescribeGroupsRequest, context: RequestContext
    ) -> DescribeGroupsResponse:
        refuse_flood(len(request.groups))
        operations = ALL_OF_A_GROUP if request.include_authorized_operations else OPERATIONS_UNKNOWN
        return DescribeGroupsResponse(
            groups=[
                await self._describe(group_id, context.api_version, operations)
                for group_id in request.groups
            ]
        )

    async def _describe(self, group_id: str, version: int, operations: int) -> DescribedGroup:
        missing = f"Group {group_id} not found."
        try:
            group = await self._coordinator.describe(group_id)
        except CoordinatorFault as fault:
            if fault.error_code is not ErrorCode.GROUP_ID_NOT_FOUND:
                return DescribedGroup(group_id=group_id, error_code=fault.error_code)
            # A KIP-848 group, for which there is ConsumerGroupDescribe.
            group, missing = None, fault.message or missing
        if group is not None:
            return _described(group, operations)
        if version < FIRST_DESCRIBE_THAT_MISSES_GROUPS:
            return DescribedGroup(
                group_id=group_id,
                group_state=STATE_OF_MISSING_GROUPS,
                authorized_operations=operations,
            )
        return DescribedGroup(
            group_id=group_id,
            group_state=STATE_OF_MISSING_GROUPS,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=clipped(missing),
        )

    async def delete_groups(
        self, request: DeleteGroupsRequest, _context: RequestContext
    ) -> DeleteGroupsResponse:
        refuse_flood(len(request.groups_names))
        # A repeated group is deleted, and answered, once.
        return DeleteGroupsResponse(
            results=[
                await self._deleted(group_id) for group_id in dict.fromkeys(request.groups_names)
            ]
        )

    async def _deleted(self, group_id: str) -> DeletableGroupResult:
        code = await self._coordinator.delete(group_id)
        return DeletableGroupResult(
            group_id=group_id,
            error_code=code,
            error_message=None if code is ErrorCode.NONE else code.message,
        )


def _join_of(request: JoinGroupRequest, context: RequestContext) -> JoinRequest:
    version = context.api_version
    # Copies: the request's buffer is reused while this waits. A repeated protocol counts once, as
    # in Kafka.
    protocols = {protocol.name: bytes(protocol.metadata) for protocol in request.protocols}
    return JoinRequest(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id,
        # Kafka's form of an address without a name.
        client_host=f"/{context.caller.address}",
        protocol_type=request.protocol_type,
        protocols=tuple(MemberProtocol(name, metadata) for name, metadata in protocols.items()),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms
            if version >= FIRST_JOIN_WITH_REBALANCE_TIMEOUT
            else request.session_timeout_ms
        ),
        needs_member_id=version >= FIRST_JOIN_THAT_NEEDS_MEMBER_ID,
        can_skip_assignment=version >= FIRST_JOIN_THAT_SKIPS_ASSIGNMENT,
    )


def _protocol_name(name: str | None, version: int) -> str | None:
    """Returns the name as this version has it: before v7 an empty text stands for null."""
    return (name or None) if version >= FIRST_JOIN_WITH_NULLABLE_PROTOCOL else (name or "")


def _listed(group: Group | ConsumerGroup) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state.value,
        group_type=group.kind,
    )


def _described(group: GroupDescription, operations: int) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        authorized_operations=operations,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )

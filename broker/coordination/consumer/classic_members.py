"""The four requests of the classic protocol, for classic members of a KIP-848 group.

    JoinGroup    is a heartbeat with the subscription and the partitions that the member owns
    SyncGroup    returns its current assignment
    Heartbeat    returns REBALANCE_IN_PROGRESS while the group is ahead of the member
    LeaveGroup   fences it, and also members of the new protocol that an administrator removes

There is no leader and no waiting: the server assigns, and answers a join at once. A cooperative
member revokes partitions between two joins, an eager one joins without any.
"""

from __future__ import annotations

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.coordination.consumer.heartbeats import (
    DecisionContext,
    check_identity,
    check_room,
    reconcile_member,
    update_member,
)
from strandline.broker.coordination.consumer.migration import encode_partitions, partitions_by_id
from strandline.broker.coordination.consumer.roster import Draft, Roster
from strandline.broker.coordination.model.classic_messages import (
    NO_MEMBER_ID,
    CoordinatorFault,
    JoinRequest,
    LeavingMember,
    SyncRequest,
)
from strandline.broker.coordination.model.consumer_messages import (
    ClassicMembership,
    CurrentAssignment,
    MemberState,
    MemberSubscription,
    without_epochs,
)
from strandline.broker.protocol.formats.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    decode_subscription,
)
from strandline.broker.protocol.schema.errors import ErrorCode, MalformedRequest


def check_join(roster: Roster, request: JoinRequest, size_max: int) -> None:
    """Raises CoordinatorFault for a member that cannot join this group."""
    check_room(roster, request.member_id, size_max)
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not _is_supported(roster, request):
        raise CoordinatorFault(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _is_supported(roster: Roster, request: JoinRequest) -> bool:
    """Whether all classic members share a protocol of the request, in case only they remain."""
    lists = [
        {name for name, _ in member.classic.protocols}
        for member in roster.subscriptions.values()
        if member.classic is not None
    ]
    return any(all(name in names for names in lists) for name, _ in request.protocols)


def join(
    draft: Draft, request: JoinRequest, member_id: str, occasion: DecisionContext
) -> CurrentAssignment:
    """Returns the member's assignment. Call `check_join` first. Raises CoordinatorFault."""
    wanted = _decode(request)
    instance_id = request.group_instance_id
    bound = draft.roster.static_member_id(instance_id)
    if instance_id is not None:
        if request.member_id != NO_MEMBER_ID:
            check_identity(draft.roster, member_id, instance_id)
        elif bound is not None:
            draft.replace_member(bound, member_id)
    before = draft.roster.subscriptions.get(member_id)
    subscription = MemberSubscription(
        instance_id=instance_id,
        rack_id=wanted.rack_id or (None if before is None else before.rack_id),
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None if before is None else before.server_assignor,
        topic_names=tuple(sorted(set(wanted.topics))),
        classic=ClassicMembership(
            session_timeout_ms=request.session_timeout_ms, protocols=request.protocols
        ),
    )
    has_new_subscription = update_member(draft, member_id, subscription, occasion)
    return reconcile_member(
        draft,
        member_id,
        occasion.image,
        partitions_by_id(wanted.owned_partitions, occasion.image),
        has_new_subscription=has_new_subscription,
    )


def _decode(request: JoinRequest) -> ConsumerProtocolSubscription:
    """All protocols of a consumer carry the same topics; the first one is as good as any."""
    try:
        return decode_subscription(request.protocols[0].metadata)
    except MalformedRequest as error:
        raise CoordinatorFault(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error


def classic_membership(
    roster: Roster, member_id: str, instance_id: str | None, generation: int
) -> ClassicMembership:
    """Returns the classic metadata of a member. Raises CoordinatorFault."""
    check_identity(roster, member_id, instance_id)
    membership = roster.subscriptions[member_id].classic
    if membership is None:
        raise CoordinatorFault(ErrorCode.UNKNOWN_MEMBER_ID)
    if roster.current_of(member_id).epoch != generation:
        raise CoordinatorFault(ErrorCode.ILLEGAL_GENERATION)
    return membership


def protocol_name(membership: ClassicMembership) -> str:
    """Returns the protocol name for the member's answer; members need not agree on it."""
    return membership.protocols[0].name


def sync(roster: Roster, request: SyncRequest, image: MetadataImage) -> bytes:
    """Returns the assignment of the member. Raises CoordinatorFault."""
    membership = classic_membership(
        roster, request.member_id, request.group_instance_id, request.generation
    )
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
        request.protocol_name not in (None, protocol_name(membership))
    ):
        raise CoordinatorFault(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    current = roster.current_of(request.member_id)
    # A member that revokes partitions has joined already; it is told to rejoin afterwards.
    if roster.epoch > current.epoch and current.state is not MemberState.UNREVOKED:
        raise CoordinatorFault(ErrorCode.REBALANCE_IN_PROGRESS)
    assigned = without_epochs(current.assigned)
    return encode_partitions(assigned, membership.protocols[0].metadata, image)


def must_join_again(roster: Roster, member_id: str) -> bool:
    """Returns whether a heartbeat is answered with REBALANCE_IN_PROGRESS."""
    current = roster.current_of(member_id)
    return (
        current.epoch < roster.epoch
        or current.state is MemberState.UNREVOKED
        or (current.state is MemberState.UNRELEASED and not roster.is_waiting_for_others(member_id))
    )


def leaving_member_id(roster: Roster, leaving: LeavingMember) -> str:
    """The id of a leaving member; administrators may name its instance. Raises CoordinatorFault."""
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if member_id == NO_MEMBER_ID:
        member_id = roster.static_member_id(instance_id) or NO_MEMBER_ID
    check_identity(roster, member_id, instance_id)
    return member_id

"""Online migration of a group between the classic and the consumer protocol.

    classic  ->  consumer    a member of the new protocol joins a classic group of consumers: its
                             members become *classic members* of a new group, with their assignments
    consumer ->  classic     the last member of the new protocol has left, and classic ones remain

Both are written as records: tombstones of one group, then the other. Offsets belong to the group id
and stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.classic.members import Member
from strandline.broker.coordination.consumer.roster import Draft, Roster
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.model.consumer_messages import (
    ClassicMembership,
    ConsumerRules,
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    MemberSubscription,
    Partitions,
    TargetEpochRecord,
    TargetRecord,
    with_assignment_epoch,
)
from strandline.broker.protocol.formats.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    CONSUMER_PROTOCOL_VERSION_MAX,
    ConsumerProtocolAssignment,
    ConsumerTopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from strandline.broker.protocol.formats.offsets_topic import GroupMember, GroupMetadataValue
from strandline.broker.protocol.formats.versioned import read_version
from strandline.broker.protocol.schema.errors import ErrorCode, MalformedRequest

# --- upgrade ---------------------------------------------------------------------------------


def may_upgrade(group: Group, rules: ConsumerRules) -> bool:
    """Whether this classic group, which has members, may be upgraded to the new protocol."""
    return (
        rules.migration.may_upgrade
        and group.uses_consumer_protocol
        and group.member_count <= rules.size_max
    )


def upgrade(draft: Draft, group: Group, image: MetadataImage) -> None:
    """Adds the members of a classic group to the (empty) draft's group.

    Raises CoordinatorFault if their metadata cannot be decoded.
    """
    group_id, epoch = group.group_id, group.generation
    try:
        members = [
            (member.member_id, _subscription_of(member, group.protocol_name), _held(member, image))
            for member in group.members
        ]
    except MalformedRequest as error:
        raise CoordinatorFault(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade the classic group {group_id} to consumer group because the embedded"
            " consumer protocol is malformed.",
        ) from error
    for member_id, subscription, _ in members:
        draft.emit(MemberRecord(group_id, member_id, subscription))
    draft.emit(EpochRecord(group_id, epoch))
    for member_id, _, held in members:
        draft.emit(TargetRecord(group_id, member_id, held))
    draft.emit(TargetEpochRecord(group_id, epoch))
    for member_id, _, held in members:
        current = CurrentAssignment(
            epoch=epoch, previous_epoch=epoch, assigned=with_assignment_epoch(held, epoch)
        )
        draft.emit(CurrentRecord(group_id, member_id, current))


def _subscription_of(member: Member, protocol_name: str | None) -> MemberSubscription:
    metadata = member.metadata_for(protocol_name) or member.protocols[0].metadata
    wanted = decode_subscription(metadata)
    return MemberSubscription(
        instance_id=member.group_instance_id,
        rack_id=wanted.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topic_names=tuple(sorted(set(wanted.topics))),
        classic=ClassicMembership(
            session_timeout_ms=member.session_timeout_ms, protocols=member.protocols
        ),
    )


def _held(member: Member, image: MetadataImage) -> Partitions:
    """Returns the member's assignment, reduced to existing topics."""
    if not member.assignment:
        return {}
    return partitions_by_id(decode_assignment(member.assignment).assigned_partitions, image)


def partitions_by_id(named: Iterable[ConsumerTopicPartitions], image: MetadataImage) -> Partitions:
    """Converts to topic ids; drops topics that do not exist."""
    return {
        topic.topic_id: frozenset(entry.partitions)
        for entry in named
        if (topic := image.topics.get(entry.topic)) is not None and entry.partitions
    }


# --- downgrade -------------------------------------------------------------------------------


def may_downgrade(roster: Roster, rules: ConsumerRules) -> bool:
    """Returns whether the remaining members of this group may continue as a classic group."""
    members = roster.subscriptions.values()
    return (
        bool(members)
        and rules.migration.may_downgrade
        and all(member.classic is not None for member in members)
        and len(members) <= rules.classic_size_max
    )


def classic_snapshot(
    roster: Roster, image: MetadataImage, *, generation: int, now_ms: int
) -> GroupMetadataValue:
    """Returns the classic members as a classic group, with their targets as assignments."""
    protocol_name = _elected_protocol(roster)
    members = []
    for member_id, member in roster.subscriptions.items():
        assert member.classic is not None, member
        metadata = dict(member.classic.protocols)[protocol_name]
        members.append(
            GroupMember(
                member_id=member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                metadata=metadata,
                assignment=encode_partitions(roster.target_of(member_id), metadata, image),
            )
        )
    return GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=generation,
        protocol_name=protocol_name,
        leader=members[0].member_id,
        state_since_ms=now_ms,
        members=tuple(members),
    )


def _elected_protocol(roster: Roster) -> str:
    """Returns the protocol that most classic members prefer, among those that all support."""
    lists = [
        [name for name, _ in member.classic.protocols]
        for member in roster.subscriptions.values()
        if member.classic is not None
    ]
    common = set(lists[0]).intersection(*lists[1:])
    votes = Counter(next(name for name in names if name in common) for names in lists)
    return votes.most_common(1)[0][0]


def encode_partitions(partitions: Partitions, metadata: bytes, image: MetadataImage) -> bytes:
    """Encodes an assignment for a classic member, in the version of its own metadata."""
    try:
        version = min(max(read_version(memoryview(metadata)), 0), CONSUMER_PROTOCOL_VERSION_MAX)
    except MalformedRequest:
        version = 0
    return encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerTopicPartitions(topic=topic.name, partitions=sorted(found))
                for topic_id, found in partitions.items()
                if (topic := image.topics_by_id.get(topic_id)) is not None
            ]
        ),
        version,
    )

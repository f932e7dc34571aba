"""Converts the records of KIP-848 groups to and from Kafka's formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from strandline.broker.coordination.model.classic_messages import MemberProtocol
from strandline.broker.coordination.model.consumer_messages import (
    JOIN_EPOCH,
    ClassicMembership,
    ConsumerRecord,
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    HeldPartitions,
    MemberRecord,
    MemberState,
    MemberSubscription,
    Partitions,
    RegexRecord,
    ResolvedRegex,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadataRecord,
)
from strandline.broker.protocol.formats.consumer_group_records import (
    CURRENT_ASSIGNMENT_TYPE,
    GROUP_EPOCH_TYPE,
    MEMBER_METADATA_TYPE,
    RESOLVED_REGEX_TYPE,
    TARGET_ASSIGNMENT_TYPE,
    TARGET_EPOCH_TYPE,
    TOPIC_METADATA_TYPE,
    AssignedPartitions,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignmentValue,
    CurrentPartitions,
    GroupEpochValue,
    MemberMetadataValue,
    ResolvedRegexValue,
    TargetAssignmentValue,
    TargetEpochValue,
    TopicMetadataValue,
    decode_consumer_key,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
)
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import Buffer
from strandline.storage.model import TopicId

# --- to the log ------------------------------------------------------------------------------


def encode_consumer_record(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """Encodes key and value."""
    record_type, name, value = _parts_of(record)
    key = ConsumerGroupKey(record_type=record_type, group=record.group_id, name=name)
    return encode_consumer_key(key), None if value is None else encode_consumer_value(value)


def _parts_of(record: ConsumerRecord) -> tuple[int, str, ConsumerGroupValue | None]:
    """Returns the type, the name in the key, and the value; None for a tombstone."""
    match record:
        case EpochRecord(_, epoch, topics):
            found = None if epoch is None else GroupEpochValue(epoch=epoch, metadata_hash=topics)
            return GROUP_EPOCH_TYPE, "", found
        case TopicMetadataRecord():
            assert not record.is_present, record
            return TOPIC_METADATA_TYPE, "", None
        case MemberRecord(_, name, wanted):
            return MEMBER_METADATA_TYPE, name, None if wanted is None else _member_value(wanted)
        case TargetEpochRecord(_, epoch):
            value = None if epoch is None else TargetEpochValue(epoch=epoch)
            return TARGET_EPOCH_TYPE, "", value
        case TargetRecord(_, name, partitions):
            return TARGET_ASSIGNMENT_TYPE, name, None if partitions is None else _target(partitions)
        case CurrentRecord(_, name, current):
            now = None if current is None else _current_value(current)
            return CURRENT_ASSIGNMENT_TYPE, name, now
        case RegexRecord(_, regex, resolved):
            return RESOLVED_REGEX_TYPE, regex, None if resolved is None else _regex_value(resolved)


def _member_value(member: MemberSubscription) -> MemberMetadataValue:
    classic = member.classic
    return MemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=member.topic_names,
        topic_regex=member.topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            protocols=[
                ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in classic.protocols
            ],
        ),
    )


def _current_value(current: CurrentAssignment) -> CurrentAssignmentValue:
    return CurrentAssignmentValue(
        epoch=current.epoch,
        previous_epoch=current.previous_epoch,
        state=current.state,
        assigned=_held(current.assigned),
        revoking=_held(current.revoking),
    )


def _held(held: HeldPartitions) -> list[CurrentPartitions]:
    return [
        CurrentPartitions(
            topic_id=topic_id,
            partitions=sorted(epochs),
            assignment_epochs=[epochs[partition] for partition in sorted(epochs)],
        )
        for topic_id, epochs in held.items()
    ]


def _regex_value(resolved: ResolvedRegex) -> ResolvedRegexValue:
    return ResolvedRegexValue(
        topics=sorted(resolved.topics),
        version=resolved.version,
        timestamp_ms=resolved.timestamp_ms,
    )


def _target(partitions: Partitions) -> TargetAssignmentValue:
    return TargetAssignmentValue(
        topic_partitions=[
            AssignedPartitions(topic_id=topic_id, partitions=sorted(found))
            for topic_id, found in partitions.items()
        ]
    )


# --- from the log ----------------------------------------------------------------------------


def decode_consumer_record(key_bytes: Buffer, raw: Buffer | None) -> ConsumerRecord:
    """Decodes a record of one of `CONSUMER_GROUP_TYPES`. Raises MalformedRequest."""
    key = decode_consumer_key(key_bytes)
    group, name = key.group, key.name
    if raw is None:
        return _TOMBSTONES[key.record_type](group, name)
    value = decode_consumer_value(key.record_type, raw)
    match value:
        case GroupEpochValue():
            return EpochRecord(group, value.epoch, value.metadata_hash)
        case TopicMetadataValue():
            return TopicMetadataRecord(group, True)
        case MemberMetadataValue():
            return MemberRecord(group, name, _subscription(value))
        case TargetEpochValue():
            return TargetEpochRecord(group, value.epoch)
        case TargetAssignmentValue():
            return TargetRecord(group, name, _partitions(value.topic_partitions))
        case CurrentAssignmentValue():
            return CurrentRecord(group, name, _current(value))
        case ResolvedRegexValue():
            return RegexRecord(group, name, _resolved(value))


_TOMBSTONES: Mapping[int, Callable[[str, str], ConsumerRecord]] = {
    GROUP_EPOCH_TYPE: lambda group, _: EpochRecord(group, None),
    TOPIC_METADATA_TYPE: lambda group, _: TopicMetadataRecord(group, False),
    MEMBER_METADATA_TYPE: lambda group, name: MemberRecord(group, name, None),
    TARGET_EPOCH_TYPE: lambda group, _: TargetEpochRecord(group, None),
    TARGET_ASSIGNMENT_TYPE: lambda group, name: TargetRecord(group, name, None),
    CURRENT_ASSIGNMENT_TYPE: lambda group, name: CurrentRecord(group, name, None),
    RESOLVED_REGEX_TYPE: lambda group, name: RegexRecord(group, name, None),
}


def _subscription(value: MemberMetadataValue) -> MemberSubscription:
    classic = value.classic
    return MemberSubscription(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=tuple(value.topic_names),
        topic_regex=value.topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicMembership(
            session_timeout_ms=classic.session_timeout_ms,
            protocols=tuple(MemberProtocol(p.name, p.metadata) for p in classic.protocols),
        ),
    )


def _current(value: CurrentAssignmentValue) -> CurrentAssignment:
    try:
        state = MemberState(value.state)
    except ValueError as error:
        raise MalformedRequest(f"a member in state {value.state}") from error
    return CurrentAssignment(
        epoch=value.epoch,
        previous_epoch=value.previous_epoch,
        state=state,
        assigned=_held_partitions(value.assigned, value.epoch),
        revoking=_held_partitions(value.revoking, value.epoch),
    )


def _held_partitions(rows: Iterable[CurrentPartitions], epoch: int) -> HeldPartitions:
    """As in Kafka, partitions without epochs take the member's epoch.

    The negative epoch of a member that is away is no assignment epoch.
    """
    held: dict[TopicId, dict[int, int]] = {}
    for row in rows:
        epochs = row.assignment_epochs or ()
        if len(epochs) != len(row.partitions):
            epochs = (max(epoch, JOIN_EPOCH),) * len(row.partitions)
        if row.partitions:
            held[row.topic_id] = dict(zip(row.partitions, epochs, strict=True))
    return held


def _resolved(value: ResolvedRegexValue) -> ResolvedRegex:
    return ResolvedRegex(
        topics=frozenset(value.topics), version=value.version, timestamp_ms=value.timestamp_ms
    )


def _partitions(rows: Iterable[AssignedPartitions]) -> Partitions:
    return {row.topic_id: frozenset(row.partitions) for row in rows if row.partitions}

"""Converts the records of KIP-848 groups to and from Kafka's formats."""

from __future__ import annotations

from collections.abc import Iterable

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
    value = _value_of(record)
    return (
        encode_consumer_key(_key_of(record)),
        None if value is None else encode_consumer_value(value),
    )


def _key_of(record: ConsumerRecord) -> ConsumerGroupKey:
    group = record.group_id
    if isinstance(record, EpochRecord):
        return ConsumerGroupKey(record_type=GROUP_EPOCH_TYPE, group=group)
    if isinstance(record, TopicMetadataRecord):
        return ConsumerGroupKey(record_type=TOPIC_METADATA_TYPE, group=group)
    if isinstance(record, TargetEpochRecord):
        return ConsumerGroupKey(record_type=TARGET_EPOCH_TYPE, group=group)
    if isinstance(record, RegexRecord):
        return ConsumerGroupKey(record_type=RESOLVED_REGEX_TYPE, group=group, name=record.regex)
    record_type = (
        MEMBER_METADATA_TYPE
        if isinstance(record, MemberRecord)
        else TARGET_ASSIGNMENT_TYPE
        if isinstance(record, TargetRecord)
        else CURRENT_ASSIGNMENT_TYPE
    )
    return ConsumerGroupKey(record_type=record_type, group=group, name=record.member_id)


def _value_of(record: ConsumerRecord) -> ConsumerGroupValue | None:
    if isinstance(record, EpochRecord):
        if record.epoch is None:
            return None
        return GroupEpochValue(epoch=record.epoch, metadata_hash=record.metadata_hash)
    if isinstance(record, MemberRecord):
        return None if record.subscription is None else _member_value(record.subscription)
    if isinstance(record, TargetEpochRecord):
        return None if record.epoch is None else TargetEpochValue(epoch=record.epoch)
    if isinstance(record, TargetRecord):
        if record.partitions is None:
            return None
        return TargetAssignmentValue(topic_partitions=_assigned(record.partitions))
    if isinstance(record, CurrentRecord):
        return None if record.current is None else _current_value(record.current)
    if isinstance(record, RegexRecord):
        return None if record.resolved is None else _regex_value(record.resolved)
    assert not record.is_present, record
    return None


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


def _assigned(partitions: Partitions) -> list[AssignedPartitions]:
    return [
        AssignedPartitions(topic_id=topic_id, partitions=sorted(found))
        for topic_id, found in partitions.items()
    ]


# --- from the log ----------------------------------------------------------------------------


def decode_consumer_record(key_bytes: Buffer, raw: Buffer | None) -> ConsumerRecord:
    """Decodes a record of one of `CONSUMER_GROUP_TYPES`. Raises MalformedRequest."""
    key = decode_consumer_key(key_bytes)
    group, name = key.group, key.name
    value = None if raw is None else decode_consumer_value(key.record_type, raw)
    if key.record_type == GROUP_EPOCH_TYPE:
        assert value is None or isinstance(value, GroupEpochValue), value
        if value is None:
            return EpochRecord(group, None)
        return EpochRecord(group, value.epoch, value.metadata_hash)
    if key.record_type == TOPIC_METADATA_TYPE:
        assert value is None or isinstance(value, TopicMetadataValue), value
        return TopicMetadataRecord(group, value is not None)
    if key.record_type == MEMBER_METADATA_TYPE:
        assert value is None or isinstance(value, MemberMetadataValue), value
        return MemberRecord(group, name, None if value is None else _subscription(value))
    if key.record_type == TARGET_EPOCH_TYPE:
        assert value is None or isinstance(value, TargetEpochValue), value
        return TargetEpochRecord(group, None if value is None else value.epoch)
    if key.record_type == TARGET_ASSIGNMENT_TYPE:
        assert value is None or isinstance(value, TargetAssignmentValue), value
        return TargetRecord(
            group, name, None if value is None else _partitions(value.topic_partitions)
        )
    if key.record_type == CURRENT_ASSIGNMENT_TYPE:
        assert value is None or isinstance(value, CurrentAssignmentValue), value
        return CurrentRecord(group, name, None if value is None else _current(value))
    assert key.record_type == RESOLVED_REGEX_TYPE, key
    assert value is None or isinstance(value, ResolvedRegexValue), value
    return RegexRecord(group, name, None if value is None else _resolved(value))


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

"""The records of KIP-848 groups in `__consumer_offsets`, in Kafka's formats.

key     type i16 | fields, never flexible     value    version 0 i16 | fields, flexible; or null

type  key fields        value                    content
3     group             GroupEpochValue          the group's epoch
4     group             TopicMetadataValue       of Kafka up to 4.0; since then the hash in type 3
5     group member      MemberMetadataValue      the member's identity and subscription
6     group             TargetEpochValue         the epoch of the target assignment
7     group member      TargetAssignmentValue    the member's target assignment
8     group member      CurrentAssignmentValue   assigned and revoked partitions
16    group regex       ResolvedRegexValue       the topics that a regular expression matches
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from strandline.broker.protocol.formats.versioned import read_version, read_whole, write_struct
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import Struct

GROUP_EPOCH_TYPE: Final = 3
TOPIC_METADATA_TYPE: Final = 4
MEMBER_METADATA_TYPE: Final = 5
TARGET_EPOCH_TYPE: Final = 6
TARGET_ASSIGNMENT_TYPE: Final = 7
CURRENT_ASSIGNMENT_TYPE: Final = 8
RESOLVED_REGEX_TYPE: Final = 16

_GROUP_TYPES: Final = frozenset({GROUP_EPOCH_TYPE, TOPIC_METADATA_TYPE, TARGET_EPOCH_TYPE})
CONSUMER_GROUP_TYPES: Final = _GROUP_TYPES | {
    MEMBER_METADATA_TYPE,
    TARGET_ASSIGNMENT_TYPE,
    CURRENT_ASSIGNMENT_TYPE,
    RESOLVED_REGEX_TYPE,
}
_VALUE_VERSION: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupKey:
    """The key of a group's record; `name` is a member id or a regular expression, or empty."""

    record_type: int
    group: str
    name: str = ""


class _GroupKeyWire(Struct):
    group: str = wire.string()


class _NamedKeyWire(Struct):
    group: str = wire.string()
    name: str = wire.string()


class GroupEpochValue(Struct):
    epoch: int = wire.int32()
    metadata_hash: int = wire.int64(tag=0, default=0)


class TopicPartitionRacks(Struct):
    partition: int = wire.int32()
    racks: Sequence[str] = wire.array(wire.string)


class SubscribedTopicMetadata(Struct):
    topic_id: uuid.UUID = wire.uuid_()
    topic_name: str = wire.string()
    partition_count: int = wire.int32()
    partition_racks: Sequence[TopicPartitionRacks] = wire.array(TopicPartitionRacks, default=())


class TopicMetadataValue(Struct):
    topics: Sequence[SubscribedTopicMetadata] = wire.array(SubscribedTopicMetadata)


class ClassicProtocol(Struct):
    name: str = wire.string()
    metadata: bytes = wire.byte_string()


class ClassicMemberMetadata(Struct):
    """Classic-protocol metadata of a member in a KIP-848 group."""

    session_timeout_ms: int = wire.int32()
    protocols: Sequence[ClassicProtocol] = wire.array(ClassicProtocol)


class MemberMetadataValue(Struct):
    instance_id: str | None = wire.string(nullable="0+", default=None)
    rack_id: str | None = wire.string(nullable="0+", default=None)
    client_id: str = wire.string()
    client_host: str = wire.string()
    topic_names: Sequence[str] = wire.array(wire.string)
    topic_regex: str | None = wire.string(nullable="0+", default=None)
    rebalance_timeout_ms: int = wire.int32(default=-1)
    server_assignor: str | None = wire.string(nullable="0+", default=None)
    classic: ClassicMemberMetadata | None = wire.struct(
        ClassicMemberMetadata, nullable="0+", tag=0, default=None
    )


class TargetEpochValue(Struct):
    epoch: int = wire.int32()


class AssignedPartitions(Struct):
    topic_id: uuid.UUID = wire.uuid_()
    partitions: Sequence[int] = wire.array(wire.int32)


class CurrentPartitions(Struct):
    """Partitions of one topic, with an epoch each in `assignment_epochs` from Kafka 4.3 on."""

    topic_id: uuid.UUID = wire.uuid_()
    partitions: Sequence[int] = wire.array(wire.int32)
    assignment_epochs: Sequence[int] | None = wire.array(
        wire.int32, nullable="0+", tag=0, default=()
    )


class TargetAssignmentValue(Struct):
    topic_partitions: Sequence[AssignedPartitions] = wire.array(AssignedPartitions)


class CurrentAssignmentValue(Struct):
    """A member's assignment. `state` 0 is stable, 1 unrevoked, 2 unreleased (MemberState)."""

    epoch: int = wire.int32()
    previous_epoch: int = wire.int32()
    state: int = wire.int8()
    assigned: Sequence[CurrentPartitions] = wire.array(CurrentPartitions)
    revoking: Sequence[CurrentPartitions] = wire.array(CurrentPartitions)


class ResolvedRegexValue(Struct):
    topics: Sequence[str] = wire.array(wire.string)
    version: int = wire.int64()
    timestamp_ms: int = wire.int64()


ConsumerGroupValue: TypeAlias = (
    GroupEpochValue
    | TopicMetadataValue
    | MemberMetadataValue
    | TargetEpochValue
    | TargetAssignmentValue
    | CurrentAssignmentValue
    | ResolvedRegexValue
)

_VALUES: Mapping[int, type[ConsumerGroupValue]] = MappingProxyType(
    {
        GROUP_EPOCH_TYPE: GroupEpochValue,
        TOPIC_METADATA_TYPE: TopicMetadataValue,
        MEMBER_METADATA_TYPE: MemberMetadataValue,
        TARGET_EPOCH_TYPE: TargetEpochValue,
        TARGET_ASSIGNMENT_TYPE: TargetAssignmentValue,
        CURRENT_ASSIGNMENT_TYPE: CurrentAssignmentValue,
        RESOLVED_REGEX_TYPE: ResolvedRegexValue,
    }
)


def encode_consumer_key(key: ConsumerGroupKey) -> bytes:
    """Encodes a key, whose bytes compaction compares."""
    row: Struct = (
        _GroupKeyWire(group=key.group)
        if key.record_type in _GROUP_TYPES
        else _NamedKeyWire(group=key.group, name=key.name)
    )
    return write_struct(row, key.record_type)


def decode_consumer_key(key: wire.Buffer) -> ConsumerGroupKey:
    """Decodes a key of one of `CONSUMER_GROUP_TYPES`. Raises MalformedRequest."""
    encoded = memoryview(key)
    record_type = read_version(encoded)
    if record_type in _GROUP_TYPES:
        group = read_whole(_GroupKeyWire, record_type, encoded)
        return ConsumerGroupKey(record_type=record_type, group=group.group)
    named = read_whole(_NamedKeyWire, record_type, encoded)
    return ConsumerGroupKey(record_type=record_type, group=named.group, name=named.name)


def encode_consumer_value(value: ConsumerGroupValue) -> bytes:
    """Encodes a value, in the only version that exists."""
    return write_struct(value, _VALUE_VERSION, flexible_from=0)


def decode_consumer_value(record_type: int, value: wire.Buffer) -> ConsumerGroupValue:
    """Decodes the value for a key of this type. Raises MalformedRequest."""
    encoded = memoryview(value)
    version = read_version(encoded)
    if version != _VALUE_VERSION:
        raise MalformedRequest(f"a value of version {version}, where we know 0")
    return read_whole(_VALUES[record_type], version, encoded, flexible_from=0)

"""The records of `__consumer_offsets`, in Kafka's formats.

    key     type i16 | fields                  value    version i16 | fields, or null: a tombstone

    type  key fields               value                  versions read    written
    0     group topic partition    OffsetCommitValue      0-4              never; Kafka before 0.9
    1     group topic partition    OffsetCommitValue      0-4              3, or what it needs
    2     group                    GroupMetadataValue     0-4              3

    OffsetCommitValue     v1 only: expiry    v3  leader epoch    v4  flexible; topic id
    GroupMetadataValue    v1  rebalance timeout    v2  time of state    v3  static members
                          v4  flexible

Types 3 and above (KIP-848, share and streams groups) are decoded as `UnknownKey`, which a loader
skips. The dataclasses own their bytes; nothing here keeps the record's buffer.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct as PackedStruct
from typing import Final, TypeAlias, TypeVar

from strandline.broker.protocol.formats.versioned import read_struct, read_version, write_struct
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import (
    ZERO_UUID,
    Buffer,
    Struct,
    array,
    byte_string,
    int32,
    int64,
    string,
    uuid_,
    wire,
)

S = TypeVar("S", bound=Struct)

OFFSETS_TOPIC: Final = "__consumer_offsets"
LEGACY_OFFSET_COMMIT_TYPE: Final = 0
OFFSET_COMMIT_TYPE: Final = 1
GROUP_METADATA_TYPE: Final = 2

NO_TIMESTAMP: Final = -1
_VALUE_VERSION_MAX: Final = 4
_VALUE_FLEXIBLE_FROM: Final = 4
# The newest version that a Kafka of any age reads; v4 is for fields that only v4 has.
_VALUE_VERSION_USUAL: Final = 3
# v2 dropped it again.
_VERSION_WITH_EXPIRY: Final = 1
_PARTITION: Final = PackedStruct(">i")


class UnreadableRecord(Exception):
    """A key or value that does not follow its layout, or has a newer version than ours."""


# --- contents --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey:
    """The key of a group's offset for a partition. Both record types mean the same offset."""

    group: str
    topic: str
    partition: int
    record_type: int = field(default=OFFSET_COMMIT_TYPE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey:
    """The key of a classic group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownKey:
    """A key of a type that this module does not decode."""

    record_type: int


Key: TypeAlias = OffsetCommitKey | GroupMetadataKey | UnknownKey


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    """A committed offset. With an expiry of -1 `offsets.retention.minutes` applies."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: uuid.UUID = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member. In v0 its rebalance timeout is -1: the session timeout applies."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int = -1
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue:
    """A generation of a group. Empty groups have no protocol, no leader and no members."""

    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp_ms: int = NO_TIMESTAMP
    members: tuple[GroupMember, ...] = ()


# --- layout ----------------------------------------------------------------------------------


class _OffsetCommitKeyWire(Struct):
    group: str = wire(string)
    topic: str = wire(string)
    partition: int = wire(int32)


class _GroupMetadataKeyWire(Struct):
    group: str = wire(string)


class _OffsetCommitWire(Struct):
    offset: int = wire(int64)
    leader_epoch: int = wire(int32, "3+", default=-1)
    metadata: str = wire(string)
    commit_timestamp_ms: int = wire(int64)
    expire_timestamp_ms: int = wire(int64, "1", default=NO_TIMESTAMP)
    topic_id: uuid.UUID = wire(uuid_, "4+", tag=0, default=ZERO_UUID)


class _GroupMemberWire(Struct):
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)
    client_id: str = wire(string)
    client_host: str = wire(string)
    rebalance_timeout_ms: int = wire(int32, "1+", default=-1)
    session_timeout_ms: int = wire(int32)
    subscription: bytes = wire(byte_string)
    assignment: bytes = wire(byte_string)


class _GroupMetadataWire(Struct):
    protocol_type: str = wire(string)
    generation: int = wire(int32)
    protocol: str | None = wire(string, nullable="0+")
    leader: str | None = wire(string, nullable="0+")
    current_state_timestamp_ms: int = wire(int64, "2+", default=NO_TIMESTAMP)
    members: Sequence[_GroupMemberWire] = wire(array(_GroupMemberWire))


# --- keys ------------------------------------------------------------------------------------


def decode_key(key: Buffer) -> Key:
    """Decodes a key. Raises UnreadableRecord."""
    encoded = memoryview(key)
    record_type = _version_of(encoded)
    if record_type in (LEGACY_OFFSET_COMMIT_TYPE, OFFSET_COMMIT_TYPE):
        commit = _read(_OffsetCommitKeyWire, record_type, encoded)
        return OffsetCommitKey(
            group=commit.group,
            topic=commit.topic,
            partition=commit.partition,
            record_type=record_type,
        )
    if record_type == GROUP_METADATA_TYPE:
        return GroupMetadataKey(group=_read(_GroupMetadataKeyWire, record_type, encoded).group)
    return UnknownKey(record_type=record_type)


def encode_key(key: OffsetCommitKey | GroupMetadataKey) -> bytes:
    """Encodes a key, whose bytes compaction compares; type 0 is written only for its tombstone."""
    if isinstance(key, GroupMetadataKey):
        return write_struct(_GroupMetadataKeyWire(group=key.group), GROUP_METADATA_TYPE)
    commit = _OffsetCommitKeyWire(group=key.group, topic=key.topic, partition=key.partition)
    return write_struct(commit, key.record_type)


# --- values ----------------------------------------------------------------------------------


def decode_offset_commit(value: Buffer) -> OffsetCommitValue:
    """Decodes the value of an `OffsetCommitKey`. Raises UnreadableRecord."""
    decoded = _read_value(_OffsetCommitWire, value)
    return OffsetCommitValue(
        offset=decoded.offset,
        leader_epoch=decoded.leader_epoch,
        metadata=decoded.metadata,
        commit_timestamp_ms=decoded.commit_timestamp_ms,
        expire_timestamp_ms=decoded.expire_timestamp_ms,
        topic_id=decoded.topic_id,
    )


def encode_offset_commit(commit: OffsetCommitValue, version: int | None = None) -> bytes:
    """Encodes in the version that keeps all fields of `commit`, unless one is given.

    An explicit expiry (only from OffsetCommit v2 to v4) requires v1, as in Kafka; that version has
    neither leader epoch nor topic id.
    """
    if version is None:
        version = _version_for(commit)
    row = _OffsetCommitWire(
        offset=commit.offset,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
        commit_timestamp_ms=commit.commit_timestamp_ms,
        expire_timestamp_ms=commit.expire_timestamp_ms,
        topic_id=commit.topic_id,
    )
    return write_struct(row, version, flexible_from=_VALUE_FLEXIBLE_FROM)


def _version_for(commit: OffsetCommitValue) -> int:
    if commit.expire_timestamp_ms != NO_TIMESTAMP:
        return _VERSION_WITH_EXPIRY
    return _VALUE_VERSION_USUAL if commit.topic_id == ZERO_UUID else _VALUE_VERSION_MAX


def decode_group_metadata(value: Buffer) -> GroupMetadataValue:
    """Decodes the value of a `GroupMetadataKey`. Raises UnreadableRecord."""
    decoded = _read_value(_GroupMetadataWire, value)
    return GroupMetadataValue(
        protocol_type=decoded.protocol_type,
        generation=decoded.generation,
        protocol=decoded.protocol,
        leader=decoded.leader,
        current_state_timestamp_ms=decoded.current_state_timestamp_ms,
        members=tuple(_member(row) for row in decoded.members),
    )


def _member(row: _GroupMemberWire) -> GroupMember:
    return GroupMember(
        member_id=row.member_id,
        group_instance_id=row.group_instance_id,
        client_id=row.client_id,
        client_host=row.client_host,
        rebalance_timeout_ms=row.rebalance_timeout_ms,
        session_timeout_ms=row.session_timeout_ms,
        subscription=row.subscription,
        assignment=row.assignment,
    )


def encode_group_metadata(group: GroupMetadataValue, version: int = _VALUE_VERSION_USUAL) -> bytes:
    """Encodes a generation, in the version that Kafka writes."""
    row = _GroupMetadataWire(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp_ms=group.current_state_timestamp_ms,
        members=[
            _GroupMemberWire(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in group.members
        ],
    )
    return write_struct(row, version, flexible_from=_VALUE_FLEXIBLE_FROM)


def _read_value(cls: type[S], value: Buffer) -> S:
    encoded = memoryview(value)
    version = _version_of(encoded)
    if not 0 <= version <= _VALUE_VERSION_MAX:
        raise UnreadableRecord(f"a value of version {version}, where we know 0 to 4")
    return _read(cls, version, encoded)


def _version_of(encoded: memoryview) -> int:
    try:
        return read_version(encoded)
    except MalformedRequest as error:
        raise UnreadableRecord(str(error)) from error


def _read(cls: type[S], version: int, encoded: memoryview) -> S:
    flexible_from = _VALUE_FLEXIBLE_FROM
    try:
        found, position = read_struct(cls, version, encoded, flexible_from=flexible_from)
    except MalformedRequest as error:
        raise UnreadableRecord(str(error)) from error
    if position != len(encoded):
        raise UnreadableRecord(f"{len(encoded) - position} bytes are left after {cls.__name__}")
    return found

"""The records of `__consumer_offsets`, in Kafka's formats.

    key     type i16 | fields                  value    version i16 | fields, or null: a tombstone

    type  key fields               value                  versions read    written
    0     group topic partition    OffsetCommitValue      0-4              never; Kafka before 0.9
    1     group topic partition    OffsetCommitValue      0-4              4, or 1 with an expiry
    2     group                    GroupMetadataValue     0-4              3

    OffsetCommitValue     v1 only: expiry    v3  leader epoch    v4  flexible; topic id
    GroupMetadataValue    v1  rebalance timeout    v2  time of state    v3  static members
                          v4  flexible

Types 3 and above (KIP-848, share and streams groups) are decoded as `UnknownKey`, which a loader
skips. Decoded keys and values own their bytes; nothing here keeps the record's buffer.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from strandline.broker.protocol.formats.versioned import read_version, read_whole, write_struct
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import Struct

S = TypeVar("S", bound=Struct)

OFFSETS_TOPIC: Final = "__consumer_offsets"
LEGACY_OFFSET_COMMIT_TYPE: Final = 0
OFFSET_COMMIT_TYPE: Final = 1
GROUP_METADATA_TYPE: Final = 2

NO_TIMESTAMP: Final = -1
_VALUE_VERSION_MAX: Final = 4
_VALUE_FLEXIBLE_FROM: Final = 4
# The newest version that a Kafka of any age reads; v4 is for an offset with the id of its topic.
_VALUE_VERSION_USUAL: Final = 3
# v2 dropped it again.
_VERSION_WITH_EXPIRY: Final = 1


class OffsetCommitKey(Struct):
    """The key of a group's offset for a partition. Both record types mean the same offset."""

    group: str = wire.string()
    topic: str = wire.string()
    partition: int = wire.int32()


class GroupMetadataKey(Struct):
    """The key of a classic group."""

    group: str = wire.string()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownKey:
    """A key of a type that this module does not decode."""

    record_type: int


Key: TypeAlias = OffsetCommitKey | GroupMetadataKey | UnknownKey


class OffsetCommitValue(Struct):
    """A committed offset: the next one to read. With an expiry of -1 the broker's applies."""

    offset: int = wire.int64()
    leader_epoch: int = wire.int32("3+", default=-1)
    metadata: str = wire.string(default="")
    committed_ms: int = wire.int64()
    expires_ms: int = wire.int64("1", default=NO_TIMESTAMP)
    topic_id: uuid.UUID = wire.uuid_("4+", tag=0, default=wire.ZERO_UUID)


class GroupMember(Struct):
    """A member, with the metadata of the chosen protocol only.

    In v0 its rebalance timeout is -1: the session timeout applies.
    """

    member_id: str = wire.string()
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)
    client_id: str = wire.string()
    client_host: str = wire.string()
    rebalance_timeout_ms: int = wire.int32("1+", default=-1)
    session_timeout_ms: int = wire.int32()
    metadata: bytes = wire.byte_string()
    assignment: bytes = wire.byte_string()


class GroupMetadataValue(Struct):
    """A generation of a group. Empty groups have no protocol, no leader and no members."""

    protocol_type: str = wire.string()
    generation: int = wire.int32()
    protocol_name: str | None = wire.string(nullable="0+", default=None)
    leader: str | None = wire.string(nullable="0+", default=None)
    state_since_ms: int = wire.int64("2+", default=NO_TIMESTAMP)
    members: Sequence[GroupMember] = wire.array(GroupMember, default=())


def decode_key(key: wire.Buffer) -> Key:
    """Decodes a key. Raises MalformedRequest."""
    encoded = memoryview(key)
    record_type = read_version(encoded)
    if record_type in (LEGACY_OFFSET_COMMIT_TYPE, OFFSET_COMMIT_TYPE):
        return read_whole(OffsetCommitKey, record_type, encoded)
    if record_type == GROUP_METADATA_TYPE:
        return read_whole(GroupMetadataKey, record_type, encoded)
    return UnknownKey(record_type=record_type)


def encode_key(key: OffsetCommitKey | GroupMetadataKey) -> bytes:
    """Encodes a key, whose bytes compaction compares."""
    is_group = isinstance(key, GroupMetadataKey)
    return write_struct(key, GROUP_METADATA_TYPE if is_group else OFFSET_COMMIT_TYPE)


def decode_offset_commit(value: wire.Buffer) -> OffsetCommitValue:
    """Decodes the value of an `OffsetCommitKey`. Raises MalformedRequest."""
    return _read_value(OffsetCommitValue, value)


def encode_offset_commit(commit: OffsetCommitValue, version: int | None = None) -> bytes:
    """Encodes in the version that keeps all fields of `commit`, unless one is given.

    An explicit expiry (only from OffsetCommit v2 to v4) requires v1, as in Kafka; that version has
    neither leader epoch nor topic id.
    """
    if version is None:
        version = _version_for(commit)
    return write_struct(commit, version, flexible_from=_VALUE_FLEXIBLE_FROM)


def _version_for(commit: OffsetCommitValue) -> int:
    if commit.expires_ms != NO_TIMESTAMP:
        return _VERSION_WITH_EXPIRY
    return _VALUE_VERSION_USUAL if commit.topic_id == wire.ZERO_UUID else _VALUE_VERSION_MAX


def decode_group_metadata(value: wire.Buffer) -> GroupMetadataValue:
    """Decodes the value of a `GroupMetadataKey`. Raises MalformedRequest."""
    return _read_value(GroupMetadataValue, value)


def encode_group_metadata(group: GroupMetadataValue, version: int = _VALUE_VERSION_USUAL) -> bytes:
    """Encodes a generation, in the version that Kafka writes."""
    return write_struct(group, version, flexible_from=_VALUE_FLEXIBLE_FROM)


def _read_value(cls: type[S], value: wire.Buffer) -> S:
    encoded = memoryview(value)
    version = read_version(encoded)
    if not 0 <= version <= _VALUE_VERSION_MAX:
        raise MalformedRequest(f"a value of version {version}, where we know 0 to 4")
    return read_whole(cls, version, encoded, flexible_from=_VALUE_FLEXIBLE_FROM)

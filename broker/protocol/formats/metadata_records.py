"""The records of a cluster's metadata, as in Kafka's `__cluster_metadata` (Apache Kafka 4.4.0).

    binary   frame version uvarint (1) | api key uvarint | version uvarint | fields, flexible
    JSON     {"type": "TOPIC_RECORD", "version": 0, "data": {"name": "t", "topicId": "..."}}

The JSON is that of Kafka's MetadataJsonConverters, as `kafka-dump-log --cluster-metadata-decoder`
prints it. Each record is written in the version of metadata.version 25 (4.0-IV3), and read in every
version that Kafka 4.4 knows. A record is a fact: whoever reads it applies it, and decides nothing.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from strandline.broker.protocol.formats.struct_json import Json, from_json, to_json
from strandline.broker.protocol.formats.versioned import decoder_for, encoder_for
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.primitives import long_uvarint, uvarint
from strandline.broker.protocol.schema.schema import IN_MEMORY, Struct

# Directory ids that name no folder (KIP-858): not known to the controller, lost, to be looked up.
UNASSIGNED_DIRECTORY: Final = uuid.UUID(int=0)
LOST_DIRECTORY: Final = uuid.UUID(int=1)
MIGRATING_DIRECTORY: Final = uuid.UUID(int=2)

_FRAME_VERSION: Final = 1


class UnknownRecord(MalformedRequest):
    """A type or a version of records that only a later Kafka has."""


class MetadataRecord(Struct):
    """One fact of the metadata."""


class BrokerEndpoint(Struct):
    name: str = wire.string()
    host: str = wire.string()
    port: int = wire.uint16()
    security_protocol: int = wire.int16()


class BrokerFeature(Struct):
    name: str = wire.string()
    min_supported_version: int = wire.int16()
    max_supported_version: int = wire.int16()


class RegisterBrokerRecord(MetadataRecord):
    """A broker process registered; a later one of the same broker replaces it."""

    broker_id: int = wire.int32()
    is_migrating_zk_broker: bool = wire.boolean("2+", default=False)
    incarnation_id: uuid.UUID = wire.uuid_()
    broker_epoch: int = wire.int64()
    end_points: Sequence[BrokerEndpoint] = wire.array(BrokerEndpoint)
    features: Sequence[BrokerFeature] = wire.array(BrokerFeature)
    rack: str | None = wire.string(nullable="0+", default=None)
    fenced: bool = wire.boolean(default=True)
    in_controlled_shutdown: bool = wire.boolean("1+", default=False)
    log_dirs: Sequence[uuid.UUID] = wire.array(wire.uuid_, "3+", tag=0, default=())
    cordoned_log_dirs: Sequence[uuid.UUID] | None = wire.array(
        wire.uuid_, "4+", nullable="4+", tag=1, default=None
    )


class UnregisterBrokerRecord(MetadataRecord):
    broker_id: int = wire.int32()
    broker_epoch: int = wire.int64()


class TopicRecord(MetadataRecord):
    name: str = wire.string()
    topic_id: uuid.UUID = wire.uuid_()


class PartitionRecord(MetadataRecord):
    """The whole state of a partition, new or not.

    `replicas` begin with the preferred leader, and `directories` has the log folder of each. The
    epoch of the leader rises with each election, that of the partition with each change. Eligible
    leader replicas are those of KIP-966.
    """

    partition_id: int = wire.int32()
    topic_id: uuid.UUID = wire.uuid_()
    replicas: Sequence[int] = wire.array(wire.int32)
    isr: Sequence[int] = wire.array(wire.int32)
    removing_replicas: Sequence[int] = wire.array(wire.int32, default=())
    adding_replicas: Sequence[int] = wire.array(wire.int32, default=())
    leader: int = wire.int32()
    leader_recovery_state: int = wire.int8(tag=0, default=0)
    leader_epoch: int = wire.int32()
    partition_epoch: int = wire.int32()
    directories: Sequence[uuid.UUID] = wire.array(wire.uuid_, "1+", default=())
    eligible_leader_replicas: Sequence[int] | None = wire.array(
        wire.int32, "2+", nullable="2+", tag=1, default=None
    )
    last_known_elr: Sequence[int] | None = wire.array(
        wire.int32, "2+", nullable="2+", tag=2, default=None
    )


class ConfigRecord(MetadataRecord):
    """One key of a resource; without a value it is unset. The type is one of ConfigResourceType."""

    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    name: str = wire.string()
    value: str | None = wire.string(nullable="0+")


class PartitionChangeRecord(MetadataRecord):
    """What changes of a partition: None, -2 and -1 mean no change.

    Every change raises the partition's epoch, and a leader that is named, even the same, that of
    the leader.
    """

    partition_id: int = wire.int32()
    topic_id: uuid.UUID = wire.uuid_()
    isr: Sequence[int] | None = wire.array(wire.int32, nullable="0+", tag=0, default=None)
    leader: int = wire.int32(tag=1, default=-2)
    replicas: Sequence[int] | None = wire.array(wire.int32, nullable="0+", tag=2, default=None)
    removing_replicas: Sequence[int] | None = wire.array(
        wire.int32, nullable="0+", tag=3, default=None
    )
    adding_replicas: Sequence[int] | None = wire.array(
        wire.int32, nullable="0+", tag=4, default=None
    )
    leader_recovery_state: int = wire.int8(tag=5, default=-1)
    directories: Sequence[uuid.UUID] | None = wire.array(
        wire.uuid_, "1+", nullable="1+", tag=8, default=None
    )
    eligible_leader_replicas: Sequence[int] | None = wire.array(
        wire.int32, "2+", nullable="2+", tag=6, default=None
    )
    last_known_elr: Sequence[int] | None = wire.array(
        wire.int32, "2+", nullable="2+", tag=7, default=None
    )


class FenceBrokerRecord(MetadataRecord):
    """Fences a broker. Kafka up to 3.1; BrokerRegistrationChangeRecord since then."""

    id: int = wire.int32()
    epoch: int = wire.int64()


class UnfenceBrokerRecord(MetadataRecord):
    """Unfences a broker. Kafka up to 3.1."""

    id: int = wire.int32()
    epoch: int = wire.int64()


class RemoveTopicRecord(MetadataRecord):
    """The topic, its partitions and its properties are gone."""

    topic_id: uuid.UUID = wire.uuid_()


class DelegationTokenRecord(MetadataRecord):
    """Times are in ms since 1970."""

    owner: str = wire.string()
    requester: str = wire.string()
    renewers: Sequence[str] = wire.array(wire.string)
    issue_timestamp: int = wire.int64()
    max_timestamp: int = wire.int64()
    expiration_timestamp: int = wire.int64()
    token_id: str = wire.string()


class UserScramCredentialRecord(MetadataRecord):
    name: str = wire.string()
    mechanism: int = wire.int8()
    salt: bytes = wire.byte_string()
    stored_key: bytes = wire.byte_string()
    server_key: bytes = wire.byte_string()
    iterations: int = wire.int32()


class FeatureLevelRecord(MetadataRecord):
    """The finalized level of a feature; 0 removes it."""

    name: str = wire.string()
    feature_level: int = wire.int16()


class QuotaEntityPart(Struct):
    """The name of one type, or the default of that type (None)."""

    entity_type: str = wire.string()
    entity_name: str | None = wire.string(nullable="0+")


class ClientQuotaRecord(MetadataRecord):
    entity: Sequence[QuotaEntityPart] = wire.array(QuotaEntityPart)
    key: str = wire.string()
    value: float = wire.float64()
    remove: bool = wire.boolean(default=False)


class ProducerIdsRecord(MetadataRecord):
    """Producer ids below `next_producer_id` are never allocated again."""

    broker_id: int = wire.int32()
    broker_epoch: int = wire.int64(default=-1)
    next_producer_id: int = wire.int64()


class BrokerRegistrationChangeRecord(MetadataRecord):
    """Changes of a registered broker; 0, no folders and None mean no change. -1 unfences it."""

    broker_id: int = wire.int32()
    broker_epoch: int = wire.int64()
    fenced: int = wire.int8(tag=0, default=0)
    in_controlled_shutdown: int = wire.int8("1+", tag=1, default=0)
    log_dirs: Sequence[uuid.UUID] = wire.array(wire.uuid_, "2+", tag=2, default=())
    cordoned_log_dirs: Sequence[uuid.UUID] | None = wire.array(
        wire.uuid_, "3+", nullable="3+", tag=3, default=None
    )


class AccessControlEntryRecord(MetadataRecord):
    id: uuid.UUID = wire.uuid_()
    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    pattern_type: int = wire.int8()
    principal: str = wire.string()
    host: str = wire.string()
    operation: int = wire.int8()
    permission_type: int = wire.int8()


class RemoveAccessControlEntryRecord(MetadataRecord):
    id: uuid.UUID = wire.uuid_()


class NoOpRecord(MetadataRecord):
    pass


class ZkMigrationStateRecord(MetadataRecord):
    """Of clusters that came from ZooKeeper; Kafka 4 ignores it."""

    zk_migration_state: int = wire.int8()


class RemoveUserScramCredentialRecord(MetadataRecord):
    name: str = wire.string()
    mechanism: int = wire.int8()


class BeginTransactionRecord(MetadataRecord):
    """The records up to EndTransactionRecord count together, or not at all (KIP-868)."""

    name: str | None = wire.string(nullable="0+", tag=0, default=None)


class EndTransactionRecord(MetadataRecord):
    pass


class AbortTransactionRecord(MetadataRecord):
    reason: str | None = wire.string(nullable="0+", tag=0, default=None)


class RemoveDelegationTokenRecord(MetadataRecord):
    token_id: str = wire.string()


class ControllerEndpoint(Struct):
    name: str = wire.string()
    host: str = wire.string()
    port: int = wire.uint16()
    security_protocol: int = wire.int16()


class ControllerFeature(Struct):
    name: str = wire.string()
    min_supported_version: int = wire.int16()
    max_supported_version: int = wire.int16()


class RegisterControllerRecord(MetadataRecord):
    """A controller process registered."""

    controller_id: int = wire.int32()
    incarnation_id: uuid.UUID = wire.uuid_()
    zk_migration_ready: bool = wire.boolean()
    end_points: Sequence[ControllerEndpoint] = wire.array(ControllerEndpoint)
    features: Sequence[ControllerFeature] = wire.array(ControllerFeature)


class ClearElrRecord(MetadataRecord):
    """Empties the eligible leader replicas of a topic, or of all if the name is empty."""

    topic_name: str = wire.string()


class UnregisterControllerRecord(MetadataRecord):
    controller_id: int = wire.int32()


@dataclass(frozen=True, slots=True)
class _Kind:
    """One type of record: the version that is written, and the newest that is read."""

    api_key: int
    record: type[MetadataRecord]
    written: int = 0
    newest: int = 0

    @property
    def name(self) -> str:
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.record.__name__).upper()


_KINDS: Final = (
    _Kind(0, RegisterBrokerRecord, written=3, newest=4),
    _Kind(1, UnregisterBrokerRecord),
    _Kind(2, TopicRecord),
    _Kind(3, PartitionRecord, written=2, newest=2),
    _Kind(4, ConfigRecord),
    _Kind(5, PartitionChangeRecord, written=2, newest=2),
    _Kind(7, FenceBrokerRecord),
    _Kind(8, UnfenceBrokerRecord),
    _Kind(9, RemoveTopicRecord),
    _Kind(10, DelegationTokenRecord),
    _Kind(11, UserScramCredentialRecord),
    _Kind(12, FeatureLevelRecord),
    _Kind(14, ClientQuotaRecord),
    _Kind(15, ProducerIdsRecord),
    _Kind(17, BrokerRegistrationChangeRecord, written=2, newest=3),
    _Kind(18, AccessControlEntryRecord),
    _Kind(19, RemoveAccessControlEntryRecord),
    _Kind(20, NoOpRecord),
    _Kind(21, ZkMigrationStateRecord),
    _Kind(22, RemoveUserScramCredentialRecord),
    _Kind(23, BeginTransactionRecord),
    _Kind(24, EndTransactionRecord),
    _Kind(25, AbortTransactionRecord),
    _Kind(26, RemoveDelegationTokenRecord),
    _Kind(27, RegisterControllerRecord),
    _Kind(28, ClearElrRecord),
    _Kind(29, UnregisterControllerRecord),
)
_BY_KEY: Final[Mapping[int, _Kind]] = {kind.api_key: kind for kind in _KINDS}
_BY_NAME: Final[Mapping[str, _Kind]] = {kind.name: kind for kind in _KINDS}
_BY_RECORD: Final[Mapping[type[MetadataRecord], _Kind]] = {kind.record: kind for kind in _KINDS}


def encode_record(record: MetadataRecord) -> bytes:
    """Encodes a record as the value of a record in a batch."""
    kind = _BY_RECORD[type(record)]
    (body,) = encoder_for(kind.record, kind.written, flexible=True)(record)
    assert isinstance(body, IN_MEMORY), body
    return uvarint(_FRAME_VERSION) + uvarint(kind.api_key) + uvarint(kind.written) + bytes(body)


def decode_record(encoded: wire.Buffer) -> MetadataRecord:
    """Decodes a record of any known type and version. Raises MalformedRequest."""
    data = memoryview(encoded)
    try:
        frame, position = _read_uvarint(data, 0)
        api_key, position = _read_uvarint(data, position)
        version, position = _read_uvarint(data, position)
        if frame != _FRAME_VERSION:
            raise MalformedRequest(f"a metadata record of frame version {frame}, we know 1")
        kind = _known(_BY_KEY.get(api_key), f"{api_key}", version)
        decode = decoder_for(kind.record, version, flexible=True)
        record, position = decode(data, position, len(data))
    except (struct.error, IndexError) as error:
        raise MalformedRequest("a metadata record ends in the middle") from error
    if position != len(data):
        raise MalformedRequest(f"{len(data) - position} bytes are left after {kind.name}")
    assert isinstance(record, MetadataRecord), record
    return record


def record_to_json(record: MetadataRecord) -> dict[str, Json]:
    """Returns a record as Kafka's JSON."""
    kind = _BY_RECORD[type(record)]
    data = to_json(record, kind.written)
    return {"type": kind.name, "version": kind.written, "data": data}


def record_from_json(value: Mapping[str, Json]) -> MetadataRecord:
    """Decodes Kafka's JSON of a record. Raises MalformedRequest."""
    name, version, data = (value.get(key) for key in ("type", "version", "data"))
    if not isinstance(name, str) or type(version) is not int or not isinstance(data, dict):
        raise MalformedRequest("a metadata record without type, version or data")
    return from_json(_known(_BY_NAME.get(name), name, version).record, version, data)


def _known(kind: _Kind | None, what: str, version: int) -> _Kind:
    if kind is None:
        raise UnknownRecord(f"metadata record of unknown type {what}")
    if not 0 <= version <= kind.newest:
        raise UnknownRecord(f"{kind.name} of version {version}, we know 0 to {kind.newest}")
    return kind


def _read_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    first = data[position]
    return long_uvarint(data, position + 1, first) if first > 0x7F else (first, position + 1)

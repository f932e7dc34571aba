"""The record types of the metadata log, and their form in JSON.

A record is a fact: the controller has checked it, and `image.py` applies it. As JSON each is one
object whose `type` is its name in `_FIELDS`. Replicas are pairs [partition, node] in order, the
preferred leader first:

    {"type": "partitions-added", "topic_id": "...", "first_partition": 2, "replicas": [[2,1],[3,1]]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import TopicId
from strandline.storage.remote.manifest.json_document import Fields, Json

NodeId: TypeAlias = int
Replicas: TypeAlias = tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCreated:
    """The first record of every log: the cluster that the metadata belongs to."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStarted:
    """A broker starts: each partition that it leads gets a new leader epoch. Precedes serving."""

    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    """A topic was created. `replicas[p]` are the nodes of partition p, its first leader first."""

    topic: str
    topic_id: TopicId
    replicas: tuple[Replicas, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded:
    """Partitions `first_partition` and up were added; the topic had exactly the lower ones."""

    topic_id: TopicId
    first_partition: int
    replicas: tuple[Replicas, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigsSet:
    """The complete set of properties that the topic has from now on."""

    topic_id: TopicId
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """A topic was deleted: its name is free again, the data of this id is to be purged."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPurged:
    """The data of a deleted topic is purged in both tiers."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsAllocated:
    """Producer ids below `next_producer_id` are never allocated again."""

    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderEpochsRaised:
    """Leader epochs by partition that a restore found in the archive: the next ones are higher."""

    topic_id: TopicId
    leader_epochs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfigsSet:
    """The complete set of dynamic keys of a broker; `node_id` None: the cluster-wide defaults."""

    node_id: NodeId | None
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, order=True)
class QuotaEntity:
    """The entity of a quota: a name per type (`user`, `client-id`, `ip`), sorted by type.

    The empty name is the default of its type; no client can have it.
    """

    names: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, names: Mapping[str, str]) -> QuotaEntity:
        return cls(tuple(sorted(names.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotasSet:
    """The complete set of quotas of one entity; empty removes them."""

    entity: QuotaEntity
    quotas: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigsSet:
    """The complete set of properties of a group, which need not exist."""

    group_id: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredentialsSet:
    """The complete set of SCRAM credentials of a user; empty disables SCRAM login.

    The values are salted and hashed, in the form of `security/scram.py`.
    """

    user: str
    credentials: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelSet:
    """The finalized level of a feature of the cluster from now on."""

    feature: str
    level: int


MetadataRecord: TypeAlias = (
    ClusterCreated
    | BrokerStarted
    | TopicCreated
    | PartitionsAdded
    | TopicConfigsSet
    | TopicDeleted
    | TopicPurged
    | ProducerIdsAllocated
    | LeaderEpochsRaised
    | BrokerConfigsSet
    | ClientQuotasSet
    | GroupConfigsSet
    | ScramCredentialsSet
    | FeatureLevelSet
)


def encode_record(record: MetadataRecord) -> dict[str, Json]:
    """Encodes the record as a JSON object."""
    name = _NAMES[type(record)]
    fields = {key: field.encode(record, key) for key, field in _FIELDS[name][1].items()}
    return {"type": name, **fields}


def decode_record(fields: Fields) -> MetadataRecord:
    """Decodes the record in a JSON object.

    Raises CorruptFile for an invalid field, and UnsupportedFormat for a type that only a newer
    strandline knows: skipping it would derive a wrong image.
    """
    type_name = fields.text("type")
    if type_name not in _FIELDS:
        raise UnsupportedFormat(f"metadata record of unknown type {type_name!r}")
    record_type, table = _FIELDS[type_name]
    return record_type(**{name: field.decode(fields, name) for name, field in table.items()})


def encode_quotas(quotas: Mapping[str, float]) -> dict[str, Json]:
    """Encodes quotas as the shortest texts that parse to the same numbers everywhere."""
    return {key: repr(float(value)) for key, value in quotas.items()}


def decode_quotas(fields: Fields, name: str) -> dict[str, float]:
    """Decodes quotas. Raises CorruptFile for a value that is not a number."""
    texts = fields.texts_by_name(name)
    try:
        return {key: float(text) for key, text in texts.items()}
    except ValueError as error:
        raise CorruptFile(f"metadata: {name} hold something that is no number: {texts}") from error


def encode_replicas(partitions: Iterable[tuple[int, Replicas]]) -> list[Json]:
    """Encodes replicas as pairs [partition, node]."""
    return [[partition, node] for partition, nodes in partitions for node in nodes]


def decode_replicas(fields: Fields, name: str, *, first_partition: int) -> tuple[Replicas, ...]:
    """Decodes nodes by partition from `first_partition` on. Raises CorruptFile for a gap."""
    nodes: list[list[NodeId]] = []
    for partition, node in fields.integer_pairs(name):
        position = partition - first_partition
        if position == len(nodes):
            nodes.append([node])
        elif 0 <= position == len(nodes) - 1:
            nodes[position].append(node)
        else:
            raise CorruptFile(f"metadata: {name} name partition {partition} out of order")
    return tuple(tuple(partition_nodes) for partition_nodes in nodes)


class _Field(NamedTuple):
    """The JSON form of one field of a record."""

    encode: Callable[[Any, str], Any]
    decode: Callable[[Fields, str], Any]


_TEXT = _Field(getattr, Fields.text)
_INTEGER = _Field(getattr, Fields.integer)
_OPTIONAL_INTEGER = _Field(getattr, Fields.optional_integer)
_UUID = _Field(lambda record, name: str(getattr(record, name)), Fields.uuid)
_TEXTS = _Field(lambda record, name: dict(getattr(record, name)), Fields.texts_by_name)
_REPLICAS = _Field(
    lambda record, name: encode_replicas(enumerate(getattr(record, name))),
    lambda fields, name: decode_replicas(fields, name, first_partition=0),
)
_ADDED_REPLICAS = _Field(
    lambda added, name: encode_replicas(enumerate(getattr(added, name), added.first_partition)),
    lambda fields, name: decode_replicas(
        fields, name, first_partition=fields.integer("first_partition")
    ),
)
_INTEGER_PAIRS = _Field(
    lambda record, name: [list(pair) for pair in getattr(record, name)],
    lambda fields, name: tuple(fields.integer_pairs(name)),
)
_ENTITY = _Field(
    lambda record, name: dict(getattr(record, name).names),
    lambda fields, name: QuotaEntity.of(fields.texts_by_name(name)),
)
_QUOTAS = _Field(lambda record, name: encode_quotas(getattr(record, name)), decode_quotas)

_FIELDS: Mapping[str, tuple[type[MetadataRecord], Mapping[str, _Field]]] = {
    "cluster-created": (ClusterCreated, {"cluster_id": _TEXT}),
    "broker-started": (BrokerStarted, {"node_id": _INTEGER}),
    "topic-created": (
        TopicCreated,
        {"topic": _TEXT, "topic_id": _UUID, "replicas": _REPLICAS, "properties": _TEXTS},
    ),
    "partitions-added": (
        PartitionsAdded,
        {"topic_id": _UUID, "first_partition": _INTEGER, "replicas": _ADDED_REPLICAS},
    ),
    "topic-configs-set": (TopicConfigsSet, {"topic_id": _UUID, "properties": _TEXTS}),
    "topic-deleted": (TopicDeleted, {"topic_id": _UUID}),
    "topic-purged": (TopicPurged, {"topic_id": _UUID}),
    "producer-ids-allocated": (ProducerIdsAllocated, {"next_producer_id": _INTEGER}),
    "leader-epochs-raised": (
        LeaderEpochsRaised,
        {"topic_id": _UUID, "leader_epochs": _INTEGER_PAIRS},
    ),
    "broker-configs-set": (BrokerConfigsSet, {"node_id": _OPTIONAL_INTEGER, "properties": _TEXTS}),
    "client-quotas-set": (ClientQuotasSet, {"entity": _ENTITY, "quotas": _QUOTAS}),
    "group-configs-set": (GroupConfigsSet, {"group_id": _TEXT, "properties": _TEXTS}),
    "scram-credentials-set": (ScramCredentialsSet, {"user": _TEXT, "credentials": _TEXTS}),
    "feature-level-set": (FeatureLevelSet, {"feature": _TEXT, "level": _INTEGER}),
}
_NAMES = {record_type: name for name, (record_type, _) in _FIELDS.items()}

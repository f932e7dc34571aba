"""The record types of the metadata log.

    cluster-created          the first record of every log: whose metadata this is
    broker-started           a broker came up: its partitions get a new leader epoch
    topic-created            name, id, replicas of each partition, explicit properties
    partitions-added         more partitions, numbered after the existing ones
    topic-configs-set        all explicit properties, replacing the former ones
    topic-deleted            the topic is gone for clients; its data waits for the purge
    topic-purged             the data of a deleted topic is gone as well
    producer-ids-allocated   ids below `next_producer_id` are never allocated again
    leader-epochs-raised     a restore found higher epochs in the archive than in the metadata
    broker-configs-set       all dynamic keys of one broker, or the cluster-wide ones
    client-quotas-set        all quotas of one user, client id, pair of both, address or default
    group-configs-set        all properties of one group
    scram-credentials-set    all SCRAM credentials of one user, by mechanism

A record is a fact, not a wish: the controller has checked it. `image.py` applies it. As JSON each
is one object whose `type` is the name above. Replicas are pairs [partition, node] in order, the
preferred leader first:

    {"type": "partitions-added", "topic_id": "...", "first_partition": 2, "replicas": [[2,1],[3,1]]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import TopicId
from strandline.storage.remote.manifest.json_document import Fields, Json

NodeId: TypeAlias = int
Replicas: TypeAlias = tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCreated:
    """The first record of a log; it holds the cluster id."""

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
    """Producer ids below `next_producer_id` are allocated."""

    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderEpochsRaised:
    """Highest leader epochs in a topic's archive, by partition: the next ones must be above."""

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
    """The complete set of quotas of an entity; empty removes them."""

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
)


def encode_record(record: MetadataRecord) -> dict[str, Json]:
    """Encodes the record as a JSON object."""
    match record:
        case ClusterCreated():
            return {"type": "cluster-created", "cluster_id": record.cluster_id}
        case BrokerStarted():
            return {"type": "broker-started", "node_id": record.node_id}
        case TopicCreated():
            return {
                "type": "topic-created",
                "topic": record.topic,
                "topic_id": str(record.topic_id),
                "replicas": encode_replicas(enumerate(record.replicas)),
                "properties": dict(record.properties),
            }
        case PartitionsAdded():
            return {
                "type": "partitions-added",
                "topic_id": str(record.topic_id),
                "first_partition": record.first_partition,
                "replicas": encode_replicas(enumerate(record.replicas, record.first_partition)),
            }
        case TopicConfigsSet():
            return {
                "type": "topic-configs-set",
                "topic_id": str(record.topic_id),
                "properties": dict(record.properties),
            }
        case TopicDeleted():
            return {"type": "topic-deleted", "topic_id": str(record.topic_id)}
        case TopicPurged():
            return {"type": "topic-purged", "topic_id": str(record.topic_id)}
        case ProducerIdsAllocated():
            return {"type": "producer-ids-allocated", "next_producer_id": record.next_producer_id}
        case LeaderEpochsRaised():
            return {
                "type": "leader-epochs-raised",
                "topic_id": str(record.topic_id),
                "leader_epochs": [[p, epoch] for p, epoch in record.leader_epochs],
            }
        case BrokerConfigsSet():
            return {
                "type": "broker-configs-set",
                "node_id": record.node_id,
                "properties": dict(record.properties),
            }
        case ClientQuotasSet():
            return {
                "type": "client-quotas-set",
                "entity": dict(record.entity.names),
                "quotas": encode_quotas(record.quotas),
            }
        case GroupConfigsSet():
            return {
                "type": "group-configs-set",
                "group_id": record.group_id,
                "properties": dict(record.properties),
            }
        case ScramCredentialsSet():
            return {
                "type": "scram-credentials-set",
                "user": record.user,
                "credentials": dict(record.credentials),
            }


def decode_record(fields: Fields) -> MetadataRecord:
    """Decodes the record in a JSON object.

    Raises CorruptFile for an invalid field, and UnsupportedFormat for a type that only a newer
    strandline knows: skipping it would derive a wrong image.
    """
    type_name = fields.text("type")
    decode = _DECODERS.get(type_name)
    if decode is None:
        raise UnsupportedFormat(f"metadata record of unknown type {type_name!r}")
    return decode(fields)


def _decode_topic_created(fields: Fields) -> MetadataRecord:
    return TopicCreated(
        topic=fields.text("topic"),
        topic_id=fields.uuid("topic_id"),
        replicas=decode_replicas(fields, "replicas", first_partition=0),
        properties=fields.texts_by_name("properties"),
    )


def _decode_partitions_added(fields: Fields) -> MetadataRecord:
    first_partition = fields.integer("first_partition")
    return PartitionsAdded(
        topic_id=fields.uuid("topic_id"),
        first_partition=first_partition,
        replicas=decode_replicas(fields, "replicas", first_partition=first_partition),
    )


_DECODERS: Mapping[str, Callable[[Fields], MetadataRecord]] = {
    "cluster-created": lambda f: ClusterCreated(cluster_id=f.text("cluster_id")),
    "broker-started": lambda f: BrokerStarted(node_id=f.integer("node_id")),
    "topic-created": _decode_topic_created,
    "partitions-added": _decode_partitions_added,
    "topic-configs-set": lambda f: TopicConfigsSet(
        topic_id=f.uuid("topic_id"), properties=f.texts_by_name("properties")
    ),
    "topic-deleted": lambda f: TopicDeleted(topic_id=f.uuid("topic_id")),
    "topic-purged": lambda f: TopicPurged(topic_id=f.uuid("topic_id")),
    "producer-ids-allocated": lambda f: ProducerIdsAllocated(
        next_producer_id=f.integer("next_producer_id")
    ),
    "leader-epochs-raised": lambda f: LeaderEpochsRaised(
        topic_id=f.uuid("topic_id"), leader_epochs=tuple(f.integer_pairs("leader_epochs"))
    ),
    "broker-configs-set": lambda f: BrokerConfigsSet(
        node_id=f.optional_integer("node_id"), properties=f.texts_by_name("properties")
    ),
    "client-quotas-set": lambda f: ClientQuotasSet(
        entity=QuotaEntity.of(f.texts_by_name("entity")), quotas=decode_quotas(f, "quotas")
    ),
    "group-configs-set": lambda f: GroupConfigsSet(
        group_id=f.text("group_id"), properties=f.texts_by_name("properties")
    ),
    "scram-credentials-set": lambda f: ScramCredentialsSet(
        user=f.text("user"), credentials=f.texts_by_name("credentials")
    ),
}


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

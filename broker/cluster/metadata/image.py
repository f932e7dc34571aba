"""The cluster's metadata at one moment: an immutable value, derived from the metadata log.

    image 0 (empty)  --entry 1-->  image 1  --entry 2-->  image 2 ...

Version n is the state after log entry n. The same entries always give the same image, on every
broker; nothing in an image comes from anywhere else. A reader keeps the image it began with.

Invariant: a topic is reachable by name and by id, partitions are numbered from 0 without a gap,
and a leader epoch never goes back. A record that does not fit (a second topic of one name) means
that the log is not what the controller wrote: CorruptFile, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TypeVar

from strandline.broker.cluster.metadata.features import FEATURES, check_levels
from strandline.broker.cluster.metadata.records import (
    BrokerConfigsSet,
    BrokerStarted,
    ClientQuotasSet,
    ClusterCreated,
    FeatureLevelSet,
    GroupConfigsSet,
    LeaderEpochsRaised,
    MetadataRecord,
    NodeId,
    PartitionsAdded,
    ProducerIdsAllocated,
    QuotaEntity,
    Replicas,
    ScramCredentialsSet,
    TopicConfigsSet,
    TopicCreated,
    TopicDeleted,
    TopicPurged,
)
from strandline.storage.errors import CorruptFile
from strandline.storage.model import Epoch, TopicId, TopicPartition

NO_LEADER: NodeId = -1


KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """The replicas of a partition: `replicas` begin with the preferred leader; `isr`: in sync."""

    partition: int
    leader: NodeId
    leader_epoch: Epoch
    replicas: Replicas
    isr: Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic; `partitions[p]` is partition p, `properties` are those set explicitly."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    properties: Mapping[str, str]

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """A topic that clients no longer see and whose data still has to be purged."""

    name: str
    topic_id: TopicId
    partition_count: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """The metadata that all brokers of a cluster share; `cluster_id` is empty only in version 0.

    Raises UnsupportedFormat for a level of a feature that only a later release knows.
    """

    version: int = 0
    cluster_id: str = ""
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, TopicImage] = field(init=False, repr=False, compare=False)
    pending_purges: Mapping[TopicId, DeletedTopic] = field(default_factory=dict)
    next_producer_id: int = 0
    # Dynamic keys by node; None has the cluster-wide ones.
    broker_properties: Mapping[NodeId | None, Mapping[str, str]] = field(default_factory=dict)
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    # Properties by group, SCRAM credentials by user.
    group_properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    scram_credentials: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Finalized levels that were set, by feature: see `features.py`.
    feature_levels: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_levels(self.feature_levels)
        by_id = {topic.topic_id: topic for topic in self.topics.values()}
        object.__setattr__(self, "topics_by_id", by_id)
        for one in fields(self):
            if isinstance(value := getattr(self, one.name), dict):
                object.__setattr__(self, one.name, MappingProxyType(value))

    def finalized_level(self, feature: str) -> int:
        """Returns the finalized level of a feature of `FEATURES` (KIP-584)."""
        return self.feature_levels.get(feature, FEATURES[feature].highest)

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """Returns the partition, or None if there is no such topic or number."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def apply(self, record: MetadataRecord) -> MetadataImage:
        """Returns the image after one more entry that holds only `record`. Raises CorruptFile."""
        return self.apply_entry((record,))

    def apply_entry(self, records: Iterable[MetadataRecord]) -> MetadataImage:
        """Returns the image after one more entry. Raises CorruptFile if a record does not fit."""
        return replay(self, (records,))

    def __repr__(self) -> str:
        return (
            f"<MetadataImage {self.version} of {self.cluster_id or 'no cluster'}:"
            f" {len(self.topics)} topics, {len(self.pending_purges)} to purge>"
        )


def replay(image: MetadataImage, entries: Iterable[Iterable[MetadataRecord]]) -> MetadataImage:
    """Returns the image after these entries, each raising the version by 1. Raises CorruptFile."""
    draft = _Draft(image)
    for records in entries:
        draft.version += 1
        for record in records:
            draft.apply(record)
    return draft.finish()


class _Draft:
    """A mutable copy, so that replaying thousands of entries does not copy thousands of images."""

    def __init__(self, image: MetadataImage) -> None:
        self.version = image.version
        self._cluster_id = image.cluster_id
        self._topics = dict(image.topics_by_id)
        self._ids = {topic.name: topic.topic_id for topic in image.topics.values()}
        self._purges = dict(image.pending_purges)
        self._next_producer_id = image.next_producer_id
        self._broker_properties = dict(image.broker_properties)
        self._client_quotas = dict(image.client_quotas)
        self._group_properties = dict(image.group_properties)
        self._scram_credentials = dict(image.scram_credentials)
        self._feature_levels = dict(image.feature_levels)

    def finish(self) -> MetadataImage:
        return MetadataImage(
            version=self.version,
            cluster_id=self._cluster_id,
            topics={topic.name: topic for topic in self._topics.values()},
            pending_purges=self._purges,
            next_producer_id=self._next_producer_id,
            broker_properties=self._broker_properties,
            client_quotas=self._client_quotas,
            group_properties=self._group_properties,
            scram_credentials=self._scram_credentials,
            feature_levels=self._feature_levels,
        )

    def apply(self, record: MetadataRecord) -> None:
        match record:
            case ClusterCreated():
                self._create_cluster(record)
            case BrokerStarted():
                self._start_broker(record.node_id)
            case TopicCreated():
                self._create_topic(record)
            case PartitionsAdded():
                self._add_partitions(record)
            case TopicConfigsSet():
                topic = self._topic(record.topic_id, record)
                self._topics[topic.topic_id] = replace(
                    topic, properties=MappingProxyType(dict(record.properties))
                )
            case TopicDeleted():
                self._delete_topic(record)
            case TopicPurged():
                if self._purges.pop(record.topic_id, None) is None:
                    raise self._misfit(record, "no such topic waits for its purge")
            case ProducerIdsAllocated():
                if record.next_producer_id < self._next_producer_id:
                    raise self._misfit(record, f"ids below {self._next_producer_id} are taken")
                self._next_producer_id = record.next_producer_id
            case LeaderEpochsRaised():
                self._raise_epochs(record)
            case BrokerConfigsSet():
                _set_or_drop(self._broker_properties, record.node_id, record.properties)
            case ClientQuotasSet():
                _set_or_drop(self._client_quotas, record.entity, record.quotas)
            case GroupConfigsSet():
                _set_or_drop(self._group_properties, record.group_id, record.properties)
            case ScramCredentialsSet():
                _set_or_drop(self._scram_credentials, record.user, record.credentials)
            case FeatureLevelSet():
                self._feature_levels[record.feature] = record.level

    def _create_cluster(self, record: ClusterCreated) -> None:
        if self._cluster_id or not record.cluster_id:
            raise self._misfit(record, f"the cluster is {self._cluster_id!r} already")
        self._cluster_id = record.cluster_id

    def _start_broker(self, node_id: NodeId) -> None:
        for topic in list(self._topics.values()):
            if any(partition.leader == node_id for partition in topic.partitions):
                partitions = tuple(
                    replace(partition, leader_epoch=partition.leader_epoch + 1)
                    if partition.leader == node_id
                    else partition
                    for partition in topic.partitions
                )
                self._topics[topic.topic_id] = replace(topic, partitions=partitions)

    def _raise_epochs(self, record: LeaderEpochsRaised) -> None:
        topic = self._topic(record.topic_id, record)
        partitions = list(topic.partitions)
        for number, epoch in record.leader_epochs:
            if not 0 <= number < len(partitions):
                raise self._misfit(record, f"the topic has {len(partitions)} partitions")
            raised = max(epoch, partitions[number].leader_epoch)
            partitions[number] = replace(partitions[number], leader_epoch=raised)
        self._topics[topic.topic_id] = replace(topic, partitions=tuple(partitions))

    def _create_topic(self, record: TopicCreated) -> None:
        if record.topic in self._ids:
            raise self._misfit(record, "the name is taken")
        if record.topic_id in self._topics or record.topic_id in self._purges:
            raise self._misfit(record, "the id is taken")
        self._ids[record.topic] = record.topic_id
        self._topics[record.topic_id] = TopicImage(
            name=record.topic,
            topic_id=record.topic_id,
            partitions=self._new_partitions(0, record.replicas, record),
            properties=MappingProxyType(dict(record.properties)),
        )

    def _add_partitions(self, record: PartitionsAdded) -> None:
        topic = self._topic(record.topic_id, record)
        if record.first_partition != len(topic.partitions):
            raise self._misfit(record, f"the topic has {len(topic.partitions)} partitions")
        added = self._new_partitions(record.first_partition, record.replicas, record)
        self._topics[topic.topic_id] = replace(topic, partitions=topic.partitions + added)

    def _new_partitions(
        self, first: int, replicas: tuple[Replicas, ...], record: MetadataRecord
    ) -> tuple[PartitionImage, ...]:
        if not replicas or not all(replicas):
            raise self._misfit(record, "a partition has no replica")
        return tuple(
            PartitionImage(
                partition=partition, leader=nodes[0], leader_epoch=0, replicas=nodes, isr=nodes
            )
            for partition, nodes in enumerate(replicas, start=first)
        )

    def _delete_topic(self, record: TopicDeleted) -> None:
        topic = self._topic(record.topic_id, record)
        del self._topics[topic.topic_id]
        del self._ids[topic.name]
        self._purges[topic.topic_id] = DeletedTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_count=topic.partition_count,
            properties=topic.properties,
        )

    def _topic(self, topic_id: TopicId, record: MetadataRecord) -> TopicImage:
        topic = self._topics.get(topic_id)
        if topic is None:
            raise self._misfit(record, "there is no such topic")
        return topic

    def _misfit(self, record: MetadataRecord, why: str) -> CorruptFile:
        return CorruptFile(f"metadata log entry {self.version}: {why}: {record}")


def _set_or_drop(
    settings: MutableMapping[KeyT, Mapping[str, ValueT]], key: KeyT, values: Mapping[str, ValueT]
) -> None:
    """Sets `values`, or drops the key if there are none."""
    if values:
        settings[key] = MappingProxyType(dict(values))
    else:
        settings.pop(key, None)

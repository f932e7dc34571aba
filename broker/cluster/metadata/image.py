"""The cluster's metadata at one moment: an immutable value, derived from the metadata log.

    image 0 (empty)  --entry 1-->  image 1  --entry 2-->  image 2 ...
                         delta 1                delta 2

Version n is the state after log entry n. The same entries always give the same image, on every
broker; nothing in an image comes from anywhere else. A reader keeps the image it began with. What
entries do not change, two images share (section.py): an entry costs what it changes.

Invariant: a topic is reachable by name and by id, partitions are numbered from 0 without a gap,
and a leader epoch never goes back. A record that does not fit (a second topic of one name) means
that the log is not what the controller wrote: CorruptFile, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
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
from strandline.broker.cluster.metadata.section import ImageSection, SectionDelta
from strandline.broker.cluster.metadata.topic_names import collision_key
from strandline.storage.errors import CorruptFile
from strandline.storage.model import Epoch, TopicId, TopicPartition

NO_LEADER: NodeId = -1


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
    topics: ImageSection[str, TopicImage] = field(default_factory=ImageSection)
    topics_by_id: ImageSection[TopicId, TopicImage] = field(
        default_factory=ImageSection, compare=False
    )
    # The names of all topics by their collision keys.
    names_by_collision: ImageSection[str, str] = field(default_factory=ImageSection, compare=False)
    pending_purges: ImageSection[TopicId, DeletedTopic] = field(default_factory=ImageSection)
    next_producer_id: int = 0
    # Dynamic keys by node; None has the cluster-wide ones.
    broker_properties: ImageSection[NodeId | None, Mapping[str, str]] = field(
        default_factory=ImageSection
    )
    client_quotas: ImageSection[QuotaEntity, Mapping[str, float]] = field(
        default_factory=ImageSection
    )
    # Properties by group, SCRAM credentials by user.
    group_properties: ImageSection[str, Mapping[str, str]] = field(default_factory=ImageSection)
    scram_credentials: ImageSection[str, Mapping[str, str]] = field(default_factory=ImageSection)
    # Finalized levels that were set, by feature: see `features.py`.
    feature_levels: ImageSection[str, int] = field(default_factory=ImageSection)

    def __post_init__(self) -> None:
        check_levels(self.feature_levels)

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
        delta = MetadataDelta(self)
        delta.replay(records)
        return delta.image()

    def __repr__(self) -> str:
        return (
            f"<MetadataImage {self.version} of {self.cluster_id or 'no cluster'}:"
            f" {len(self.topics)} topics, {len(self.pending_purges)} to purge>"
        )


class MetadataDelta:
    """What entries of the log change in an image (Kafka's MetadataDelta), section by section.

    Several entries are one delta: a topic that they create and delete does not appear in it. Those
    who follow the metadata look at what changed, and at nothing else.
    """

    def __init__(self, before: MetadataImage, after: MetadataImage | None = None) -> None:
        """Begins with the differences of the images; without `after` with none."""
        after = after or before
        self.before = before
        self.version = after.version
        self.cluster_id = after.cluster_id
        self.topics = SectionDelta(before.topics_by_id, after.topics_by_id)
        self._by_name = SectionDelta(before.topics, after.topics)
        self._collisions = SectionDelta(before.names_by_collision, after.names_by_collision)
        self.pending_purges = SectionDelta(before.pending_purges, after.pending_purges)
        self.next_producer_id = after.next_producer_id
        self.broker_properties = SectionDelta(before.broker_properties, after.broker_properties)
        self.client_quotas = SectionDelta(before.client_quotas, after.client_quotas)
        self.group_properties = SectionDelta(before.group_properties, after.group_properties)
        self.scram_credentials = SectionDelta(before.scram_credentials, after.scram_credentials)
        self.feature_levels = SectionDelta(before.feature_levels, after.feature_levels)

    def image(self) -> MetadataImage:
        """Returns the image after the changes; ends the delta."""
        return MetadataImage(
            version=self.version,
            cluster_id=self.cluster_id,
            topics=self._by_name.finish(),
            topics_by_id=self.topics.finish(),
            names_by_collision=self._collisions.finish(),
            pending_purges=self.pending_purges.finish(),
            next_producer_id=self.next_producer_id,
            broker_properties=self.broker_properties.finish(),
            client_quotas=self.client_quotas.finish(),
            group_properties=self.group_properties.finish(),
            scram_credentials=self.scram_credentials.finish(),
            feature_levels=self.feature_levels.finish(),
        )

    def set_topic(self, topic: TopicImage) -> None:
        """Creates the topic, or alters it."""
        if topic.topic_id not in self.topics.after:
            self._collisions.set(collision_key(topic.name), topic.name)
        self.topics.set(topic.topic_id, topic)
        self._by_name.set(topic.name, topic)

    def drop_topic(self, topic_id: TopicId) -> None:
        """Drops the topic, if there is one."""
        topic = self.topics.after.get(topic_id)
        if topic is not None:
            self.topics.set(topic_id, None)
            self._by_name.set(topic.name, None)
            self._collisions.set(collision_key(topic.name), None)

    def replay(self, records: Iterable[MetadataRecord]) -> None:
        """Applies one more entry. Raises CorruptFile if a record does not fit."""
        self.version += 1
        for record in records:
            self._apply(record)

    def _apply(self, record: MetadataRecord) -> None:
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
                properties = MappingProxyType(dict(record.properties))
                self.set_topic(replace(topic, properties=properties))
            case TopicDeleted():
                self._delete_topic(record)
            case TopicPurged():
                if record.topic_id not in self.pending_purges.after:
                    raise self._misfit(record, "no such topic waits for its purge")
                self.pending_purges.set(record.topic_id, None)
            case ProducerIdsAllocated():
                if record.next_producer_id < self.next_producer_id:
                    raise self._misfit(record, f"ids below {self.next_producer_id} are taken")
                self.next_producer_id = record.next_producer_id
            case LeaderEpochsRaised():
                self._raise_epochs(record)
            case BrokerConfigsSet():
                self.broker_properties.set(record.node_id, _settings(record.properties))
            case ClientQuotasSet():
                self.client_quotas.set(record.entity, _settings(record.quotas))
            case GroupConfigsSet():
                self.group_properties.set(record.group_id, _settings(record.properties))
            case ScramCredentialsSet():
                self.scram_credentials.set(record.user, _settings(record.credentials))
            case FeatureLevelSet():
                self.feature_levels.set(record.feature, record.level)

    def _create_cluster(self, record: ClusterCreated) -> None:
        if self.cluster_id or not record.cluster_id:
            raise self._misfit(record, f"the cluster is {self.cluster_id!r} already")
        self.cluster_id = record.cluster_id

    def _start_broker(self, node_id: NodeId) -> None:
        for topic in tuple(self.topics.after.values()):
            if any(partition.leader == node_id for partition in topic.partitions):
                partitions = tuple(
                    replace(partition, leader_epoch=partition.leader_epoch + 1)
                    if partition.leader == node_id
                    else partition
                    for partition in topic.partitions
                )
                self.set_topic(replace(topic, partitions=partitions))

    def _raise_epochs(self, record: LeaderEpochsRaised) -> None:
        topic = self._topic(record.topic_id, record)
        partitions = list(topic.partitions)
        for number, epoch in record.leader_epochs:
            if not 0 <= number < len(partitions):
                raise self._misfit(record, f"the topic has {len(partitions)} partitions")
            raised = max(epoch, partitions[number].leader_epoch)
            partitions[number] = replace(partitions[number], leader_epoch=raised)
        self.set_topic(replace(topic, partitions=tuple(partitions)))

    def _create_topic(self, record: TopicCreated) -> None:
        if record.topic in self._by_name.after:
            raise self._misfit(record, "the name is taken")
        if record.topic_id in self.topics.after or record.topic_id in self.pending_purges.after:
            raise self._misfit(record, "the id is taken")
        self.set_topic(
            TopicImage(
                name=record.topic,
                topic_id=record.topic_id,
                partitions=self._new_partitions(0, record.replicas, record),
                properties=MappingProxyType(dict(record.properties)),
            )
        )

    def _add_partitions(self, record: PartitionsAdded) -> None:
        topic = self._topic(record.topic_id, record)
        if record.first_partition != len(topic.partitions):
            raise self._misfit(record, f"the topic has {len(topic.partitions)} partitions")
        added = self._new_partitions(record.first_partition, record.replicas, record)
        self.set_topic(replace(topic, partitions=topic.partitions + added))

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
        self.drop_topic(topic.topic_id)
        deleted = DeletedTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_count=topic.partition_count,
            properties=topic.properties,
        )
        self.pending_purges.set(topic.topic_id, deleted)

    def _topic(self, topic_id: TopicId, record: MetadataRecord) -> TopicImage:
        topic = self.topics.after.get(topic_id)
        if topic is None:
            raise self._misfit(record, "there is no such topic")
        return topic

    def _misfit(self, record: MetadataRecord, why: str) -> CorruptFile:
        return CorruptFile(f"metadata log entry {self.version}: {why}: {record}")


def _settings(values: Mapping[str, ValueT]) -> Mapping[str, ValueT] | None:
    """Returns what a section holds of `values`: nothing if there are none."""
    return MappingProxyType(dict(values)) if values else None

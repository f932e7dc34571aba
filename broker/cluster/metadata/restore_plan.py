"""Corrects restored metadata: the mirrored image is reconciled with the archive.

The mirror follows the metadata log with a delay of seconds, and manifests are written separately,
so after the loss of a machine they may disagree. The archive is then authoritative:

    topic.json without a topic            created after the mirror's last entry: created again
    topic.json with more partitions       added after it: added again
    tombstone, but the topic lives        deleted after it: deleted
    a manifest with a higher epoch        the next epoch must be above it, or it is fenced
    producers above the allocated ids     no id may be allocated twice

The archive of a cluster is restored to one broker, which then has all partitions: the others are
gone, and so is what only their controllers know of.

Pure: images and facts in, records out. Of two live topics with one name, the one in the mirror
wins; the other is reported to the operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.broker.cluster.metadata.features import FEATURES
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import (
    NO_BROKER,
    NodeId,
    deletion_records,
    partition_records,
    topic_records,
)
from strandline.broker.protocol.formats.metadata_records import (
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    UnregisterBrokerRecord,
)
from strandline.storage.model import Epoch, TopicIdPartition
from strandline.storage.remote.manifest.topic_info import TopicInfo

# Ids may have been allocated after the mirror's last entry, and producers that live have them. The
# mirror lags by seconds, and by as long as the bucket is away: this many are not used up in months
# of that. There are 2^63 ids.
PRODUCER_IDS_SKIPPED = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCorrections:
    """Records to append to the mirrored metadata, in order, and problems left to the operator."""

    records: tuple[MetadataRecord, ...]
    problems: tuple[str, ...]


def correct_topics(
    image: MetadataImage, topics: Sequence[TopicInfo], *, node_id: NodeId
) -> MetadataCorrections:
    """Reconciles the topics with the bucket's topic.json objects."""
    records: list[MetadataRecord] = []
    problems: list[str] = []
    names = {name: topic.topic_id for name, topic in image.topics.items()}
    dead = {info.topic_id for info in topics if info.is_deleted}
    for topic in image.topics.values():
        if topic.topic_id in dead:
            records += deletion_records(topic.deleted(), topic.properties)
            del names[topic.name]
    for info in topics:
        if info.is_deleted or info.topic_id in image.pending_purges:
            continue
        known = image.topics_by_id.get(info.topic_id)
        if known is not None:
            added = info.partition_count - known.partition_count
            if added > 0:
                replicas = ((node_id,),) * added
                records += partition_records(info.topic_id, known.partition_count, replicas)
        elif info.topic in names:
            problems.append(
                f"{info.key}: the name belongs to topic id {names[info.topic]}; left out"
            )
        else:
            names[info.topic] = info.topic_id
            replicas = ((node_id,),) * info.partition_count
            records += topic_records(info.topic, info.topic_id, replicas, info.properties)
    return MetadataCorrections(records=tuple(records), problems=tuple(problems))


def correct_numbers(
    image: MetadataImage, epochs: Mapping[TopicIdPartition, Epoch], *, producer_id_max: int
) -> tuple[MetadataRecord, ...]:
    """Raises leader epochs and producer ids above all that were used."""
    records: list[MetadataRecord] = []
    for key, epoch in sorted(epochs.items()):
        topic = image.topics_by_id.get(key.topic_id)
        if topic is None or key.partition >= topic.partition_count:
            continue
        partition = topic.partitions[key.partition]
        if epoch > partition.leader_epoch:
            records.append(partition.with_leader_epoch(epoch).record(topic.topic_id))
    next_producer_id = max(image.next_producer_id, producer_id_max + 1) + PRODUCER_IDS_SKIPPED
    records.append(ProducerIdsRecord(broker_id=NO_BROKER, next_producer_id=next_producer_id))
    return tuple(records)


def take_over_records(image: MetadataImage, node_id: NodeId) -> tuple[MetadataRecord, ...]:
    """One broker has all partitions of a cluster, and controls itself from now on."""
    records: list[MetadataRecord] = []
    for name, level in image.feature_levels.items():
        known = FEATURES.get(name)
        highest = 0 if known is None else min(level, known.highest)
        if highest != level:
            records.append(FeatureLevelRecord(name=name, feature_level=highest))
    records += [
        UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
        for broker in image.brokers.values()
        if broker.broker_id != node_id
    ]
    for topic in image.topics.values():
        records += [
            partition.taken_over_by(node_id).record(topic.topic_id)
            for partition in topic.partitions
            if partition.replicas != (node_id,) or partition.leader != node_id
        ]
    return tuple(records)


def foreign_nodes(image: MetadataImage, node_id: NodeId) -> set[NodeId]:
    """Returns other brokers that lead partitions: a restore handles the data of one broker only."""
    return {
        partition.leader
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader != node_id
    }

"""What the metadata say when a lone broker becomes one of several, and when several become one.

Pure: an image in, records out. They say what is so then: which process leads, and who is there.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from strandline.broker.cluster.metadata.image import NO_LEADER, MetadataImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.cluster.replicas.tiers import is_tiered
from strandline.broker.protocol.formats.metadata_records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    UnregisterBrokerRecord,
)
from strandline.storage.errors import InvalidConfig
from strandline.storage.plurals import counted

SHOWN_MAX: Final = 10
FENCE: Final = 1


def led_by_none(image: MetadataImage, node_id: NodeId) -> Sequence[MetadataRecord]:
    """Fences the lone broker, whose process has ended: its next one may register at once."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.fenced:
        return ()
    without_leader = [
        PartitionChangeRecord(
            partition_id=partition.partition, topic_id=topic.topic_id, leader=NO_LEADER
        )
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader == node_id
    ]
    fenced = BrokerRegistrationChangeRecord(
        broker_id=node_id, broker_epoch=broker.broker_epoch, fenced=FENCE
    )
    return [*without_leader, fenced]


def led_by_one(image: MetadataImage, node_id: NodeId) -> Sequence[MetadataRecord]:
    """Lets one broker lead every partition; the others, which have none, are unregistered."""
    changes = [
        PartitionChangeRecord(
            partition_id=partition.partition,
            topic_id=topic.topic_id,
            leader=node_id,
            isr=None if partition.isr == (node_id,) else [node_id],
        )
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader != node_id or partition.isr != (node_id,)
    ]
    return [*changes, *without_brokers(image, (node_id,))]


def without_brokers(image: MetadataImage, kept: Container[NodeId]) -> Sequence[MetadataRecord]:
    """Unregisters the brokers that are not kept, which have no partition."""
    return [
        UnregisterBrokerRecord(broker_id=node_id, broker_epoch=image.brokers[node_id].broker_epoch)
        for node_id in sorted(image.brokers)
        if node_id not in kept
    ]


def check_alone(image: MetadataImage, *kept: NodeId) -> None:
    """Raises InvalidConfig if other brokers have partitions, with what is where."""
    elsewhere = [
        f"{topic.name}-{partition.partition} on {others}"
        for topic in sorted(image.topics.values(), key=lambda one: one.name)
        for partition in topic.partitions
        if (others := ", ".join(f"broker {one}" for one in partition.replicas if one not in kept))
    ]
    if elsewhere:
        shown = "; ".join(elsewhere[:SHOWN_MAX])
        more = len(elsewhere) - SHOWN_MAX
        raise InvalidConfig(
            f"{counted(len(elsewhere), 'partition')} would be without a broker: {shown}"
            + (f"; and {more:,} more" if more > 0 else "")
            + "; start as many brokers as before, and move these"
            " (kafka-reassign-partitions.sh), or delete their topics"
        )


def check_not_archived(image: MetadataImage) -> None:
    """Raises InvalidConfig for topics with an archive: its mirror is that of several brokers."""
    tiered = sorted(topic.name for topic in image.topics.values() if is_tiered(topic))
    if tiered:
        raise InvalidConfig(
            f"{counted(len(tiered), 'topic')} with an archive ({', '.join(tiered[:SHOWN_MAX])}):"
            " the bucket has the metadata of several brokers; stop them, and let `strandline"
            " restore` make one broker of it, in empty folders"
        )

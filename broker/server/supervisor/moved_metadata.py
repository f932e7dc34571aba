"""What the metadata say when a lone broker becomes one of several, and when several become one.

Pure: an image in, records out. They say what is so then: which process leads, and who is there.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from itertools import chain
from typing import Final

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.cluster.replicas.tiers import is_tiered
from strandline.broker.controller.directories import is_reserved
from strandline.broker.controller.heartbeats import fence, unregister
from strandline.broker.controller.messages import FenceBroker, UnregisterBroker
from strandline.broker.controller.partitions.alone import entries_of
from strandline.broker.protocol.formats.metadata_records import (
    UNASSIGNED_DIRECTORY,
    MetadataRecord,
    PartitionChangeRecord,
)
from strandline.storage.errors import InvalidConfig
from strandline.storage.plurals import counted

SHOWN_MAX: Final = 10


def led_by_none(image: MetadataImage, node_id: NodeId) -> Sequence[MetadataRecord]:
    """Fences the lone broker, whose process has ended: its next one may register at once.

    It tells itself then in which folders its logs are. A restore, or a new disk, has given it
    others than the metadata have, which nobody looked at meanwhile.
    """
    broker = image.brokers.get(node_id)
    if broker is None:
        return ()
    forgotten = [
        PartitionChangeRecord(
            partition_id=partition.partition,
            topic_id=topic.topic_id,
            directories=[UNASSIGNED_DIRECTORY] * len(partition.replicas),
        )
        for topic in image.topics.values()
        for partition in topic.partitions
        if not all(map(is_reserved, partition.directories))
    ]
    if forgotten:
        image = image.apply_entry(forgotten)
    asked = FenceBroker(node_id, broker.broker_epoch)
    entries, _ = entries_of(image, lambda partitions: fence(partitions, asked))
    return [*forgotten, *chain(*entries)]


def led_by_one(image: MetadataImage, node_id: NodeId) -> Sequence[MetadataRecord]:
    """Lets one broker lead every partition; the others, which have none, are unregistered."""
    changes = [
        PartitionChangeRecord(
            partition_id=partition.partition,
            topic_id=topic.topic_id,
            leader=node_id,
            isr=None if partition.isr == (node_id,) else [node_id],
            eligible_leader_replicas=[] if partition.eligible_leader_replicas else None,
            last_known_elr=[] if partition.last_known_elr else None,
        )
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader != node_id or partition.isr != (node_id,)
    ]
    return [*changes, *without_brokers(image, (node_id,))]


def without_brokers(image: MetadataImage, kept: Container[NodeId]) -> Sequence[MetadataRecord]:
    """Unregisters the brokers that are not kept, which have no partition."""
    records: list[MetadataRecord] = []
    for node_id in sorted(image.brokers):
        if node_id not in kept:
            asked = UnregisterBroker(node_id)
            entries, _ = entries_of(image, partial(unregister, asked=asked))
            records += chain(*entries)
    return records


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
    """Raises InvalidConfig for topics with an archive: a cluster keeps it in another way."""
    tiered = sorted(topic.name for topic in image.topics.values() if is_tiered(topic))
    if tiered:
        raise InvalidConfig(
            f"{counted(len(tiered), 'topic')} with an archive ({', '.join(tiered[:SHOWN_MAX])}),"
            " which a lone broker cannot take over from several: let `strandline restore` make one"
            " broker of the bucket, in empty folders"
        )

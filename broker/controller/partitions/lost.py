"""Partitions whose log folder did not come back with their broker."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.cluster.metadata.image import MetadataImage, PartitionImage, TopicImage
from strandline.broker.controller.directories import is_online
from strandline.broker.controller.partitions.decided import directory_of
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord


def in_lost_folders(
    image: MetadataImage, broker: RegisterBrokerRecord
) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """Yields the partitions of which a broker had a replica in a log folder that it lacks now."""
    node = broker.broker_id
    for topic in image.topics.values():
        for partition in topic.partitions:
            if node in partition.replicas and not is_online(broker, directory_of(partition, node)):
                yield topic, partition

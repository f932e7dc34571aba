"""The records that make an image out of nothing: a snapshot of the metadata log.

In the order of Kafka's MetadataImage.write: what a record names stands before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.cluster.metadata.image import MetadataImage, TopicImage
from strandline.broker.cluster.metadata.records import (
    ALL_BROKERS,
    config_records,
    pending_purge_record,
    quota_records,
    scram_records,
)
from strandline.broker.protocol.formats.metadata_records import (
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    ResourceType,
    TopicRecord,
)

NO_BROKER = -1


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yields the records; version, offset and cluster id of the image are not in them."""
    for feature, level in image.feature_levels.items():
        yield FeatureLevelRecord(name=feature, feature_level=level)
    yield from image.brokers.values()
    for topic in image.topics.values():
        yield from _topic_records(topic)
    for node_id, properties in image.broker_properties.items():
        name = ALL_BROKERS if node_id is None else str(node_id)
        yield from config_records(ResourceType.BROKER, name, {}, properties)
    for group_id, properties in image.group_properties.items():
        yield from config_records(ResourceType.GROUP, group_id, {}, properties)
    for deleted in image.pending_purges.values():
        yield pending_purge_record(deleted)
    for entity, quotas in image.client_quotas.items():
        yield from quota_records(entity, {}, quotas)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=NO_BROKER, next_producer_id=image.next_producer_id)
    for user, credentials in image.scram_credentials.items():
        yield from scram_records(user, {}, credentials)


def _topic_records(topic: TopicImage) -> Iterator[MetadataRecord]:
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    yield from config_records(ResourceType.TOPIC, topic.name, {}, topic.properties)
    for partition in topic.partitions:
        yield partition.record(topic.topic_id)

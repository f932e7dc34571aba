"""The records that make one image out of another: what a mirror of images has to append.

The notes of purges are left out: they are the mirror's own (cluster_mirror.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage, TopicImage
from strandline.broker.cluster.metadata.records import (
    ALL_BROKERS,
    NO_BROKER,
    NodeId,
    acl_record,
    config_records,
    quota_records,
    scram_records,
)
from strandline.broker.cluster.metadata.section import SectionDelta
from strandline.broker.protocol.formats.metadata_records import (
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.storage.model import TopicId

_NONE: Mapping[str, str] = {}


def changes_between(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord]:
    """Yields records in the order in which they can be applied to `before`."""
    delta = MetadataDelta(before, after)
    levels = after.feature_levels
    for feature in delta.feature_levels:
        yield FeatureLevelRecord(name=feature, feature_level=levels.get(feature, 0))
    for broker in delta.brokers.gone():
        yield UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    yield from delta.brokers.changed()
    yield from _topic_changes(delta.topics)
    for node_id in delta.broker_properties:
        name = ALL_BROKERS if node_id is None else str(node_id)
        yield from _property_changes(
            ConfigResourceType.BROKER, name, node_id, delta.broker_properties
        )
    for group_id in delta.group_properties:
        yield from _property_changes(
            ConfigResourceType.GROUP, group_id, group_id, delta.group_properties
        )
    for entity in delta.client_quotas:
        quotas = before.client_quotas.get(entity, {}), after.client_quotas.get(entity, {})
        yield from quota_records(entity, *quotas)
    if after.next_producer_id > before.next_producer_id:
        yield ProducerIdsRecord(broker_id=NO_BROKER, next_producer_id=after.next_producer_id)
    for user in delta.scram_credentials:
        credentials = before.scram_credentials.get(user, {}), after.scram_credentials.get(user, {})
        yield from scram_records(user, *credentials)
    for acl_id in delta.acls:
        if acl_id not in after.acls:
            yield RemoveAccessControlEntryRecord(id=acl_id)
    for acl_id in delta.acls:
        if acl_id in after.acls:
            yield acl_record(acl_id, after.acls[acl_id])


def _topic_changes(topics: SectionDelta[TopicId, TopicImage]) -> Iterator[MetadataRecord]:
    for topic in topics.gone():
        yield RemoveTopicRecord(topic_id=topic.topic_id)
    for topic in topics.changed():
        known = topics.before.get(topic.topic_id)
        if known is None:
            yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        yield from config_records(
            ConfigResourceType.TOPIC,
            topic.name,
            _NONE if known is None else known.properties,
            topic.properties,
        )
        partitions = () if known is None else known.partitions
        for one in topic.partitions:
            if one.partition >= len(partitions) or partitions[one.partition] != one:
                yield one.record(topic.topic_id)


def _property_changes(
    kind: ConfigResourceType,
    name: str,
    key: NodeId | str | None,
    section: SectionDelta[NodeId | None, Mapping[str, str]] | SectionDelta[str, Mapping[str, str]],
) -> Iterator[MetadataRecord]:
    before = section.before.get(key, _NONE)  # type: ignore[arg-type]
    yield from config_records(kind, name, before, section.after.get(key, _NONE))  # type: ignore[arg-type]

"""`min.insync.replicas` in a cluster that keeps eligible leader replicas (KIP-966).

Leaders acknowledge by it, and the controller knows by it who has all that was acknowledged. So it
is one value for all: a property of all brokers, which is there from the beginning, and never one of
a single broker. If it changes, of a topic or of all, nobody is eligible any more who was by the old
value. As Kafka's ConfigurationControlManager.

Beyond it: where nobody is in sync, nothing was acknowledged since, whatever the value is now. Those
who may lead there stay so: without them the partition would never have a leader again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.features import ELIGIBLE_LEADER_REPLICAS
from strandline.broker.cluster.metadata.image import MetadataImage, TopicImage
from strandline.broker.cluster.metadata.records import ALL_BROKERS, NodeId
from strandline.broker.protocol.formats.metadata_records import (
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode

MIN_ISR: Final = "min.insync.replicas"


def begin_elr(image: MetadataImage, configured: str) -> Sequence[MetadataRecord]:
    """Returns the records with which eligible leader replicas begin; none if they did before.

    `configured` is the value of the controller's file.
    """
    if image.finalized_level(ELIGIBLE_LEADER_REPLICAS):
        return ()
    records: list[MetadataRecord] = [
        FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS, feature_level=1)
    ]
    if MIN_ISR not in image.broker_properties.get(None, {}):
        records.append(_min_isr_record(ALL_BROKERS, configured))
    records += (
        _min_isr_record(str(node_id), None)
        for node_id, properties in image.broker_properties.items()
        if node_id is not None and MIN_ISR in properties
    )
    return records


def check_min_isr(
    image: MetadataImage,
    node_id: NodeId | None,
    before: Mapping[str, str],
    wanted: Mapping[str, str],
) -> None:
    """Raises Refusal for a value of one broker, and if that of all (None) is taken away."""
    if not image.finalized_level(ELIGIBLE_LEADER_REPLICAS):
        return
    if before.get(MIN_ISR) == wanted.get(MIN_ISR):
        return
    if node_id is not None:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled.",
        )
    if MIN_ISR not in wanted:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled.",
        )


def clear_elr(image: MetadataImage, records: Iterable[MetadataRecord]) -> Sequence[MetadataRecord]:
    """Returns the records after which nobody is eligible by a value that `records` change."""
    if not image.finalized_level(ELIGIBLE_LEADER_REPLICAS):
        return ()
    changed = [
        record for record in records if isinstance(record, ConfigRecord) and record.name == MIN_ISR
    ]
    cleared: list[MetadataRecord] = []
    for record in changed:
        is_topics = record.resource_type == ConfigResourceType.TOPIC
        name = record.resource_name if is_topics else ""
        cleared.append(ClearElrRecord(topic_name=name))
        topics = image.topics.values() if not name else filter(None, [image.topics.get(name)])
        for topic in topics:
            cleared += _without_leader(topic)
    return cleared


def _without_leader(topic: TopicImage) -> Iterator[PartitionChangeRecord]:
    """Yields who may lead the partitions where nobody is in sync, as it is noted now."""
    for one in topic.partitions:
        if not one.isr and (one.eligible_leader_replicas or one.last_known_elr):
            yield PartitionChangeRecord(
                partition_id=one.partition,
                topic_id=topic.topic_id,
                eligible_leader_replicas=one.eligible_leader_replicas,
                last_known_elr=one.last_known_elr,
            )


def _min_isr_record(resource_name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ConfigResourceType.BROKER,
        resource_name=resource_name,
        name=MIN_ISR,
        value=value,
    )

"""Reads the entries and snapshots that releases before Kafka's records wrote, as Kafka's records.

    entry      version 1         snapshot   versions 3 and 4 (with levels of features)

Their records are JSON objects with a `type`. Some say what follows from the image before them, so
each is translated on that image: `broker-started` raises the epoch of every partition that the
broker leads. Partitions had no epoch of their own; it is that of their leader. A feature without a
level had the highest one. See decision 26.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from strandline.broker.cluster.metadata.features import first_levels
from strandline.broker.cluster.metadata.image import MetadataDelta, PartitionImage, TopicImage
from strandline.broker.cluster.metadata.records import (
    ALL_BROKERS,
    NO_BROKER,
    DeletedTopic,
    NodeId,
    QuotaEntity,
    Replicas,
    config_records,
    deletion_records,
    finished_purge_record,
    may_be_archived,
    partition_records,
    pending_purge_record,
    quota_records,
    scram_records,
    topic_records,
)
from strandline.broker.protocol.formats.metadata_records import (
    UNASSIGNED_DIRECTORY,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.security.scram import ScramCredential
from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import TopicId
from strandline.storage.remote.manifest.json_document import Fields


def replay_old(entry: Iterable[Fields], delta: MetadataDelta) -> None:
    """Applies an entry of before. Raises CorruptFile or UnsupportedFormat."""
    delta.version += 1
    for fields in entry:
        delta.apply(_TRANSLATIONS[old_type(fields)](fields, delta))
    # Records were not counted.
    delta.next_offset = delta.version


def old_type(fields: Fields) -> str:
    """Returns the type of a record. Raises CorruptFile, or UnsupportedFormat for an unknown one."""
    found = fields.text("type")
    if found not in _TRANSLATIONS:
        raise UnsupportedFormat(f"metadata record of unknown type {found!r}")
    return found


def old_snapshot_records(fields: Fields, key: str) -> Iterator[MetadataRecord]:
    """Yields the records that make the image of a snapshot. Raises CorruptFile."""
    yield from first_levels()
    for one in fields.optional_objects("feature_levels"):
        yield FeatureLevelRecord(name=one.text("feature"), feature_level=one.integer("level"))
    for one in fields.objects("topics"):
        yield from _snapshot_topic(one, key)
    for one in fields.objects("pending_purges"):
        if may_be_archived(one.texts_by_name("properties")):
            yield pending_purge_record(
                DeletedTopic(
                    name=one.text("name"),
                    topic_id=one.uuid("topic_id"),
                    partition_count=one.integer("partition_count"),
                )
            )
    yield ProducerIdsRecord(
        broker_id=NO_BROKER, next_producer_id=fields.integer("next_producer_id")
    )
    for one in fields.objects("broker_configs"):
        yield from config_records(
            ConfigResourceType.BROKER, _broker_name(one), {}, one.texts_by_name("properties")
        )
    for one in fields.objects("client_quotas"):
        yield from quota_records(_entity(one), {}, _quotas(one))
    for one in fields.objects("group_configs"):
        yield from config_records(
            ConfigResourceType.GROUP, one.text("group_id"), {}, one.texts_by_name("properties")
        )
    for one in fields.objects("scram_credentials"):
        yield from scram_records(one.text("user"), {}, _credentials(one))


def _snapshot_topic(fields: Fields, key: str) -> Iterator[MetadataRecord]:
    name, topic_id = fields.text("name"), fields.uuid("topic_id")
    rows = list(fields.rows("partitions", 3))
    replicas = _replicas(fields, "replicas", first_partition=0)
    isr = _replicas(fields, "isr", first_partition=0)
    if not len(rows) == len(replicas) == len(isr) or not rows:
        raise CorruptFile(f"{key}: topic {name} has unequal lists of partitions")
    yield TopicRecord(name=name, topic_id=topic_id)
    yield from config_records(
        ConfigResourceType.TOPIC, name, {}, fields.texts_by_name("properties")
    )
    for partition, leader, leader_epoch in rows:
        if not 0 <= partition < len(rows):
            raise CorruptFile(f"{key}: topic {name} leaves out a partition")
        nodes = replicas[partition]
        yield PartitionImage(
            partition=partition,
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=leader_epoch,
            replicas=nodes,
            isr=isr[partition],
            directories=(UNASSIGNED_DIRECTORY,) * len(nodes),
        ).record(topic_id)


# --- records of entries ------------------------------------------------------------------------


def _cluster_created(_fields: Fields, _delta: MetadataDelta) -> list[MetadataRecord]:
    return first_levels()


def _broker_started(fields: Fields, delta: MetadataDelta) -> list[MetadataRecord]:
    node_id = fields.integer("node_id")
    return [
        PartitionChangeRecord(
            partition_id=partition.partition, topic_id=topic.topic_id, leader=node_id
        )
        for topic in delta.topics.after.values()
        for partition in topic.partitions
        if partition.leader == node_id
    ]


def _topic_created(fields: Fields, _delta: MetadataDelta) -> list[MetadataRecord]:
    return topic_records(
        fields.text("topic"),
        fields.uuid("topic_id"),
        _replicas(fields, "replicas", first_partition=0),
        fields.texts_by_name("properties"),
    )


def _partitions_added(fields: Fields, _delta: MetadataDelta) -> list[MetadataRecord]:
    first = fields.integer("first_partition")
    replicas = _replicas(fields, "replicas", first_partition=first)
    return partition_records(fields.uuid("topic_id"), first, replicas)


def _topic_configs_set(fields: Fields, delta: MetadataDelta) -> list[MetadataRecord]:
    topic = _topic(fields, delta)
    after = fields.texts_by_name("properties")
    return config_records(ConfigResourceType.TOPIC, topic.name, topic.properties, after)


def _topic_deleted(fields: Fields, delta: MetadataDelta) -> list[MetadataRecord]:
    topic = _topic(fields, delta)
    return deletion_records(topic.deleted(), topic.properties)


def _topic_purged(fields: Fields, delta: MetadataDelta) -> list[MetadataRecord]:
    topic_id = fields.uuid("topic_id")
    # One that never had an archive waited for its purge, too.
    return [finished_purge_record(topic_id)] if topic_id in delta.pending_purges.after else []


def _producer_ids_allocated(fields: Fields, _delta: MetadataDelta) -> list[MetadataRecord]:
    next_producer_id = fields.integer("next_producer_id")
    return [ProducerIdsRecord(broker_id=NO_BROKER, next_producer_id=next_producer_id)]


def _leader_epochs_raised(fields: Fields, delta: MetadataDelta) -> list[MetadataRecord]:
    topic = _topic(fields, delta)
    records: list[MetadataRecord] = []
    for number, epoch in fields.integer_pairs("leader_epochs"):
        if not 0 <= number < topic.partition_count:
            raise CorruptFile(f"metadata log entry {delta.version}: {topic.name} has no {number}")
        partition = topic.partitions[number]
        if epoch > partition.leader_epoch:
            records.append(partition.with_leader_epoch(epoch).record(topic.topic_id))
    return records


def _broker_configs_set(fields: Fields, delta: MetadataDelta) -> list[MetadataRecord]:
    before = delta.broker_properties.after.get(fields.optional_integer("node_id"), {})
    after = fields.texts_by_name("properties")
    return config_records(ConfigResourceType.BROKER, _broker_name(fields), before, after)


def _client_quotas_set(fields: Fields, delta: MetadataDelta) -> list[MetadataRecord]:
    entity = _entity(fields)
    return quota_records(entity, delta.client_quotas.after.get(entity, {}), _quotas(fields))


def _group_configs_set(fields: Fields, delta: MetadataDelta) -> list[MetadataRecord]:
    group_id = fields.text("group_id")
    before = delta.group_properties.after.get(group_id, {})
    return config_records(
        ConfigResourceType.GROUP, group_id, before, fields.texts_by_name("properties")
    )


def _scram_credentials_set(fields: Fields, delta: MetadataDelta) -> list[MetadataRecord]:
    user = fields.text("user")
    return scram_records(user, delta.scram_credentials.after.get(user, {}), _credentials(fields))


def _feature_level_set(fields: Fields, _delta: MetadataDelta) -> list[MetadataRecord]:
    return [FeatureLevelRecord(name=fields.text("feature"), feature_level=fields.integer("level"))]


_TRANSLATIONS: Mapping[str, Callable[[Fields, MetadataDelta], list[MetadataRecord]]] = {
    "cluster-created": _cluster_created,
    "broker-started": _broker_started,
    "topic-created": _topic_created,
    "partitions-added": _partitions_added,
    "topic-configs-set": _topic_configs_set,
    "topic-deleted": _topic_deleted,
    "topic-purged": _topic_purged,
    "producer-ids-allocated": _producer_ids_allocated,
    "leader-epochs-raised": _leader_epochs_raised,
    "broker-configs-set": _broker_configs_set,
    "client-quotas-set": _client_quotas_set,
    "group-configs-set": _group_configs_set,
    "scram-credentials-set": _scram_credentials_set,
    "feature-level-set": _feature_level_set,
}


# --- fields --------------------------------------------------------------------------------------


def _topic(fields: Fields, delta: MetadataDelta) -> TopicImage:
    topic_id: TopicId = fields.uuid("topic_id")
    topic = delta.topics.after.get(topic_id)
    if topic is None:
        raise CorruptFile(f"metadata log entry {delta.version}: there is no topic {topic_id}")
    return topic


def _replicas(fields: Fields, name: str, *, first_partition: int) -> tuple[Replicas, ...]:
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
    if not nodes:
        raise CorruptFile(f"metadata: {name} name no partition")
    return tuple(map(tuple, nodes))


def _broker_name(fields: Fields) -> str:
    node_id = fields.optional_integer("node_id")
    return ALL_BROKERS if node_id is None else str(node_id)


def _entity(fields: Fields) -> QuotaEntity:
    return QuotaEntity.of(fields.texts_by_name("entity"))


def _quotas(fields: Fields) -> dict[str, float]:
    texts = fields.texts_by_name("quotas")
    try:
        return {key: float(text) for key, text in texts.items()}
    except ValueError as error:
        raise CorruptFile(f"metadata: quotas hold something that is no number: {texts}") from error


def _credentials(fields: Fields) -> dict[str, ScramCredential]:
    texts = fields.texts_by_name("credentials")
    try:
        return {mechanism: ScramCredential.parse(text) for mechanism, text in texts.items()}
    except ValueError as error:
        raise CorruptFile(f"metadata: {error}") from error

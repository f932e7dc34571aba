"""Objects of the metadata log as bytes; see `metadata_log.py` for what they mean.

All are JSON documents with format, version and checksum. In a snapshot a topic's partitions are
rows [partition, leader, leader epoch], its replicas and in-sync replicas pairs [partition, node].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from strandline.broker.cluster.metadata.image import (
    DeletedTopic,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from strandline.broker.cluster.metadata.records import (
    MetadataRecord,
    QuotaEntity,
    decode_quotas,
    decode_record,
    decode_replicas,
    encode_quotas,
    encode_record,
    encode_replicas,
)
from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.remote.keys import (
    METADATA_BOUNDARY_KEY,
    METADATA_SNAPSHOT_PREFIX,
    parse_metadata_key,
)
from strandline.storage.remote.manifest.json_document import (
    Fields,
    Json,
    decode_document,
    encode_document,
)
from strandline.storage.system import crc32c

ENTRY_FORMAT = "strandline-metadata-entry"
SNAPSHOT_FORMAT = "strandline-metadata-snapshot"
BOUNDARY_FORMAT = "strandline-metadata-boundary"
VERSION = 1
VERSIONS = range(1, 2)
# Version 4 adds levels of features. It is written only where there are any: all else of an image is
# readable by releases that know version 3.
SNAPSHOT_VERSION = 3
SNAPSHOT_VERSION_WITH_FEATURES = 4
SNAPSHOT_VERSIONS = range(3, 5)

# Value of `previous` in the first entry.
NO_ENTRY_CHECKSUM = "00000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One decoded entry."""

    records: tuple[MetadataRecord, ...]
    previous: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One decoded snapshot; `head_checksum` is that of the entry it ends with."""

    image: MetadataImage
    head_checksum: str


def entry_checksum(content: bytes) -> str:
    """Returns the checksum that the next entry stores as `previous`."""
    return f"{crc32c.crc32c(content):08x}"


def encode_entry(
    records: Sequence[MetadataRecord], *, index: int, cluster_id: str, previous: str, writer: str
) -> bytes:
    """Encodes entry `index` as an object."""
    return encode_document(
        ENTRY_FORMAT,
        VERSION,
        {
            "cluster_id": cluster_id,
            "index": index,
            "previous": previous,
            "writer": writer,
            "records": [encode_record(record) for record in records],
        },
    )


def decode_entry(content: bytes, *, key: str, index: int) -> Entry:
    """Decodes entry `index`. Raises CorruptFile or UnsupportedFormat, naming `key`."""
    fields = decode_document(content, format_name=ENTRY_FORMAT, versions=VERSIONS, source=key)
    _check_index(fields, key, index)
    try:
        records = tuple(decode_record(record) for record in fields.objects("records"))
    except UnsupportedFormat as error:
        raise UnsupportedFormat(
            f"{key}: {error}: a later release wrote it, start that one or a newer one"
        ) from error
    if not records:
        raise CorruptFile(f"{key}: an entry without records")
    return Entry(records=records, previous=fields.text("previous"))


def encode_snapshot(image: MetadataImage, *, head_checksum: str) -> bytes:
    """Encodes the snapshot after entry `image.version`."""
    return encode_document(
        SNAPSHOT_FORMAT,
        SNAPSHOT_VERSION_WITH_FEATURES if image.feature_levels else SNAPSHOT_VERSION,
        {
            "cluster_id": image.cluster_id,
            "index": image.version,
            "previous": head_checksum,
            "topics": [_encode_topic(topic) for topic in image.topics.values()],
            "pending_purges": [_encode_purge(topic) for topic in image.pending_purges.values()],
            "next_producer_id": image.next_producer_id,
            "broker_configs": [
                {"node_id": node_id, "properties": dict(properties)}
                for node_id, properties in image.broker_properties.items()
            ],
            "client_quotas": [
                {"entity": dict(entity.names), "quotas": encode_quotas(quotas)}
                for entity, quotas in image.client_quotas.items()
            ],
            "group_configs": [
                {"group_id": group_id, "properties": dict(properties)}
                for group_id, properties in image.group_properties.items()
            ],
            "scram_credentials": [
                {"user": user, "credentials": dict(credentials)}
                for user, credentials in image.scram_credentials.items()
            ],
            "feature_levels": [
                {"feature": feature, "level": level}
                for feature, level in image.feature_levels.items()
            ],
        },
    )


def decode_snapshot(content: bytes, *, key: str, index: int) -> Snapshot:
    """Decodes the snapshot after entry `index`. Raises as `decode_entry`."""
    fields = decode_document(
        content, format_name=SNAPSHOT_FORMAT, versions=SNAPSHOT_VERSIONS, source=key
    )
    _check_index(fields, key, index)
    topics = [_decode_topic(topic, key) for topic in fields.objects("topics")]
    for names in ({topic.name for topic in topics}, {topic.topic_id for topic in topics}):
        if len(names) != len(topics):
            raise CorruptFile(f"{key}: two topics of one name or id")
    delta = MetadataDelta(
        MetadataImage(
            version=index,
            cluster_id=fields.text("cluster_id"),
            next_producer_id=fields.integer("next_producer_id"),
        )
    )
    for topic in topics:
        delta.set_topic(topic)
    for purge in map(_decode_purge, fields.objects("pending_purges")):
        delta.pending_purges.set(purge.topic_id, purge)
    for one in fields.objects("broker_configs"):
        delta.broker_properties.set(one.optional_integer("node_id"), _properties(one))
    for one in fields.objects("client_quotas"):
        quotas = MappingProxyType(decode_quotas(one, "quotas"))
        delta.client_quotas.set(QuotaEntity.of(one.texts_by_name("entity")), quotas)
    for one in fields.objects("group_configs"):
        delta.group_properties.set(one.text("group_id"), _properties(one))
    for one in fields.objects("scram_credentials"):
        credentials = MappingProxyType(one.texts_by_name("credentials"))
        delta.scram_credentials.set(one.text("user"), credentials)
    for one in fields.optional_objects("feature_levels"):
        delta.feature_levels.set(one.text("feature"), one.integer("level"))
    return Snapshot(image=delta.image(), head_checksum=fields.text("previous"))


def encode_boundary(index: int) -> bytes:
    """Encodes the boundary: entries up to `index` may be deleted."""
    return encode_document(BOUNDARY_FORMAT, VERSION, {"index": index})


def decode_boundary(content: bytes) -> int:
    """Returns the index in a boundary. Raises CorruptFile or UnsupportedFormat."""
    fields = decode_document(
        content, format_name=BOUNDARY_FORMAT, versions=VERSIONS, source=METADATA_BOUNDARY_KEY
    )
    return fields.count("index")


def check_document(content: bytes, *, key: str) -> None:
    """Raises CorruptFile or UnsupportedFormat unless `content` is an intact object for `key`."""
    index = parse_metadata_key(key)
    assert index is not None, key
    if key.startswith(METADATA_SNAPSHOT_PREFIX):
        decode_snapshot(content, key=key, index=index)
    else:
        decode_entry(content, key=key, index=index)


def cluster_id_of(content: bytes, *, key: str) -> str:
    """Returns the cluster id of an entry or snapshot. Raises CorruptFile or UnsupportedFormat."""
    is_snapshot = key.startswith(METADATA_SNAPSHOT_PREFIX)
    fields = decode_document(
        content,
        format_name=SNAPSHOT_FORMAT if is_snapshot else ENTRY_FORMAT,
        versions=SNAPSHOT_VERSIONS if is_snapshot else VERSIONS,
        source=key,
    )
    return fields.text("cluster_id")


def _check_index(fields: Fields, key: str, index: int) -> None:
    found = fields.integer("index")
    if found != index:
        raise CorruptFile(f"{key}: holds number {found}; it was renamed or copied")


def _encode_topic(topic: TopicImage) -> dict[str, Json]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partitions": [[p.partition, p.leader, p.leader_epoch] for p in topic.partitions],
        "replicas": encode_replicas((p.partition, p.replicas) for p in topic.partitions),
        "isr": encode_replicas((p.partition, p.isr) for p in topic.partitions),
        "properties": dict(topic.properties),
    }


def _decode_topic(fields: Fields, key: str) -> TopicImage:
    rows = list(fields.rows("partitions", 3))
    replicas = decode_replicas(fields, "replicas", first_partition=0)
    isr = decode_replicas(fields, "isr", first_partition=0)
    if not len(rows) == len(replicas) == len(isr) or not rows:
        raise CorruptFile(f"{key}: topic {fields.text('name')} has unequal lists of partitions")
    if [partition for partition, _, _ in rows] != list(range(len(rows))):
        raise CorruptFile(f"{key}: topic {fields.text('name')} leaves out a partition")
    return TopicImage(
        name=fields.text("name"),
        topic_id=fields.uuid("topic_id"),
        partitions=tuple(
            PartitionImage(
                partition=partition,
                leader=leader,
                leader_epoch=leader_epoch,
                replicas=replicas[partition],
                isr=isr[partition],
            )
            for partition, leader, leader_epoch in rows
        ),
        properties=_properties(fields),
    )


def _encode_purge(topic: DeletedTopic) -> dict[str, Json]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partition_count": topic.partition_count,
        "properties": dict(topic.properties),
    }


def _decode_purge(fields: Fields) -> DeletedTopic:
    return DeletedTopic(
        name=fields.text("name"),
        topic_id=fields.uuid("topic_id"),
        partition_count=fields.integer("partition_count"),
        properties=_properties(fields),
    )


def _properties(fields: Fields) -> Mapping[str, str]:
    return MappingProxyType(fields.texts_by_name("properties"))

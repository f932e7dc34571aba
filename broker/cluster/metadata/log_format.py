"""Objects of the metadata log as bytes; see `metadata_log.py` for what they mean.

All are JSON documents with format, version and checksum. The `records` of an entry are Kafka's, in
Kafka's JSON; those of a snapshot, which may be a hundred thousand, are a record batch of Kafka in
base64, as in Kafka's own snapshots. Documents of before are read as well (old_records.py).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage, TopicImage
from strandline.broker.cluster.metadata.old_records import (
    old_snapshot_records,
    old_type,
    replay_old,
)
from strandline.broker.cluster.metadata.records import (
    ALL_BROKERS,
    NO_BROKER,
    acl_record,
    config_records,
    pending_purge_record,
    quota_records,
    scram_records,
)
from strandline.broker.protocol.formats.metadata_records import (
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    TopicRecord,
    UnknownRecord,
    decode_record,
    encode_record,
    record_from_json,
    record_to_json,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.storage.errors import CorruptFile, CorruptRecords, UnsupportedFormat
from strandline.storage.model import Epoch, Offset
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.remote.keys import (
    METADATA_BOUNDARY_KEY,
    METADATA_SNAPSHOT_PREFIX,
    parse_metadata_key,
)
from strandline.storage.remote.manifest.json_document import (
    Fields,
    decode_document,
    encode_document,
)
from strandline.storage.system import crc32c

ENTRY_FORMAT = "strandline-metadata-entry"
SNAPSHOT_FORMAT = "strandline-metadata-snapshot"
BOUNDARY_FORMAT = "strandline-metadata-boundary"
BOUNDARY_VERSION = 1
# The versions before have records of their own; version 4 of a snapshot has levels of features.
VERSION = 2
# With the offset after the entry: in the mirror of a cluster, whose entries are not its records.
MIRROR_VERSION = 3
VERSIONS = range(1, 4)
SNAPSHOT_VERSION = 5
SNAPSHOT_VERSIONS = range(3, 6)

# Records of a snapshot that are encoded at a time: a few milliseconds.
RECORDS_PER_BATCH = 250

# Value of `previous` in the first entry.
NO_ENTRY_CHECKSUM = "00000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One decoded entry. One of before has `old` records, and its records were not counted.

    Without an epoch it is of that of the entry before. Without `next_offset` its records are those
    of the log that it counts.
    """

    cluster_id: str
    previous: str
    offset: Offset = 0
    next_offset: Offset | None = None
    epoch: Epoch | None = None
    records: tuple[MetadataRecord, ...] = ()
    old: tuple[Fields, ...] = ()

    def replay(self, delta: MetadataDelta) -> None:
        """Applies the entry. Raises CorruptFile or UnsupportedFormat."""
        if delta.cluster_id not in ("", self.cluster_id):
            raise CorruptFile(
                f"metadata log entry {delta.version + 1} is of cluster {self.cluster_id}, those"
                f" before it of {delta.cluster_id}"
            )
        delta.cluster_id = self.cluster_id
        if self.old:
            replay_old(self.old, delta)
            return
        if self.offset < delta.next_offset:
            raise CorruptFile(
                f"metadata log entry {delta.version + 1} begins at offset {self.offset}, those"
                f" before it end at {delta.next_offset}"
            )
        epoch = delta.epoch if self.epoch is None else self.epoch
        if epoch < delta.epoch:
            raise CorruptFile(
                f"metadata log entry {delta.version + 1} is of epoch {epoch}, those before it"
                f" are of {delta.epoch}"
            )
        delta.next_offset, delta.epoch = self.offset, epoch
        delta.replay(self.records)
        if self.next_offset is not None:
            if self.next_offset < self.offset:
                raise CorruptFile(f"metadata log entry {delta.version} ends before it begins")
            delta.next_offset = self.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One decoded snapshot; `head_checksum` is that of the entry it ends with."""

    image: MetadataImage
    head_checksum: str
    is_old: bool


def entry_checksum(content: bytes) -> str:
    """Returns the checksum that the next entry stores as `previous`."""
    return f"{crc32c.crc32c(content):08x}"


def encode_entry(
    records: Sequence[MetadataRecord],
    *,
    before: MetadataImage,
    epoch: Epoch,
    cluster_id: str,
    previous: str,
    writer: str,
    next_offset: Offset | None = None,
) -> bytes:
    """Encodes the entry after `before` as an object; `next_offset` as in `Entry`."""
    end = {} if next_offset is None else {"next_offset": next_offset}
    return encode_document(
        ENTRY_FORMAT,
        VERSION if next_offset is None else MIRROR_VERSION,
        {
            "cluster_id": cluster_id,
            "index": before.version + 1,
            "offset": before.next_offset,
            **end,
            **_epoch_field(epoch),
            "previous": previous,
            "writer": writer,
            "records": [record_to_json(record) for record in records],
        },
    )


def decode_entry(content: bytes, *, key: str, index: int) -> Entry:
    """Decodes entry `index`. Raises CorruptFile or UnsupportedFormat, naming `key`."""
    fields = decode_document(content, format_name=ENTRY_FORMAT, versions=VERSIONS, source=key)
    _check_index(fields, key, index)
    cluster_id, previous = fields.text("cluster_id"), fields.text("previous")
    found = tuple(fields.objects("records"))
    if not found:
        raise CorruptFile(f"{key}: an entry without records")
    if fields.integer("version") == 1:
        _check_old(found, key)
        return Entry(cluster_id=cluster_id, previous=previous, old=found)
    return Entry(
        cluster_id=cluster_id,
        previous=previous,
        offset=fields.count("offset"),
        next_offset=fields.optional_integer("next_offset"),
        epoch=fields.optional_integer("epoch"),
        records=_decode(found, key),
    )


def encode_snapshot(
    image: MetadataImage, *, head_checksum: str, pause: Callable[[], object] = lambda: None
) -> bytes:
    """Encodes the snapshot after entry `image.version`.

    Calls `pause` now and then: with 50,000 topics it takes a second.
    """
    return encode_document(
        SNAPSHOT_FORMAT,
        SNAPSHOT_VERSION,
        {
            "cluster_id": image.cluster_id,
            "index": image.version,
            "offset": image.next_offset,
            **_epoch_field(image.epoch),
            "previous": head_checksum,
            "records": _encode_batches(image_records(image), pause),
        },
    )


def decode_snapshot(content: bytes, *, key: str, index: int) -> Snapshot:
    """Decodes the snapshot after entry `index`. Raises as `decode_entry`."""
    fields = decode_document(
        content, format_name=SNAPSHOT_FORMAT, versions=SNAPSHOT_VERSIONS, source=key
    )
    _check_index(fields, key, index)
    is_old = fields.integer("version") < SNAPSHOT_VERSION
    delta = MetadataDelta(MetadataImage(version=index, cluster_id=fields.text("cluster_id")))
    if is_old:
        delta.apply(old_snapshot_records(fields, key))
        # Records were not counted.
        delta.next_offset = index
    else:
        delta.apply(_decode_batches(fields.text("records"), key))
        delta.next_offset = fields.count("offset")
        delta.epoch = fields.optional_integer("epoch") or 0
    return Snapshot(image=delta.image(), head_checksum=fields.text("previous"), is_old=is_old)


def _epoch_field(epoch: Epoch) -> dict[str, int]:
    """The log of a lone broker has none, nor knows an earlier release of it."""
    return {"epoch": epoch} if epoch else {}


def encode_boundary(index: int) -> bytes:
    """Encodes the boundary: entries up to `index` may be deleted."""
    return encode_document(BOUNDARY_FORMAT, BOUNDARY_VERSION, {"index": index})


def decode_boundary(content: bytes) -> int:
    """Returns the index in a boundary. Raises CorruptFile or UnsupportedFormat."""
    fields = decode_document(
        content,
        format_name=BOUNDARY_FORMAT,
        versions=range(1, BOUNDARY_VERSION + 1),
        source=METADATA_BOUNDARY_KEY,
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


def _encode_batches(records: Iterable[MetadataRecord], pause: Callable[[], object]) -> str:
    numbered, encoded = enumerate(records), bytearray()
    while values := [
        Record(offset=offset, timestamp_ms=0, key=None, value=encode_record(record))
        for offset, record in islice(numbered, RECORDS_PER_BATCH)
    ]:
        if encoded:
            pause()
        encoded += encode_batch(values)
    return base64.b64encode(encoded).decode()


def _decode_batches(text: str, key: str) -> Iterator[MetadataRecord]:
    try:
        encoded = base64.b64decode(text, validate=True)
        for batch in walk(encoded):
            for record in iter_records(encoded, batch.header, batch.position):
                yield decode_record(record.value or b"")
    except UnknownRecord as error:
        raise _of_later_release(key, error) from error
    except (MalformedRequest, CorruptRecords, ValueError) as error:
        raise CorruptFile(f"{key}: {error}") from error


def _decode(records: Iterable[Fields], key: str) -> tuple[MetadataRecord, ...]:
    try:
        return tuple(record_from_json(record.json) for record in records)
    except UnknownRecord as error:
        raise _of_later_release(key, error) from error
    except MalformedRequest as error:
        raise CorruptFile(f"{key}: {error}") from error


def _check_old(records: Iterable[Fields], key: str) -> None:
    try:
        for record in records:
            old_type(record)
    except UnsupportedFormat as error:
        raise _of_later_release(key, error) from error


def _of_later_release(key: str, error: Exception) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{key}: {error}: a later release wrote it, start that one or a newer one"
    )


# --- the records of an image ---------------------------------------------------------------------


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yields the records that make an image out of nothing, without version, offset and cluster.

    In the order of Kafka's MetadataImage.write: what a record names stands before it.
    """
    for feature, level in image.feature_levels.items():
        yield FeatureLevelRecord(name=feature, feature_level=level)
    yield from image.brokers.values()
    for topic in image.topics.values():
        yield from _topic_records(topic)
    for node_id, properties in image.broker_properties.items():
        name = ALL_BROKERS if node_id is None else str(node_id)
        yield from config_records(ConfigResourceType.BROKER, name, {}, properties)
    for group_id, properties in image.group_properties.items():
        yield from config_records(ConfigResourceType.GROUP, group_id, {}, properties)
    for deleted in image.pending_purges.values():
        yield pending_purge_record(deleted)
    for entity, quotas in image.client_quotas.items():
        yield from quota_records(entity, {}, quotas)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=NO_BROKER, next_producer_id=image.next_producer_id)
    for user, credentials in image.scram_credentials.items():
        yield from scram_records(user, {}, credentials)
    for acl_id, acl in image.acls.items():
        yield acl_record(acl_id, acl)


def _topic_records(topic: TopicImage) -> Iterator[MetadataRecord]:
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    yield from config_records(ConfigResourceType.TOPIC, topic.name, {}, topic.properties)
    for partition in topic.partitions:
        yield partition.record(topic.topic_id)

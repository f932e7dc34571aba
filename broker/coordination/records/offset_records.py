"""Converts the coordinator's records to and from batches of `__consumer_offsets`.

    CoordinatorRecord   <->   key and value in Kafka's formats   <->   one record batch

Commits of a transaction, and the marker that ends it, carry their producer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from strandline.broker.coordination.model.offset_messages import (
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
)
from strandline.broker.coordination.records.consumer_records import (
    decode_consumer_record,
    encode_consumer_record,
)
from strandline.broker.protocol.formats.consumer_group_records import CONSUMER_GROUP_TYPES
from strandline.broker.protocol.formats.offsets_topic import (
    GroupMetadataKey,
    OffsetCommitKey,
    UnknownKey,
    decode_group_metadata,
    decode_key,
    decode_offset_commit,
    encode_group_metadata,
    encode_key,
    encode_offset_commit,
)
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.storage.model import Buffer, Offset
from strandline.storage.records.batch.any_batch import iter_records, walk
from strandline.storage.records.batch.marker import MarkerType, read_marker
from strandline.storage.records.batch.record import Record, encode_batch


@dataclass(frozen=True, slots=True)
class TransactionalRecord:
    """A record that takes effect once its producer's transaction is committed."""

    producer_id: int
    record: CoordinatorRecord


@dataclass(frozen=True, slots=True)
class LoadedMarker:
    """The end of a producer's transaction."""

    producer_id: int
    end: MarkerType


LoadedRecord: TypeAlias = CoordinatorRecord | TransactionalRecord | LoadedMarker


def encode_records(
    records: Sequence[CoordinatorRecord],
    now_ms: int,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytearray:
    """Encodes these records as one batch, ready to be appended; with a producer, transactional."""
    return bytearray(
        encode_batch(
            [
                Record(offset=position, timestamp_ms=now_ms, key=key, value=value)
                for position, (key, value) in enumerate(map(_encode, records))
            ],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )
    )


def decode_records(buffer: Buffer, offset: Offset) -> Iterator[LoadedRecord]:
    """Decodes the records from `offset` on; skips those of group kinds that are not served.

    Raises MalformedRequest with the record's offset, CorruptRecords.
    """
    for batch in walk(buffer):
        header = batch.header
        if header.next_offset <= offset:
            continue
        if header.is_control:
            marker = read_marker(buffer, header, batch.position)
            if marker is not None:
                yield LoadedMarker(header.producer_id, marker.type)
            continue
        for record in iter_records(buffer, header, batch.position):
            if record.key is None:
                continue
            try:
                decoded = decode_record(record.key, record.value)
            except MalformedRequest as error:
                raise MalformedRequest(f"offset {record.offset}: {error}") from error
            if decoded is None:
                continue
            is_pending = header.is_transactional
            yield TransactionalRecord(header.producer_id, decoded) if is_pending else decoded


def decode_record(key_bytes: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Decodes one record; None if it belongs to a group kind that is not served.

    Raises MalformedRequest.
    """
    key = decode_key(key_bytes)
    if isinstance(key, UnknownKey):
        if key.record_type not in CONSUMER_GROUP_TYPES:
            return None
        return decode_consumer_record(key_bytes, value)
    if isinstance(key, GroupMetadataKey):
        return GroupRecord(key.group, None if value is None else decode_group_metadata(value))
    committed = None if value is None else decode_offset_commit(value)
    return OffsetRecord(key.group, key.topic, key.partition, committed)


def _encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Encodes key and value."""
    if isinstance(record, GroupRecord):
        key = encode_key(GroupMetadataKey(group=record.group_id))
        return key, None if record.snapshot is None else encode_group_metadata(record.snapshot)
    if not isinstance(record, OffsetRecord):
        return encode_consumer_record(record)
    key = encode_key(
        OffsetCommitKey(group=record.group_id, topic=record.topic, partition=record.partition)
    )
    return key, None if record.committed is None else encode_offset_commit(record.committed)

"""A snapshot of the metadata as bytes, as Kafka's controllers send it (KIP-630).

    control batch   SnapshotHeaderRecord: the time of the newest record in it
    control batch   who votes: this controller
    batches         the records that make the image out of nothing
    control batch   SnapshotFooterRecord: it is complete

Offsets count from 0; they are not those of the log. Its id is where it ends in the log, and the
epoch there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.log_format import image_records
from strandline.broker.protocol.formats.metadata_records import MetadataRecord, encode_record
from strandline.broker.protocol.formats.quorum_records import (
    QuorumRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    encode_quorum_record,
)
from strandline.storage.model import Epoch, Offset, TimestampMs
from strandline.storage.records.batch.record import Record, encode_batch

# As much as a reader decodes at once.
RECORDS_PER_BATCH: Final = 1000


def encode_snapshot(
    image: MetadataImage, quorum: Sequence[QuorumRecord], now_ms: TimestampMs
) -> bytes:
    """Encodes the snapshot that ends where the image does; takes a second at 50,000 topics.

    `quorum` are the control records that are in force.
    """
    epoch = image.epoch
    header = SnapshotHeaderRecord(last_contained_log_timestamp=now_ms)
    snapshot = bytearray(control_batch([header], 0, epoch, now_ms))
    snapshot += control_batch(quorum, 1, epoch, now_ms)
    offset = 1 + len(quorum)
    records = image_records(image)
    while batch := list(islice(records, RECORDS_PER_BATCH)):
        snapshot += batch_of(batch, offset, epoch, now_ms)
        offset += len(batch)
    snapshot += control_batch([SnapshotFooterRecord()], offset, epoch, now_ms)
    return bytes(snapshot)


def batch_of(
    records: Sequence[MetadataRecord], base_offset: Offset, epoch: Epoch, now_ms: TimestampMs
) -> bytes:
    """Encodes records of one entry as a batch of Kafka's metadata log."""
    return encode_batch(list(_numbered(records, base_offset, now_ms)), leader_epoch=epoch)


def _numbered(
    records: Sequence[MetadataRecord], base_offset: Offset, now_ms: TimestampMs
) -> Iterator[Record]:
    for offset, record in enumerate(records, base_offset):
        yield Record(offset=offset, timestamp_ms=now_ms, key=None, value=encode_record(record))


def control_batch(
    records: Sequence[QuorumRecord], base_offset: Offset, epoch: Epoch, now_ms: TimestampMs
) -> bytes:
    """Encodes control records as a batch."""
    numbered = []
    for offset, record in enumerate(records, base_offset):
        key, value = encode_quorum_record(record)
        numbered.append(Record(offset=offset, timestamp_ms=now_ms, key=key, value=value))
    return encode_batch(numbered, leader_epoch=epoch, control=True)

"""A snapshot of the metadata as bytes, as Kafka's controllers send it (KIP-630).

    control batch   SnapshotHeaderRecord: the time of the newest record in it
    batches         the records that make the image out of nothing
    control batch   SnapshotFooterRecord: it is complete

Offsets count from 0; they are not those of the log. Its id is where it ends in the log, and the
epoch there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.log_format import image_records
from strandline.broker.protocol.formats.metadata_records import MetadataRecord, encode_record
from strandline.storage.model import Epoch, Offset, TimestampMs
from strandline.storage.records.batch.record import Record, encode_batch

_HEADER_TYPE: Final = 3
_FOOTER_TYPE: Final = 4
_CONTROL_KEY: Final = struct.Struct(">hh")
# Each has a version, 0, and ends with no tagged field.
_HEADER: Final = struct.Struct(">hqB")
_FOOTER: Final = struct.Struct(">hB")
# As much as a reader decodes at once.
RECORDS_PER_BATCH: Final = 1000


def encode_snapshot(image: MetadataImage, now_ms: TimestampMs) -> bytes:
    """Encodes the snapshot that ends where the image does; takes a second at 50,000 topics."""
    snapshot = bytearray(_control_batch(0, image.epoch, _HEADER_TYPE, _HEADER.pack(0, now_ms, 0)))
    offset = 1
    records = image_records(image)
    while batch := list(islice(records, RECORDS_PER_BATCH)):
        snapshot += batch_of(batch, offset, image.epoch, now_ms)
        offset += len(batch)
    snapshot += _control_batch(offset, image.epoch, _FOOTER_TYPE, _FOOTER.pack(0, 0))
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


def _control_batch(offset: Offset, epoch: Epoch, kind: int, value: bytes) -> bytes:
    record = Record(offset=offset, timestamp_ms=0, key=_CONTROL_KEY.pack(0, kind), value=value)
    return encode_batch([record], leader_epoch=epoch, control=True)

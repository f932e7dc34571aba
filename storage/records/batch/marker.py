"""Markers: the control batches that end transactions.

    key    version i16 (0) | type i16 (0 abort, 1 commit)
    value  version i16 (0) | coordinator epoch i32

A producer's batches from its first record to the marker are one transaction.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from strandline.storage.errors import CorruptRecords, UnsupportedCodec
from strandline.storage.files import OpenFile
from strandline.storage.model import Buffer, TimestampMs
from strandline.storage.records.batch.batch import Batch, BatchHeader
from strandline.storage.records.batch.record import Record, encode_batch, iter_records

# A marker is one tiny record; a larger control batch is not a marker.
MARKER_BYTES_MAX = 64 * 1024

_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")


class MarkerType(IntEnum):
    """How a transaction ended; the type field of a control record's key."""

    ABORT = 0
    COMMIT = 1


class TransactionMarker(NamedTuple):
    """The content of a control record that ends a transaction."""

    type: MarkerType
    coordinator_epoch: int


def read_marker(buffer: Buffer, header: BatchHeader, position: int = 0) -> TransactionMarker | None:
    """The marker in the control batch at `position`; None for control records of other kinds.

    Raises CorruptRecords if the batch holds no control record.
    """
    if header.record_count == 0:
        # Compaction removed the marker and kept the header, for the producer or for the offset.
        return None
    try:
        record = next(iter_records(buffer, header, position), None)
    except UnsupportedCodec as error:
        # No broker compresses markers with an unknown codec: to a reader this is damage.
        raise CorruptRecords(f"control batch at offset {header.base_offset}: {error}") from error
    if record is None or record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptRecords(f"control batch at offset {header.base_offset} has no control key")
    _, marker_type = _CONTROL_KEY.unpack_from(record.key)
    if marker_type not in (MarkerType.ABORT, MarkerType.COMMIT):
        return None
    if record.value is None or len(record.value) < _CONTROL_VALUE.size:
        raise CorruptRecords(f"marker at offset {header.base_offset} has no coordinator epoch")
    return TransactionMarker(MarkerType(marker_type), _CONTROL_VALUE.unpack_from(record.value)[1])


def marker_in(file: OpenFile, batch: Batch) -> TransactionMarker | None:
    """The marker that a batch of a log file holds; None if it holds none.

    Raises CorruptRecords if it is a control batch without a control record.
    """
    size_bytes = batch.header.size_bytes
    if not batch.header.is_control:
        return None
    if size_bytes > MARKER_BYTES_MAX:
        raise CorruptRecords(f"control batch of {size_bytes} bytes")
    return read_marker(file.read_at(batch.position, size_bytes), batch.header)


def encode_marker(marker: TransactionMarker) -> tuple[bytes, bytes]:
    """Key and value of a marker's control record."""
    return _CONTROL_KEY.pack(0, marker.type), _CONTROL_VALUE.pack(0, marker.coordinator_epoch)


def encode_marker_batch(
    marker: TransactionMarker, *, producer_id: int, producer_epoch: int, now_ms: TimestampMs
) -> bytes:
    """The control batch that ends a producer's transaction."""
    key, value = encode_marker(marker)
    return encode_batch(
        [Record(offset=0, timestamp_ms=now_ms, key=key, value=value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )

"""Rewrites a batch without some of its records.

    stays     base offset, last offset delta, leader epoch, producer, epoch, sequence, codec
    changes   length, CRC, record count, max timestamp; with a delete horizon the base timestamp,
              which then *is* that horizon, and attribute bit 6 says so (KIP-534)

So checks of offsets, duplicates and sequences give the same answer as before the compaction.
"""

from __future__ import annotations

from strandline.storage.model import NO_TIMESTAMP, Buffer
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.compression import compress
from strandline.storage.system import crc32c

_KEPT_IN_EMPTY = (
    batch_format.TIMESTAMP_TYPE_BIT | batch_format.TRANSACTIONAL_BIT | batch_format.CONTROL_BIT
)


def rewritten_batch(
    original: Buffer,
    records: Buffer,
    *,
    record_count: int,
    max_timestamp_ms: int,
    delete_horizon_ms: int | None,
) -> bytes:
    """The batch with `records` as its records: uncompressed, relative to its base timestamp.

    With `delete_horizon_ms` the records are relative to that.
    """
    fields = list(batch_format.HEADER.unpack_from(original))
    attributes = fields[5]
    body = compress(attributes & batch_format.CODEC_MASK, records)
    if delete_horizon_ms is not None:
        fields[5] = attributes | batch_format.DELETE_HORIZON_BIT
        fields[7] = delete_horizon_ms
    fields[8] = max_timestamp_ms
    fields[12] = record_count
    return _assembled(fields, body)


def empty_batch(original: Buffer) -> bytes:
    """The batch without records: only its header, as Kafka writes it."""
    fields = list(batch_format.HEADER.unpack_from(original))
    fields[5] &= _KEPT_IN_EMPTY
    fields[7] = NO_TIMESTAMP
    fields[12] = 0
    return _assembled(fields, b"")


def _assembled(fields: list[int], body: bytes) -> bytes:
    fields[1] = batch_format.BATCH_LENGTH_MIN + len(body)
    header = bytearray(batch_format.HEADER.pack(*fields))
    crc = crc32c.crc32c(memoryview(header)[batch_format.CRC_START :])
    batch_format.CRC_FIELD.pack_into(header, batch_format.CRC_POSITION, crc32c.crc32c(body, crc))
    return b"".join((header, body))

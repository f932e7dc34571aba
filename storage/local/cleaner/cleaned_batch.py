"""Rewrites a batch without some of its records.

    stays     base offset, last offset delta, leader epoch, producer, epoch, sequence, codec
    changes   length, CRC, record count, max timestamp; with a delete horizon the base timestamp,
              which then *is* that horizon, and attribute bit 6 says so (KIP-534)

So checks of offsets, duplicates and sequences give the same answer as before the compaction.
"""

from __future__ import annotations

from strandline.storage.model import NO_TIMESTAMP, Buffer
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import with_crc
from strandline.storage.records.compression import compress

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
    header = batch_format.read_header(original)
    body = compress(header.codec, records)
    if delete_horizon_ms is not None:
        attributes = header.attributes | batch_format.DELETE_HORIZON_BIT
        header = header._replace(attributes=attributes, base_timestamp_ms=delete_horizon_ms)
    header = header._replace(max_timestamp_ms=max_timestamp_ms, record_count=record_count)
    return _assembled(header, body)


def empty_batch(original: Buffer) -> bytes:
    """Returns the batch without records: only its header, as Kafka writes it."""
    header = batch_format.read_header(original)
    attributes = header.attributes & _KEPT_IN_EMPTY
    return _assembled(
        header._replace(attributes=attributes, base_timestamp_ms=NO_TIMESTAMP, record_count=0), b""
    )


def _assembled(header: BatchHeader, body: bytes) -> bytes:
    header = header._replace(batch_length=batch_format.BATCH_LENGTH_MIN + len(body))
    return bytes(with_crc(bytearray(batch_format.HEADER.pack(*header)) + body))

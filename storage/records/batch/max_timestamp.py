"""Corrects batches whose max timestamp lies before their base timestamp.

    base timestamp    that of the first record
    max timestamp     that of the newest one, so never below it

Sarama, a Go client, wrote -1 as max timestamp up to 1.43.3 (2024). Lookups by time,
retention and rolling use this field, so the append of such a batch corrects it, as Kafka's
LogValidator does. That reads every record's timestamp; other errors of a max timestamp could be
found only by reading the records of every batch (docs/decisions/0005).
"""

from __future__ import annotations

import struct

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import NO_TIMESTAMP
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import INT64_MAX, with_crc
from strandline.storage.records.batch.stepper import step_records
from strandline.storage.records.compression import decompress

# A max timestamp before the base timestamp.
_TIMESTAMPS_POSITION = batch_format.MAX_TIMESTAMP_POSITION - 8
_unpack_timestamps = struct.Struct(">qq").unpack_from


def says_too_early(records: memoryview) -> bool:
    """Whether a v2 batch has a max timestamp below its base timestamp; False without a header."""
    if len(records) < batch_format.HEADER_BYTES:
        return False
    base_ms: int
    max_ms: int
    base_ms, max_ms = _unpack_timestamps(records, _TIMESTAMPS_POSITION)
    return max_ms < base_ms


def set_newest(records: memoryview, header: BatchHeader, *, bytes_max: int) -> None:
    """Writes the newest record's timestamp, or -1 if all are older, into the batch's header.

    `records` is the whole batch, writable; its CRC is recomputed. Raises CorruptRecords if they
    do not match the header, DecompressedTooLarge if they would take more than `bytes_max`.
    """
    payload = decompress(header.codec, records[batch_format.HEADER_BYTES :], bytes_max=bytes_max)
    deltas_ms = (delta_ms for *_, delta_ms in step_records(bytes(payload), header.record_count))
    newest_ms = max(NO_TIMESTAMP, header.base_timestamp_ms + max(deltas_ms, default=-INT64_MAX))
    if newest_ms > INT64_MAX:
        raise CorruptRecords(f"timestamp {newest_ms} has more than 64 bits")
    batch_format.OFFSET_FIELD.pack_into(records, batch_format.MAX_TIMESTAMP_POSITION, newest_ms)
    with_crc(records)

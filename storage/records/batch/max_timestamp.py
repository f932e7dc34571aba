"""The max timestamp of a batch, which is that of its newest record, whatever its producer wrote.

    Sarama up to 1.43.3     -1
    kafka-go's Conn         the time of the last record, which need not be the newest one

Lookups by time, retention, rolling and the limits of timestamps use this field. So every produced
batch has the times of its records read, as in Kafka's LogValidator, and a wrong field is replaced.
That also finds records that are more or fewer than the header says, or do not decompress.

A batch of a default `batch.size` is read on the event loop (`says_newest`), in 3 to 20 us. One that
may take more than a millisecond, and one that is wrong, goes to a worker thread (`set_newest`).
Figures are in docs/decisions/0005.
"""

from __future__ import annotations

from strandline.storage.errors import CorruptRecords, RecordsRejected
from strandline.storage.model import NO_TIMESTAMP, Buffer
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import INT64_MAX, with_crc
from strandline.storage.records.batch.stepper import newest_delta
from strandline.storage.records.compression import (
    DECOMPRESSED_BYTES_MAX,
    decompress,
    iter_decompressed,
)

# Bounds on what the event loop reads at once, of each about a millisecond: records, as many as
# librdkafka puts into a batch by default, and compressed bytes, with what they may become. Old Java
# producers make a block of each KiB; who makes many small ones has a worker's time.
_RECORDS_AT_ONCE_MAX = 10_000
_PACKED_BYTES_AT_ONCE_MAX = 64 * 1024
_BYTES_AT_ONCE_MAX = 256 * 1024
_BLOCKS_AT_ONCE_MAX = 64


def says_newest(records: memoryview) -> bool:
    """Whether a v2 batch has the newest record's timestamp as its max timestamp.

    False also if that is not known at once, and for bytes that are no batch. The CRC is not
    checked.
    """
    if len(records) < batch_format.HEADER_BYTES:
        return False
    base_ms: int
    max_ms: int
    (_, _, _, _, _, attributes, _, base_ms, max_ms, _, _, _, record_count) = (
        batch_format.HEADER.unpack_from(records)
    )
    payload: Buffer = records[batch_format.HEADER_BYTES :]
    codec = attributes & batch_format.CODEC_MASK
    if record_count > _RECORDS_AT_ONCE_MAX or (codec and len(payload) > _PACKED_BYTES_AT_ONCE_MAX):
        return False
    try:
        if codec:
            payload = decompress(
                codec, payload, bytes_max=_BYTES_AT_ONCE_MAX, blocks_max=_BLOCKS_AT_ONCE_MAX
            )
        newest_ms = base_ms + newest_delta((payload,), record_count)
    except RecordsRejected:
        return False
    return max_ms == max(newest_ms, NO_TIMESTAMP)


def set_newest(
    records: memoryview, header: BatchHeader, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> None:
    """Writes the newest record's timestamp, or -1 if all are older, into the batch's header.

    `records` is the whole batch, writable; if the header was wrong, its CRC is recomputed. Raises
    CorruptRecords if they do not match the header, DecompressedTooLarge if they would take more
    than `bytes_max`; holds a MiB of them at a time, except for snappy.
    """
    blocks = iter_decompressed(
        header.codec, records[batch_format.HEADER_BYTES :], bytes_max=bytes_max
    )
    newest_ms = header.base_timestamp_ms + newest_delta(blocks, header.record_count)
    if newest_ms > INT64_MAX:
        raise CorruptRecords(f"timestamp {newest_ms} has more than 64 bits")
    # As in Kafka, where the search for the newest begins at -1.
    newest_ms = max(newest_ms, NO_TIMESTAMP)
    if newest_ms != header.max_timestamp_ms:
        batch_format.OFFSET_FIELD.pack_into(records, batch_format.MAX_TIMESTAMP_POSITION, newest_ms)
        with_crc(records)


def newest_in(encoded: memoryview, header: BatchHeader) -> int:
    """Returns the largest record timestamp of a stored batch, read from its records.

    Earlier releases stored the max timestamp as it came. It is returned where the records cannot
    be read, as the statistics of an archived segment have it.
    """
    is_append_time = header.attributes & batch_format.TIMESTAMP_TYPE_BIT
    if header.magic != batch_format.MAGIC or is_append_time:
        return header.max_timestamp_ms
    packed = encoded[batch_format.HEADER_BYTES :]
    blocks = iter_decompressed(header.codec, packed, bytes_max=DECOMPRESSED_BYTES_MAX)
    try:
        return header.base_timestamp_ms + newest_delta(blocks, header.record_count)
    except RecordsRejected:
        return header.max_timestamp_ms

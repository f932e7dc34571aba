"""Preparation of records before the append, for topics that convert, recompress or check them.

    every batch                         -> its max timestamp is that of its newest record
    old message format                  -> one batch of v2          (Produce 0 to 2)
    compression.type differs            -> decompressed, compressed
    compacted topic, oldest timestamp   -> every record is checked

Preparation takes milliseconds, so it runs in a worker thread; the append follows on the loop. The
append checks producers and assigns offsets in the order of arrival, so preparation does not affect
idempotence. The hot path asks `needs_preparation`, which reads a batch of usual size at once, and
copies no batch that is right.
"""

from __future__ import annotations

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import (
    CorruptRecords,
    DecompressedTooLarge,
    InvalidRecords,
    UnsupportedCodec,
)
from strandline.storage.local.log.append_rules import (
    APPEND_BYTES_MAX,
    check_records,
    misshapen_batch,
    short_batch,
)
from strandline.storage.model import TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch import old_messages
from strandline.storage.records.batch.batch import BatchHeader, check_crc, read_header
from strandline.storage.records.batch.max_timestamp import says_newest, set_newest
from strandline.storage.records.batch.recompression import recompressed
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.compression import Codec


def needs_preparation(records: memoryview, config: LogConfig) -> bool:
    """Returns whether a v2 batch must go through `prepare` before it is appended.

    False also for bytes that are shorter than a batch: the append finds the error.
    """
    if len(records) < batch_format.HEADER_BYTES:
        return False
    if not config.stores_as_sent:
        if config.needs_records:
            return True
        codec = config.stored_codec
        (attributes,) = batch_format.ATTRIBUTES_FIELD.unpack_from(records, batch_format.CRC_START)
        if codec is not None and codec != attributes & batch_format.CODEC_MASK:
            return True
    return not says_newest(records)


def prepare(records: memoryview, config: LogConfig, *, now_ms: int) -> memoryview:
    """A v2 batch as the topic's configuration requires it, writable; `records` if its codec stays.

    Its max timestamp is that of its newest record. Blocks, and may change the header of `records`.
    Raises CorruptRecords, InvalidRecords, InvalidTimestamp, UnsupportedCodec, MessageTooLarge,
    DecompressedTooLarge.
    """
    header = _checked_header(records, config)
    try:
        set_newest(records, header)
        if config.needs_records:
            check_records(records, config, now_ms)
        target = config.stored_codec
        if target is None or target == header.codec or header.is_control:
            return records
        level = config.compression_level
        made = recompressed(records, header, codec=target, level=level, bytes_max=APPEND_BYTES_MAX)
    except DecompressedTooLarge:
        raise
    except CorruptRecords as error:
        # Their CRC is right: the producer wrote them like this. It retries corrupt batches, and
        # not invalid ones (Kafka's LogValidator).
        raise InvalidRecords(str(error)) from error
    return memoryview(made)


def prepare_old(records: memoryview, config: LogConfig, *, now_ms: int) -> memoryview:
    """Returns the one v2 batch that a set of old messages is converted to, writable.

    Offsets, wrappers and their codecs are dropped; times and order stay. The codec is that of the
    last wrapper unless the topic names one. Blocks; raises the errors of `prepare`.
    """
    if not records:
        raise InvalidRecords("no message to append")
    unpacked, codec = _unpack_old(records, config)
    target = config.stored_codec
    appended = bytearray(
        encode_batch(
            unpacked,
            base_offset=0,
            codec=Codec(codec if target is None else target),
            level=None if target is None else config.compression_level,
            timestamp_type=TimestampType.CREATE_TIME,
        )
    )
    view = memoryview(appended)
    if config.needs_records:
        check_records(view, config, now_ms)
    return view


def _unpack_old(records: memoryview, config: LogConfig) -> tuple[list[Record], int]:
    unpacked: list[Record] = []
    codec = position = total_bytes = 0
    while position < len(records):
        if not old_messages.is_old(records, position):
            raise InvalidRecords("old Produce versions take message formats 0 and 1 only")
        old_messages.check_crc(records, position)
        size_bytes = old_messages.message_bytes(records, position)
        if size_bytes > config.max_message_bytes:
            raise misshapen_batch(
                size_bytes, batch_format.MAGIC, size_bytes - old_messages.OVERHEAD_BYTES, config
            )
        codec = old_messages.codec_of(records, position)
        if codec > Codec.LZ4:
            raise UnsupportedCodec(f"codec {codec} is not known to old message formats")
        for record in old_messages.iter_records(
            records, position, bytes_max=APPEND_BYTES_MAX - total_bytes
        ):
            total_bytes += len(record.key or b"") + len(record.value or b"")
            unpacked.append(
                Record(
                    offset=len(unpacked),
                    timestamp_ms=record.timestamp_ms,
                    key=record.key,
                    value=record.value,
                )
            )
        position += size_bytes
    return unpacked, codec


def _checked_header(records: memoryview, config: LogConfig) -> BatchHeader:
    """Returns the header of `records`, which must be one whole v2 batch with a right CRC."""
    size_bytes = len(records)
    if size_bytes < batch_format.HEADER_BYTES:
        raise short_batch(records)
    fields = batch_format.HEADER.unpack_from(records)
    batch_length, magic = fields[1], fields[3]
    if (
        magic != batch_format.MAGIC
        or batch_length + batch_format.LOG_OVERHEAD_BYTES != size_bytes
        or size_bytes > config.max_message_bytes
    ):
        raise misshapen_batch(size_bytes, magic, batch_length, config)
    header = read_header(records)
    check_crc(records, header)
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise InvalidRecords(
            f"batch of {header.record_count} records has a last offset delta of"
            f" {header.last_offset_delta}"
        )
    if header.codec > batch_format.CODEC_LAST:
        raise UnsupportedCodec(f"compression codec {header.codec} is unknown")
    return header

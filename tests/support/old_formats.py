"""Message sets of v0 and v1, built by kafka-python as old clients built them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import lz4.frame
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from strandline.storage.records.batch.record import Record

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}


def message_set(records: Sequence[Record], *, magic: int, codec: int = 0) -> bytes:
    """The messages one behind another, or in one wrapper; offsets are what the log would hold."""
    if (magic, codec) == (0, CODECS["lz4"]):
        return _wrapped_by_old_lz4(message_set(records, magic=0), records[-1].offset)
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    first = records[0].offset
    for record in records:
        inner = record.offset - first if magic == 1 and codec else record.offset
        timestamp_ms = record.timestamp_ms if magic else None
        assert builder.append(inner, timestamp_ms, record.key, record.value)
    content = bytearray(builder.build())
    if codec:
        struct.pack_into(">q", content, 0, records[-1].offset)
    return bytes(content)


def _wrapped_by_old_lz4(messages: bytes, last_offset: int) -> bytes:
    """A v0 wrapper as Kafka 0.8 and 0.9 made it, with a header checksum that is wrong (KAFKA-3160).

    kafka-python needs another library for this one.
    """
    frame = bytearray(lz4.frame.compress(messages, block_linked=False, store_size=False))
    frame[6] ^= 0x5A
    wrapper = bytearray(struct.pack(">qiIbbii", last_offset, 0, 0, 0, 3, -1, len(frame)) + frame)
    struct.pack_into(">i", wrapper, 8, len(wrapper) - 12)
    return bytes(with_old_crc(wrapper))


def with_old_crc(message: bytearray) -> bytearray:
    """Makes the CRC of the one message that fills `message` true again."""
    struct.pack_into(">I", message, 12, zlib.crc32(message[16:]))
    return message

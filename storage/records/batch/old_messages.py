"""Reads message formats v0 and v1, from before record batches (Kafka 0.11).

    offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | [timestamp i64]
               | key length i32, key | value length i32, value         -1 means null

    size counts what follows it; the CRC-32 covers everything from `magic` on; v1 alone has the
    timestamp. Attributes: bits 0-2 codec, bit 3 (v1) the timestamp is the broker's.

A compressed run of messages is the value of a *wrapper* message:

    wrapper (offset 14, codec gzip)  { message 0 | message 1 | ... | message 4 }    v1: relative
                                     { message 10 | ... | message 14 }              v0: absolute

The wrapper's offset is that of its last message. So its first offset and its message count are
known only after decompression, and old segments are slow to walk.

A v2 batch corresponds to one message or one wrapper here; `read_header` describes it as a
BatchHeader without a producer, a leader epoch or a sequence.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import NO_TIMESTAMP, Buffer
from strandline.storage.records.batch.batch import CODEC_MASK, TIMESTAMP_TYPE_BIT, BatchHeader
from strandline.storage.records.batch.record import Record
from strandline.storage.records.compression import (
    DECOMPRESSED_BYTES_MAX,
    Codec,
    decompress,
    mend_old_lz4_frame,
)

MAGIC_V0 = 0
MAGIC_V1 = 1
OLD_MAGICS = (MAGIC_V0, MAGIC_V1)
# Codecs of wrappers; zstd came after these formats.
CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
# Offset and size: enough to step over a message.
OVERHEAD_BYTES = 12
MAGIC_POSITION = 16
_CRC_START = 16

_HEAD = struct.Struct(">qiIbb")  # offset, size, crc, magic, attributes
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
# The smallest `size`: crc, magic, attributes, two lengths.
SIZE_MIN = 14
MESSAGE_BYTES_MIN = OVERHEAD_BYTES + SIZE_MIN


class _Message(NamedTuple):
    """One message, undecoded; the value of a wrapper holds its messages."""

    offset: int
    size_bytes: int
    crc: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: bytes | None
    value: memoryview | None

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK


def is_old(buffer: Buffer, position: int = 0) -> bool:
    """Whether a message of v0 or v1 begins here; False if too few bytes are left to say so."""
    return (
        len(buffer) - position > MAGIC_POSITION and buffer[position + MAGIC_POSITION] in OLD_MAGICS
    )


def message_bytes(buffer: Buffer, position: int = 0) -> int:
    """The size that the message at `position` states. Raises CorruptRecords if it is too small."""
    (size,) = _LENGTH.unpack_from(buffer, position + 8)
    if size < SIZE_MIN:
        raise CorruptRecords(f"message size {size} is below {SIZE_MIN}")
    return OVERHEAD_BYTES + int(size)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Returns the message at `position`, which must be whole, as a v2 header.

    Raises CorruptRecords, also for a wrapper that does not decompress.
    """
    message = _read_message(buffer, position)
    base_offset, record_count = message.offset, 1
    timestamps = (message.timestamp_ms, message.timestamp_ms)
    if message.codec:
        records = _unwrap(message)
        first = next(records)
        base_offset, newest_ms = first.offset, first.timestamp_ms
        for record in records:
            record_count += 1
            newest_ms = max(newest_ms, record.timestamp_ms)
        timestamps = (first.timestamp_ms, newest_ms)
    return BatchHeader(
        base_offset=base_offset,
        batch_length=message.size_bytes - OVERHEAD_BYTES,
        leader_epoch=-1,
        magic=message.magic,
        crc=message.crc,
        attributes=message.attributes & (CODEC_MASK | TIMESTAMP_TYPE_BIT)
        if message.magic == MAGIC_V1
        else message.codec,
        last_offset_delta=message.offset - base_offset,
        base_timestamp_ms=timestamps[0],
        max_timestamp_ms=timestamps[1],
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=record_count,
    )


def check_crc(buffer: Buffer, position: int = 0) -> None:
    """Raises CorruptRecords unless the message at `position` is whole and its CRC-32 is right."""
    offset, size, crc, _, _ = _unpack_head(buffer, position)
    end = position + OVERHEAD_BYTES + size
    if size < SIZE_MIN or end > len(buffer):
        raise CorruptRecords(f"message of {size} bytes, {len(buffer) - position} are left")
    computed = zlib.crc32(memoryview(buffer)[position + _CRC_START : end])
    if computed != crc:
        raise CorruptRecords(
            f"CRC of the message at offset {offset} is {computed:#010x}, it says {crc:#010x}"
        )


def iter_records(
    buffer: Buffer, position: int = 0, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """Yields the records of the message at `position`: itself, or those that it wraps.

    Raises CorruptRecords; DecompressedTooLarge if a wrapper would become more than `bytes_max`.
    """
    message = _read_message(buffer, position)
    if message.codec:
        yield from _unwrap(message, bytes_max=bytes_max)
    else:
        yield _record(message, message.offset, message.timestamp_ms)


def codec_of(buffer: Buffer, position: int = 0) -> int:
    """Returns the codec of the message at `position`. Raises CorruptRecords."""
    _, _, _, _, attributes = _unpack_head(buffer, position)
    return int(attributes) & CODEC_MASK


def _unpack_head(buffer: Buffer, position: int) -> tuple[int, int, int, int, int]:
    if len(buffer) - position < MESSAGE_BYTES_MIN:
        raise CorruptRecords(
            f"a message has at least {MESSAGE_BYTES_MIN} bytes, {len(buffer) - position} are left"
        )
    offset, size, crc, magic, attributes = _HEAD.unpack_from(buffer, position)
    return offset, size, crc, magic, attributes


def _read_message(buffer: Buffer, position: int) -> _Message:
    offset, size, crc, magic, attributes = _unpack_head(buffer, position)
    end = position + OVERHEAD_BYTES + size
    if magic not in OLD_MAGICS:
        raise CorruptRecords(f"message magic is {magic}")
    if size < SIZE_MIN or end > len(buffer):
        raise CorruptRecords(f"message of {size} bytes, {len(buffer) - position} are left")
    view = memoryview(buffer)[position:end]
    at = _HEAD.size
    timestamp_ms = NO_TIMESTAMP
    if magic == MAGIC_V1:
        if len(view) < at + _TIMESTAMP.size:
            raise CorruptRecords(f"message of {size} bytes has no room for its timestamp")
        (timestamp_ms,) = _TIMESTAMP.unpack_from(view, at)
        at += _TIMESTAMP.size
    key, at = _nullable(view, at)
    value, at = _nullable(view, at)
    if at != len(view):
        raise CorruptRecords(f"message at offset {offset} has {len(view) - at} spare bytes")
    return _Message(
        offset,
        len(view),
        crc,
        magic,
        attributes,
        timestamp_ms,
        None if key is None else bytes(key),
        value,
    )


def _nullable(view: memoryview, at: int) -> tuple[memoryview | None, int]:
    if at + _LENGTH.size > len(view):
        raise CorruptRecords("message ends inside a length")
    (length,) = _LENGTH.unpack_from(view, at)
    at += _LENGTH.size
    if length == -1:
        return None, at
    if length < 0 or at + length > len(view):
        raise CorruptRecords(f"{length} bytes wanted, {len(view) - at} are left in the message")
    return view[at : at + length], at + length


def _unwrap(wrapper: _Message, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """Yields the messages of a wrapper, with their true offsets and times."""
    if wrapper.value is None:
        raise CorruptRecords(f"wrapper message at offset {wrapper.offset} wraps nothing")
    packed: Buffer = wrapper.value
    if wrapper.codec not in CODECS:
        raise CorruptRecords(
            f"codec {wrapper.codec} is not known to message format {wrapper.magic}"
        )
    if wrapper.codec == Codec.LZ4 and wrapper.magic == MAGIC_V0:
        packed = mend_old_lz4_frame(packed)
    payload = decompress(wrapper.codec, packed, bytes_max=bytes_max)
    # Walked twice rather than kept: the smallest messages may fill half a GiB.
    last_offset = _check_wrapped(wrapper, payload)
    base_offset = wrapper.offset - last_offset if wrapper.magic == MAGIC_V1 else 0
    is_append_time = wrapper.magic == MAGIC_V1 and wrapper.attributes & TIMESTAMP_TYPE_BIT
    position = 0
    while position < len(payload):
        message = _read_message(payload, position)
        position += message.size_bytes
        timestamp_ms = wrapper.timestamp_ms if is_append_time else message.timestamp_ms
        yield _record(message, base_offset + message.offset, timestamp_ms)


def _check_wrapped(wrapper: _Message, payload: Buffer) -> int:
    """The offset in the last message of `payload`, not yet absolute. Raises CorruptRecords."""
    position = last_offset = 0
    while position < len(payload):
        check_crc(payload, position)
        last_offset, size, _, magic, attributes = _unpack_head(payload, position)
        codec = attributes & CODEC_MASK
        if codec or magic != wrapper.magic:
            raise CorruptRecords(
                f"wrapper message at offset {wrapper.offset} wraps one of format {magic}"
                f" with codec {codec}"
            )
        position += OVERHEAD_BYTES + size
    if not position:
        raise CorruptRecords(f"wrapper message at offset {wrapper.offset} wraps nothing")
    return last_offset


def _record(message: _Message, offset: int, timestamp_ms: int) -> Record:
    value = None if message.value is None else bytes(message.value)
    return Record(offset=offset, timestamp_ms=timestamp_ms, key=message.key, value=value)

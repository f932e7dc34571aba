"""Converts batches to what old consumers read.

    Fetch 0 and 1   message format 0, without timestamps
    Fetch 2 and 3   message format 1
    Fetch 4 to 9    batches without zstd: only those of an archive are converted

A batch becomes its messages, in a wrapper with the same codec if it was compressed. Old formats
have no record headers, producers, epochs or control batches, so these are left out. Conversion
blocks while it decompresses and walks the records: call it in a worker thread. The converted size
is bounded: a few KB of a hostile batch could fill the memory as messages.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import chain

from strandline.storage.errors import DecompressedTooLarge, UnsupportedCodec
from strandline.storage.model import Buffer
from strandline.storage.records.batch import any_batch, old_messages
from strandline.storage.records.batch.batch import Batch
from strandline.storage.records.batch.recompression import recompressed
from strandline.storage.records.batch.record import Record
from strandline.storage.records.compression import Codec, compress

_CHECKED_HEAD = struct.Struct(">bb")
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")

# Bound on one batch, decompressed and as messages, and on all but the last one of an answer. An
# empty message has 34 bytes, a record 7.
CONVERTED_BYTES_MAX = 64 * 1024 * 1024


def down_convert(content: Buffer, *, magic: int, start_offset: int) -> bytes:
    """The batches of `content` as messages of `magic`; uncompressed ones from `start_offset` on.

    The first ones, if all would become more than CONVERTED_BYTES_MAX.

    Raises UnsupportedCodec for zstd, which old consumers do not know, CorruptRecords, and
    DecompressedTooLarge for a batch that would become more than CONVERTED_BYTES_MAX.
    """
    parts = []
    left_bytes = CONVERTED_BYTES_MAX
    for batch in any_batch.walk(content):
        if left_bytes <= 0:
            break
        if batch.header.is_control or not batch.header.record_count:
            continue
        if batch.header.magic <= magic:
            part = bytes(batch.encoded(content))
        else:
            part = _converted(content, batch, magic, start_offset)
        parts.append(part)
        left_bytes -= len(part)
    return b"".join(parts)


def without_zstd(content: Buffer) -> bytes:
    """The batches of `content`, uncompressed where they are zstd.

    Those that fit into the size of `content`, which the client's limits allowed; at least one with
    records for the client. Raises CorruptRecords, and DecompressedTooLarge for a batch of more than
    CONVERTED_BYTES_MAX.
    """
    parts: list[Buffer] = []
    left_bytes = len(content)
    has_records = False
    for batch in any_batch.walk(content):
        encoded: Buffer = batch.encoded(content)
        if batch.header.codec == Codec.ZSTD:
            encoded = recompressed(
                batch.encoded(content),
                batch.header,
                codec=Codec.NONE,
                level=None,
                bytes_max=CONVERTED_BYTES_MAX,
            )
        left_bytes -= len(encoded)
        if has_records and left_bytes < 0:
            break
        parts.append(encoded)
        has_records |= not batch.header.is_control and batch.header.record_count > 0
    return b"".join(parts)


def _converted(content: Buffer, batch: Batch, magic: int, start_offset: int) -> bytes:
    header = batch.header
    if header.codec == Codec.ZSTD:
        raise UnsupportedCodec("zstd needs Fetch version 10 or newer")
    records = any_batch.iter_records(content, header, batch.position, bytes_max=CONVERTED_BYTES_MAX)
    if header.codec:
        return _wrapper(records, header.codec, magic)
    return b"".join(
        _message(record.offset, record, magic)
        for record in records
        if record.offset >= start_offset
    )


def _wrapper(records: Iterator[Record], codec: int, magic: int) -> bytes:
    first = next(records, None)
    if first is None:
        return b""
    origin = first.offset if magic == old_messages.MAGIC_V1 else 0
    inner = bytearray()
    newest_ms, last_offset = first.timestamp_ms, first.offset
    for record in chain((first,), records):
        inner += _message(record.offset - origin, record, magic)
        if len(inner) > CONVERTED_BYTES_MAX:
            raise DecompressedTooLarge(
                f"the messages of offset {first.offset} and following exceed"
                f" {CONVERTED_BYTES_MAX} bytes"
            )
        newest_ms, last_offset = max(newest_ms, record.timestamp_ms), record.offset
    wrapper = Record(
        offset=last_offset, timestamp_ms=newest_ms, key=None, value=compress(codec, inner)
    )
    return _message(wrapper.offset, wrapper, magic, codec)


def _message(offset: int, record: Record, magic: int, attributes: int = 0) -> bytes:
    checked = bytearray(_CHECKED_HEAD.pack(magic, attributes))
    if magic == old_messages.MAGIC_V1:
        checked += _TIMESTAMP.pack(record.timestamp_ms)
    for content in (record.key, record.value):
        checked += _LENGTH.pack(-1 if content is None else len(content))
        checked += content or b""
    head = struct.pack(">qiI", offset, len(checked) + 4, zlib.crc32(checked))
    return head + bytes(checked)

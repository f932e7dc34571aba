"""Single records of a batch: walking them, and building batches.

    record = length varint | attributes i8 | timestamp delta varlong | offset delta varint
           | key length varint, key | value length varint, value
           | header count varint, (key length varint, key, value length varint, value) ...

Lengths of -1 mean null. Ordinary appends and fetches do not use this module. Its users are batches
that must be decoded (those of topics whose configuration requires it), batches that the broker
writes itself, dump-log, and tests, which compare the lake's kernel with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer, TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.stepper import (
    read_length,
    read_varint,
    step_records,
    write_varint,
)
from strandline.storage.records.compression import (
    DECOMPRESSED_BYTES_MAX,
    Codec,
    compress,
    decompress,
)
from strandline.storage.system import crc32c

WritableT = TypeVar("WritableT", bytearray, memoryview)

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Header:
    """A record header; the key is text, the value opaque or null."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record with its absolute offset and timestamp."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def iter_records(
    buffer: Buffer,
    header: BatchHeader,
    position: int = 0,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[Record]:
    """Yields the records of the batch at `position`, decompressed if necessary.

    Raises CorruptRecords if the records do not match the header, DecompressedTooLarge if they
    would take more than `bytes_max`.
    """
    packed = memoryview(buffer)[position : position + header.size_bytes]
    payload = decompress(header.codec, packed[batch_format.HEADER_BYTES :], bytes_max=bytes_max)
    records = bytes(payload)
    log_append_ms = (
        header.max_timestamp_ms if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    )
    previous_delta = -1
    for _, end, after, timestamp_delta_ms in step_records(records, header.record_count):
        timestamp_ms = header.base_timestamp_ms + timestamp_delta_ms
        if not INT64_MIN <= timestamp_ms <= INT64_MAX:
            raise CorruptRecords(f"timestamp {timestamp_ms} has more than 64 bits")
        offset_delta, at = read_varint(records, after, end)
        if not previous_delta < offset_delta <= header.last_offset_delta:
            raise CorruptRecords(
                f"offset delta {offset_delta} follows {previous_delta}"
                f" in a batch that ends at {header.last_offset_delta}"
            )
        previous_delta = offset_delta
        offset = header.base_offset + offset_delta
        key, at = read_nullable(records, at, end)
        value, at = read_nullable(records, at, end)
        headers, at = _read_headers(records, at, end)
        if at != end:
            raise CorruptRecords(f"record at offset {offset} has {end - at} spare bytes")
        yield Record(
            offset=offset,
            timestamp_ms=timestamp_ms if log_append_ms is None else log_append_ms,
            key=key,
            value=value,
            headers=headers,
        )


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """A v2 batch of `records`, whose offsets must grow; the base offset is the first one's."""
    assert records, "a batch has records"
    first = records[0].offset if base_offset is None else base_offset
    base_timestamp_ms = records[0].timestamp_ms
    payload = encode_records(records, base_offset=first, base_timestamp_ms=base_timestamp_ms)
    body = compress(codec, bytes(payload), level)
    attributes = int(codec)
    attributes |= batch_format.TIMESTAMP_TYPE_BIT if timestamp_type else 0
    attributes |= batch_format.TRANSACTIONAL_BIT if transactional else 0
    attributes |= batch_format.CONTROL_BIT if control else 0
    encoded = bytearray(
        batch_format.HEADER.pack(
            first,
            batch_format.BATCH_LENGTH_MIN + len(body),
            leader_epoch,
            batch_format.MAGIC,
            0,
            attributes,
            records[-1].offset - first,
            base_timestamp_ms,
            max(record.timestamp_ms for record in records),
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    )
    encoded += body
    return bytes(with_crc(encoded))


def encode_records(
    records: Iterable[Record], *, base_offset: int, base_timestamp_ms: int
) -> bytearray:
    """Returns the records as they follow the header of an uncompressed batch."""
    payload = bytearray()
    for record in records:
        _write_record(payload, record, base_offset, base_timestamp_ms)
    return payload


def with_crc(encoded: WritableT) -> WritableT:
    """Sets the CRC of the batch that fills `encoded`; returns the same object."""
    crc = crc32c.crc32c(memoryview(encoded)[batch_format.CRC_START :])
    batch_format.CRC_FIELD.pack_into(encoded, batch_format.CRC_POSITION, crc)
    return encoded


def read_nullable(records: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    """Returns a key or value before `end`, and the position behind it. Raises CorruptRecords."""
    length, position = read_length(records, position, end)
    if length < 0:
        return None, position
    return records[position : position + length], position + length


def _read_headers(records: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(records, position, end)
    if not count:
        return (), position
    if not 0 <= count <= end - position:
        raise CorruptRecords(f"header count {count} is impossible")
    headers = []
    for _ in range(count):
        key, position = read_nullable(records, position, end)
        if key is None:
            raise CorruptRecords("record has a header without a key")
        value, position = read_nullable(records, position, end)
        headers.append(Header(key.decode("utf-8", "replace"), value))
    return tuple(headers), position


def _write_nullable(target: bytearray, data: bytes | None) -> None:
    if data is None:
        write_varint(target, -1)
        return
    write_varint(target, len(data))
    target += data


def _write_record(target: bytearray, record: Record, base_offset: int, base_ms: int) -> None:
    body = bytearray(b"\x00")
    write_varint(body, record.timestamp_ms - base_ms)
    write_varint(body, record.offset - base_offset)
    _write_nullable(body, record.key)
    _write_nullable(body, record.value)
    write_varint(body, len(record.headers))
    for header in record.headers:
        key = header.key.encode()
        write_varint(body, len(key))
        body += key
        _write_nullable(body, header.value)
    write_varint(target, len(body))
    target += body

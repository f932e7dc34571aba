"""Stepping over the records of a batch for what compaction asks: key, tombstone, time, place.

The plain way, one record at a time in Python; `compaction_kernels` is the compiled one. Headers are
stepped over by the record's own length: compaction copies records, it does not judge them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strandline.storage.errors import CorruptRecords

VARINT_BYTES_MAX = 10
_UINT64_MAX = 2**64 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class WalkedRecord(NamedTuple):
    """One record inside its payload; `delta_position` is where its timestamp delta begins."""

    start: int
    end: int
    delta_position: int
    after_delta: int
    timestamp_delta_ms: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


def walk_keys(payload: bytes, record_count: int, last_offset_delta: int) -> Iterator[WalkedRecord]:
    """The records of a decompressed payload, in order.

    Raises CorruptRecords if they do not fill it exactly, or their offsets do not grow.
    """
    position, end = 0, len(payload)
    previous_delta = -1
    for _ in range(record_count):
        start = position
        length, position = read_varint(payload, position, end)
        record_end = position + length
        if length < 1 or record_end > end:
            raise CorruptRecords(f"record of {length} bytes exceeds its batch")
        delta_position = position + 1
        timestamp_delta_ms, after_delta = read_varint(payload, delta_position, record_end)
        offset_delta, position = read_varint(payload, after_delta, record_end)
        if not previous_delta < offset_delta <= last_offset_delta:
            raise CorruptRecords(f"offset delta {offset_delta} follows {previous_delta}")
        previous_delta = offset_delta
        key_length, position = _length(payload, position, record_end)
        key = None if key_length < 0 else payload[position : position + key_length]
        value_length, _ = _length(payload, position + max(key_length, 0), record_end)
        yield WalkedRecord(
            start,
            record_end,
            delta_position,
            after_delta,
            timestamp_delta_ms,
            offset_delta,
            key,
            value_length < 0,
        )
        position = record_end
    if position != end:
        raise CorruptRecords(f"{end - position} bytes after the last record of a batch")


def rebase_payload(payload: bytes, records: list[WalkedRecord], shift_ms: int) -> bytes:
    """The same records with `shift_ms` added to every timestamp delta: another base timestamp."""
    rebased = bytearray()
    for record in records:
        delta = encode_varint(record.timestamp_delta_ms + shift_ms)
        rest = payload[record.after_delta : record.end]
        rebased += encode_varint(1 + len(delta) + len(rest))
        rebased += payload[record.delta_position - 1 : record.delta_position]
        rebased += delta
        rebased += rest
    return bytes(rebased)


def _length(payload: bytes, position: int, end: int) -> tuple[int, int]:
    length, position = read_varint(payload, position, end)
    if length < -1 or length > end - position:
        raise CorruptRecords(f"record has a key or value of {length} bytes")
    return length, position


def read_varint(payload: bytes, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint before `end`, and the position behind it. Raises CorruptRecords."""
    result = shift = 0
    for _ in range(VARINT_BYTES_MAX):
        if position >= end:
            raise CorruptRecords("records end inside a varint")
        byte = payload[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result > _UINT64_MAX:
                break
            return (result >> 1) ^ -(result & 1), position
        shift += 7
    raise CorruptRecords("varint of more than 64 bits")


def encode_varint(number: int) -> bytes:
    """Zigzag varint of a 64-bit number."""
    assert _INT64_MIN <= number <= _INT64_MAX, number
    encoded = ((number << 1) ^ (number >> 63)) & _UINT64_MAX
    encoded_bytes = bytearray()
    while encoded > 0x7F:
        encoded_bytes.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    encoded_bytes.append(encoded)
    return bytes(encoded_bytes)

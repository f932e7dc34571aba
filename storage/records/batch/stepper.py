"""Steps over records: reads varints and the heads of records, in plain Python.

    record = length varint | attributes i8 | timestamp delta varlong | ...      see `record`
             ^ start                                                 ^ after           ^ end

Callers that need more of a record than its time read on from `after`, up to `end`. The
compiled stepper is `step_record` in kernels/parts.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer

VARINT_BYTES_MAX = 10
_UINT64_MAX = 2**64 - 1

# Where a record starts and ends, the position behind its timestamp delta, and that delta. The
# attributes lie one byte before the delta.
Step = tuple[int, int, int, int]


def step_records(payload: bytes, record_count: int) -> Iterator[Step]:
    """Yields the records of a decompressed payload, in order.

    Raises CorruptRecords if they do not fill it exactly. `bytes`, because indexing a memoryview
    takes a quarter longer, and this loop is all indexing.
    """
    position, end = 0, len(payload)
    for _ in range(record_count):
        start = position
        # Nearly all numbers here have one or two bytes: those are read without a call.
        if position + 1 < end and payload[position] < 0x80:
            byte, position = payload[position], position + 1
            length = (byte >> 1) ^ -(byte & 1)
        else:
            length, position = read_varint(payload, position, end)
        record_end = position + length
        if length < 1 or record_end > end:
            raise CorruptRecords(f"record of {length} bytes exceeds its batch")
        after = position + 2
        if after <= record_end and payload[position + 1] < 0x80:
            byte = payload[position + 1]
            delta = (byte >> 1) ^ -(byte & 1)
        else:
            delta, after = read_varint(payload, position + 1, record_end)
        yield start, record_end, after, delta
        position = record_end
    if position != end:
        raise CorruptRecords(f"batch says {record_count} records, more bytes follow")


def read_varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Returns a zigzag varint before `end`, and the position behind it. Raises CorruptRecords."""
    if position < end and (byte := buffer[position]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    result = shift = 0
    for _ in range(VARINT_BYTES_MAX):
        if position >= end:
            raise CorruptRecords("records end inside a varint")
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result > _UINT64_MAX:
                break
            return (result >> 1) ^ -(result & 1), position
        shift += 7
    raise CorruptRecords("varint of more than 64 bits")


def read_length(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Length of a key or value before `end` (-1 is null), and where its bytes begin.

    Raises CorruptRecords.
    """
    length, position = read_varint(buffer, position, end)
    if length < -1 or length > end - position:
        raise CorruptRecords(f"record has a key, value or header of {length} bytes")
    return length, position


def write_varint(target: bytearray, number: int) -> None:
    """Appends the zigzag varint of a 64-bit number."""
    encoded = ((number << 1) ^ (number >> 63)) & _UINT64_MAX
    while encoded > 0x7F:
        target.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    target.append(encoded)

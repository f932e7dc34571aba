"""Steps over records: reads varints and the heads of records, in plain Python.

    record = length varint | attributes i8 | timestamp delta varlong | ...      see `record`
             ^ start                                                 ^ after           ^ end

    step_records    yields every record, for callers that read on from `after`, up to `end`
    newest_delta    finds the newest record; every batch that a producer sends goes through it

The compiled stepper is `step_record` in kernels/parts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer

VARINT_BYTES_MAX = 10
_UINT64_MAX = 2**64 - 1
# Attributes, time, offset, key, value and headers, a byte each.
_RECORD_BYTES_MIN = 6
_SHORTEST_ZIGZAG = 2 * _RECORD_BYTES_MIN
# What `newest_delta` reads of a record: a length, the attributes and a time.
_TIMED_HEAD_BYTES_MAX = VARINT_BYTES_MAX + 1 + VARINT_BYTES_MAX
# Behind the last record, so that its head can be read without a look at where the bytes end.
_PADDING = bytes(_TIMED_HEAD_BYTES_MAX - 1)

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


def newest_delta(blocks: Iterable[Buffer], record_count: int) -> int:
    """Returns the largest timestamp delta of records that lie in `blocks`, one after another.

    Raises CorruptRecords if there are not exactly `record_count` of them. Reads lengths and times
    alone. It is one loop without calls, because a record takes 0.12 us here and 0.6 us in
    `step_records`.
    """
    expected = iter(range(record_count))
    # As zigzag, of which even ones are times from 0 on, and odd ones negative, the lowest first.
    newest_even, newest_odd = -1, _UINT64_MAX
    data: Buffer = b""
    position = 0
    for block in chain(blocks, (_PADDING,)):
        if position < len(data):
            # The head of a record may lie in both blocks.
            data, position = bytes(data[position:]) + block, 0
        else:
            data, position = block, position - len(data)
        last_start = len(data) - _TIMED_HEAD_BYTES_MAX
        if position > last_start:
            continue
        for _ in expected:
            low = data[position]
            if low < 0x80:
                at = position + 2
                position += 1 + (low >> 1)
                if low < _SHORTEST_ZIGZAG:
                    raise CorruptRecords("record is shorter than the shortest one")
            elif (high := data[position + 1]) < 0x80:
                at = position + 3
                position += 2 + (low - 0x80 >> 1) + (high << 6)
            else:
                length, at = read_varint(data, position, len(data))
                position, at = at + length, at + 1
                low = length < 0
            if low & 1:
                raise CorruptRecords("record has a negative length")
            delta = data[at]
            if delta >= 0x80:
                if (high := data[at + 1]) < 0x80:
                    delta += (high << 7) - 0x80
                else:
                    number, _ = read_varint(data, at, len(data))
                    delta = number << 1 ^ number >> 63
            if delta > newest_even:
                if not delta & 1:
                    newest_even = delta
                elif delta < newest_odd:
                    newest_odd = delta
            if position > last_start:
                break
    if next(expected, None) is not None or position != len(data) - len(_PADDING):
        raise CorruptRecords(f"batch says {record_count} records, its bytes are not those of them")
    return newest_even >> 1 if newest_even >= 0 else ~(newest_odd >> 1)


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

"""Compiled loop over Protobuf messages; `protobuf_columns` compiles descriptors for it.

    messages  i64[message][2]         range of its fields in `fields`
    fields    i64[field][FIELD_SIZE]  number, wire format, op, child message, kind, oneof
    program, columns                  as in `avro_kernel`

Fields come in any order; each has its own columns. At the end of a message, absent fields get their
default or a null, lists get their end, and the message gets its row.

The loop stops at repeated single fields and two fields of a oneof (which Protobuf merges, or takes
the last), at groups, and at fields with another wire type; then Protobuf's parser decides. As in
`avro_kernel`, the loop compares with the bounds before each read and write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strandline.spark_lake.values.columns import ops
from strandline.spark_lake.values.columns.avro_kernel import fill_null
from strandline.storage.records.kernels.parts import Bytes, Int64s, compiled, copy_bytes, inlined

if TYPE_CHECKING:
    from strandline.spark_lake.values.columns.value_columns import Columns

# Tags and lengths have 32 bits; Protobuf's parser refuses longer ones.
LENGTH_BYTES_MAX = 5
_VARINT_WIRE = 0
_WIRE_64 = 1
_WIRE_LENGTH = 2
_WIRE_32 = 5
_TAG_END = 1 << 32
_SECONDS_MIN = -62_135_596_800
_SECONDS_MAX = 253_402_300_799
_NANOS_END = 1_000_000_000


@inlined
def _unsigned(content: Bytes, position: int, end: int) -> tuple[int, int]:
    """A varint as a signed 64-bit number, and the position after it; -1 if it is invalid."""
    result = np.uint64(0)
    shift = 0
    while position < end:
        byte = np.uint64(content[position])
        position += 1
        if shift == 63 and byte > np.uint64(1):
            return 0, -1
        result |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(0x80):
            return int(np.int64(result)), position
        shift += 7
    return 0, -1


@inlined
def _number(content: Bytes, position: int, end: int, wire: int) -> tuple[int, int]:
    """Returns a number of this wire format, and the position after it; -1 if it is invalid."""
    if wire in (ops.FIXED32, ops.SFIXED32, ops.FIXED64):
        size = 8 if wire == ops.FIXED64 else 4
        if size > end - position:
            return 0, -1
        bits = 0
        for step in range(size):
            bits |= int(content[position + step]) << (8 * step)
        if wire == ops.SFIXED32 and bits >= 1 << 31:
            bits -= 1 << 32
        return bits, position + size
    number, position = _unsigned(content, position, end)
    if wire == ops.INT32:
        number &= 0xFFFFFFFF
        if number >= 1 << 31:
            number -= 1 << 32
    elif wire == ops.UINT32:
        number &= 0xFFFFFFFF
    elif wire == ops.SINT32:
        number &= 0xFFFFFFFF
        number = (number >> 1) ^ -(number & 1)
    elif wire == ops.SINT64:
        number = ((number >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(number & 1)
    elif wire == ops.BOOLEAN:
        number = 1 if number != 0 else 0
    return number, position


@inlined
def _timestamp(content: Bytes, position: int, end: int) -> tuple[int, bool]:
    """Returns the microseconds of a google.protobuf.Timestamp; false if the loop rejects it."""
    seconds = 0
    nanos = 0
    last = 0
    while position < end:
        tag = int(content[position])
        # Seconds, then nanoseconds, each once: the order that all serializers write.
        if tag <= last or tag not in (0x08, 0x10):
            return 0, False
        last = tag
        number, position = _number(
            content, position + 1, end, ops.INT64 if tag == 0x08 else ops.INT32
        )
        if position < 0:
            return 0, False
        if tag == 0x08:
            seconds = number
        else:
            nanos = number
    if not (_SECONDS_MIN <= seconds <= _SECONDS_MAX and 0 <= nanos < _NANOS_END):
        return 0, False
    return seconds * 1_000_000 + nanos // 1000, True


@inlined
def _value_at(content: Bytes, position: int, end: int, wire_type: int) -> tuple[int, int]:
    """Returns the start (after a length, if there is one) and the end of the value after a tag.

    The start is -1 if the value is invalid, or does not end within its message.
    """
    stop = position
    if wire_type == _VARINT_WIRE:
        _, stop = _unsigned(content, position, end)
    elif wire_type == _WIRE_64:
        stop = position + 8
    elif wire_type == _WIRE_32:
        stop = position + 4
    elif wire_type == _WIRE_LENGTH:
        size, position = _unsigned(content, position, min(end, position + LENGTH_BYTES_MAX))
        if position < 0 or size < 0 or size > end - position:
            return -1, 0
        stop = position + size
    else:  # a group, or no wire type at all
        return -1, 0
    if stop < 0 or stop > end:
        return -1, 0
    return position, stop


@inlined
def _wire_type_of(wire: int) -> int:
    """Returns the wire type in the tag of a field with this wire format."""
    if wire in (ops.TEXT, ops.MESSAGE, ops.TIMESTAMP):
        return _WIRE_LENGTH
    if wire in (ops.FIXED32, ops.SFIXED32):
        return _WIRE_32
    if wire == ops.FIXED64:
        return _WIRE_64
    return _VARINT_WIRE


@inlined
def _end_fields(
    fields: Int64s, first: int, last: int, seen: Bytes, program: Int64s, columns: Columns
) -> bool:
    """Writes a row for each absent field of a message; false if Protobuf's parser has to decide."""
    for index in range(first, last):
        kind = fields[index, ops.KIND]
        at = int(fields[index, ops.FIELD_OP])
        column = int(program[at, ops.COLUMN])
        if kind in (ops.REPEATED, ops.MAP):
            if columns.counts[column] >= columns.room[column]:
                return False
            place = int(columns.start[column]) + int(columns.counts[column])
            columns.numbers[place] = columns.items[column]
            columns.valid[place] = 1
            columns.counts[column] += 1
        elif seen[index - first] == 0:
            if kind == ops.NEEDED:
                return False
            last_op = int(program[at, ops.END])
            if not fill_null(program, at, last_op, columns):
                return False
            if kind == ops.PLAIN:
                columns.valid[int(columns.start[column]) + int(columns.counts[column]) - 1] = 1
    return True


@compiled
def decode_protobuf(
    columns: Columns, skip: int, messages: Int64s, fields: Int64s, fields_max: int, program: Int64s
) -> int:
    """Decodes rows until one that it cannot decode; returns the number of decoded rows."""
    content, ends, present, start, room, count, items, numbers, valid, text_start, text = columns
    frame_end = np.zeros(ops.DEPTH_MAX, np.int64)
    frame_message = np.zeros(ops.DEPTH_MAX, np.int64)
    frame_op = np.zeros(ops.DEPTH_MAX, np.int64)  # of its struct; -1 for an entry of a map
    frame_list = np.zeros(ops.DEPTH_MAX, np.int64)  # the column of the list it is in; -1 for none
    seen = np.zeros((ops.DEPTH_MAX, fields_max), np.uint8)
    rows = ends.size - 1
    length = program.shape[0]
    for row in range(rows):
        if present[row] == 0:
            if not fill_null(program, 0, length, columns):
                return row
            continue
        position = int(ends[row]) + skip
        if position > ends[row + 1]:
            return row
        depth = 0
        frame_end[0] = ends[row + 1]
        frame_message[0] = 0
        frame_op[0] = 0
        frame_list[0] = -1
        seen[0] = 0
        while depth >= 0:
            end = int(frame_end[depth])
            message = int(frame_message[depth])
            first = int(messages[message, 0])
            last = int(messages[message, 1])
            if position == end:
                if not _end_fields(fields, first, last, seen[depth], program, columns):
                    return row
                if frame_op[depth] >= 0:
                    column = int(program[frame_op[depth], ops.COLUMN])
                    if count[column] >= room[column]:
                        return row
                    place = int(start[column]) + int(count[column])
                    numbers[place] = 0
                    valid[place] = 1
                    count[column] += 1
                if frame_list[depth] >= 0:
                    items[frame_list[depth]] += 1
                depth -= 1
                continue
            tag, position = _unsigned(content, position, min(end, position + LENGTH_BYTES_MAX))
            if position < 0 or not 8 <= tag < _TAG_END:
                return row
            number = tag >> 3
            wire_type = tag & 7
            position, stop = _value_at(content, position, end, wire_type)
            if position < 0:
                return row
            field = first
            while field < last and fields[field, ops.NUMBER] != number:
                field += 1
            if field == last:  # of a newer schema
                # Protobuf's parser treats a map entry with such a field as an unknown field.
                if frame_op[depth] < 0:
                    return row
                position = stop
                continue
            kind = int(fields[field, ops.KIND])
            wire = int(fields[field, ops.WIRE])
            at = int(fields[field, ops.FIELD_OP])
            is_list = kind in (ops.REPEATED, ops.MAP)
            if not is_list:
                if seen[depth, field - first] != 0:
                    return row
                if fields[field, ops.ONEOF] >= 0:
                    for other in range(first, last):
                        if (
                            fields[other, ops.ONEOF] == fields[field, ops.ONEOF]
                            and seen[depth, other - first] != 0
                        ):
                            return row
            seen[depth, field - first] = 1
            list_column = int(program[at, ops.COLUMN]) if is_list else -1
            if wire == ops.MESSAGE:
                if wire_type != _WIRE_LENGTH or depth + 1 == ops.DEPTH_MAX:
                    return row
                depth += 1
                frame_end[depth] = stop
                frame_message[depth] = fields[field, ops.CHILD]
                frame_op[depth] = -1 if kind == ops.MAP else (at + 1 if is_list else at)
                frame_list[depth] = list_column
                seen[depth] = 0
                continue
            column = int(program[at + 1 if is_list else at, ops.COLUMN])
            is_packed = (
                is_list and wire_type == _WIRE_LENGTH and wire not in (ops.TEXT, ops.TIMESTAMP)
            )
            if wire_type != _wire_type_of(wire) and not is_packed:
                return row
            # Inline: as a function, called with the columns for each field, it takes twice as long.
            is_first = True
            while position < stop or (is_first and not is_packed):
                is_first = False
                filled = int(count[column])
                if filled >= room[column]:
                    return row
                place = int(start[column]) + filled
                if wire == ops.TEXT:
                    used = int(numbers[place - 1]) if filled > 0 else 0
                    copy_bytes(
                        content, position, stop - position, text, int(text_start[column]) + used
                    )
                    numbers[place] = used + stop - position
                    position = stop
                elif wire == ops.TIMESTAMP:
                    micros, is_good = _timestamp(content, position, stop)
                    if not is_good:
                        return row
                    numbers[place] = micros
                    position = stop
                else:
                    value, position = _number(content, position, stop, wire)
                    if position < 0:
                        return row
                    numbers[place] = value
                valid[place] = 1
                count[column] = filled + 1
                if is_list:
                    items[list_column] += 1
    return rows

"""The compiled loop over Avro values; `avro_columns` compiles schemas for it and reads its columns.

    program  i64[op][4]      op, column, argument, where its subtree ends
    columns  numbers         i64, a stretch of `room[column]` from `start[column]`: values, or ends
             valid           u8, the same stretches: 1 is not null
             content         u8, a stretch as long as all values for each column of bytes
             count           i64[column]: rows filled so far

A value is one walk over the program. LIST stands in front of its items, LIST_END behind them goes
back for the next item. A null skips its subtree and gives each column in it a null.

Bytes come from anywhere: nothing is read beyond the value's end, nothing is written beyond a
column's room, and whatever is odd ends the loop with the row. The rows are then read by fastavro,
which decides; so this needs to be right, and never complete.
"""

from __future__ import annotations

import numpy as np

from strandline.storage.records.kernels.parts import (
    Bytes,
    Int32s,
    Int64s,
    compiled,
    copy_bytes,
    inlined,
    read_varint,
)

# Fields of an op.
OP = 0
COLUMN = 1
ARGUMENT = 2
END = 3

INT = 0
LONG = 1
BOOL = 2
FLOAT = 3
DOUBLE = 4
BYTES = 5  # a length, then as many bytes; also text
FIXED = 6  # ARGUMENT bytes
ENUM = 7  # below ARGUMENT
STRUCT = 8  # its members follow
UNION = 9  # ARGUMENT is the branch that is null, the other one follows; no column
LIST = 10  # its items follow
LIST_END = 11  # ARGUMENT is the op of the list

DEPTH_MAX = 32
_INT32_END = 1 << 31


@inlined
def fill_null(
    program: Int64s,
    first: int,
    last: int,
    start: Int64s,
    room: Int64s,
    count: Int64s,
    numbers: Int64s,
    valid: Bytes,
) -> bool:
    """A null for each column of these ops; false if there is no room."""
    at = first
    while at < last:
        op = int(program[at, OP])
        if op not in (UNION, LIST_END):
            column = int(program[at, COLUMN])
            row = int(count[column])
            if row >= room[column]:
                return False
            place = int(start[column]) + row
            # What has ends repeats the one before.
            numbers[place] = numbers[place - 1] if row > 0 and op in (BYTES, FIXED, LIST) else 0
            valid[place] = 0
            count[column] = row + 1
        at = int(program[at, END]) if op == LIST else at + 1
    return True


@compiled
def decode_avro(
    content: Bytes,
    ends: Int32s,
    present: Bytes,
    skip: int,
    program: Int64s,
    start: Int64s,
    room: Int64s,
    count: Int64s,
    items: Int64s,
    numbers: Int64s,
    valid: Bytes,
    text_start: Int64s,
    text: Bytes,
) -> int:
    """Decodes row after row; the number of rows decoded, which is all unless one is odd.

    `skip` bytes in front of each value are passed over. `items` counts the items of each list.
    """
    length = program.shape[0]
    back_to = np.zeros(DEPTH_MAX, np.int64)
    left = np.zeros(DEPTH_MAX, np.int64)
    rows = ends.size - 1
    for row in range(rows):
        if present[row] == 0:
            if not fill_null(program, 0, length, start, room, count, numbers, valid):
                return row
            continue
        position = int(ends[row]) + skip
        end = int(ends[row + 1])
        if position > end:
            return row
        depth = 0
        at = 0
        while at < length:
            op = int(program[at, OP])
            column = int(program[at, COLUMN])
            argument = int(program[at, ARGUMENT])
            if op == LIST_END:
                back = int(back_to[depth - 1])
                list_column = int(program[back, COLUMN])
                items[list_column] += 1
                left[depth - 1] -= 1
                if left[depth - 1] > 0:
                    at = back + 1
                    continue
                blocks, position = read_varint(content, position, end)
                if position < 0:
                    return row
                if blocks != 0:
                    if blocks < 0:
                        blocks = -blocks
                        _, position = read_varint(content, position, end)
                        if position < 0:
                            return row
                    if blocks < 0 or blocks > end - position:
                        return row
                    left[depth - 1] = blocks
                    at = back + 1
                    continue
                depth -= 1
                place = int(start[list_column]) + int(count[list_column])
                numbers[place] = items[list_column]
                valid[place] = 1
                count[list_column] += 1
                at += 1
                continue
            if op == UNION:
                branch, position = read_varint(content, position, end)
                if position < 0 or branch < 0 or branch > 1:
                    return row
                if branch == argument:
                    last = int(program[at, END])
                    if not fill_null(program, at + 1, last, start, room, count, numbers, valid):
                        return row
                    at = last
                else:
                    at += 1
                continue
            filled = int(count[column])
            if filled >= room[column]:
                return row
            place = int(start[column]) + filled
            if op == LIST:
                blocks, position = read_varint(content, position, end)
                if position < 0:
                    return row
                if blocks == 0:
                    numbers[place] = items[column]
                    valid[place] = 1
                    count[column] = filled + 1
                    at = int(program[at, END])
                    continue
                if blocks < 0:
                    blocks = -blocks
                    _, position = read_varint(content, position, end)
                    if position < 0:
                        return row
                # Each item is at least a byte.
                if blocks < 0 or blocks > end - position or depth == DEPTH_MAX:
                    return row
                back_to[depth] = at
                left[depth] = blocks
                depth += 1
                at += 1
                continue
            if op in (INT, LONG, ENUM):
                number, position = read_varint(content, position, end)
                if position < 0:
                    return row
                if op == INT and not -_INT32_END <= number < _INT32_END:
                    return row
                if op == ENUM and not 0 <= number < argument:
                    return row
                numbers[place] = number
            elif op in (BYTES, FIXED):
                size = argument
                if op == BYTES:
                    size, position = read_varint(content, position, end)
                    if position < 0:
                        return row
                if size < 0 or size > end - position:
                    return row
                used = int(numbers[place - 1]) if filled > 0 else 0
                copy_bytes(content, position, size, text, int(text_start[column]) + used)
                numbers[place] = used + size
                position += size
            elif op == BOOL:
                if position >= end or content[position] > 1:
                    return row
                numbers[place] = content[position]
                position += 1
            elif op in (FLOAT, DOUBLE):
                size = 4 if op == FLOAT else 8
                if size > end - position:
                    return row
                bits = 0
                for step in range(size):
                    bits |= int(content[position + step]) << (8 * step)
                numbers[place] = bits
                position += size
            valid[place] = 1
            count[column] = filled + 1
            at += 1
        if position != end:
            return row
    return rows

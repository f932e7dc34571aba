"""Compiled loop over Avro values; `avro_columns` compiles its programs and reads its columns.

    program  i64[op][4]      op, column, argument, end of its subtree
    columns  numbers         i64, a stretch of `room[column]` from `start[column]`: values, or ends
             valid           u8, the same stretches: 1 is not null
             content         u8, a stretch as long as all values for each column of bytes
             counts          i64[column]: rows filled so far

A value is one walk over the program. LIST stands in front of its items, LIST_END behind them goes
back for the next item. A null skips its subtree and gives each column in it a null.

The bytes are untrusted: the loop reads nothing beyond a value's end, writes nothing beyond a
column's room, and stops at a row that it cannot decode. fastavro then reads the rows and decides,
so the loop must be right but need not be complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strandline.spark_lake.values.columns import ops
from strandline.storage.records.kernels.parts import (
    Int64s,
    compiled,
    copy_bytes,
    inlined,
    read_varint,
)

if TYPE_CHECKING:
    from strandline.spark_lake.values.columns.value_columns import Columns

_INT32_END = 1 << 31


@inlined
def fill_null(program: Int64s, first: int, last: int, columns: Columns) -> bool:
    """Writes a null to each column of these ops; false if a column is full."""
    at = first
    while at < last:
        op = int(program[at, ops.OP])
        if op not in (ops.UNION, ops.LIST_END):
            column = int(program[at, ops.COLUMN])
            row = int(columns.counts[column])
            if row >= columns.room[column]:
                return False
            place = int(columns.start[column]) + row
            # Ends repeat the previous one.
            columns.numbers[place] = (
                columns.numbers[place - 1]
                if row > 0 and op in (ops.BYTES, ops.FIXED, ops.LIST)
                else 0
            )
            columns.valid[place] = 0
            columns.counts[column] = row + 1
        at = int(program[at, ops.END]) if op == ops.LIST else at + 1
    return True


@compiled
def decode_avro(columns: Columns, skip: int, program: Int64s) -> int:
    """Decodes rows until one that it cannot decode; returns the number of decoded rows.

    Skips `skip` bytes before each value. `items` counts the items of each list.
    """
    content, ends, present, start, room, count, items, numbers, valid, text_start, text = columns
    length = program.shape[0]
    back_to = np.zeros(ops.DEPTH_MAX, np.int64)
    left = np.zeros(ops.DEPTH_MAX, np.int64)
    rows = ends.size - 1
    for row in range(rows):
        if present[row] == 0:
            if not fill_null(program, 0, length, columns):
                return row
            continue
        position = int(ends[row]) + skip
        end = int(ends[row + 1])
        if position > end:
            return row
        depth = 0
        at = 0
        while at < length:
            op = int(program[at, ops.OP])
            column = int(program[at, ops.COLUMN])
            argument = int(program[at, ops.ARGUMENT])
            if op == ops.LIST_END:
                back = int(back_to[depth - 1])
                list_column = int(program[back, ops.COLUMN])
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
            if op == ops.UNION:
                branch, position = read_varint(content, position, end)
                if position < 0 or branch < 0 or branch > 1:
                    return row
                if branch == argument:
                    last = int(program[at, ops.END])
                    if not fill_null(program, at + 1, last, columns):
                        return row
                    at = last
                else:
                    at += 1
                continue
            filled = int(count[column])
            if filled >= room[column]:
                return row
            place = int(start[column]) + filled
            if op == ops.LIST:
                blocks, position = read_varint(content, position, end)
                if position < 0:
                    return row
                if blocks == 0:
                    numbers[place] = items[column]
                    valid[place] = 1
                    count[column] = filled + 1
                    at = int(program[at, ops.END])
                    continue
                if blocks < 0:
                    blocks = -blocks
                    _, position = read_varint(content, position, end)
                    if position < 0:
                        return row
                # Each item is at least a byte.
                if blocks < 0 or blocks > end - position or depth == ops.DEPTH_MAX:
                    return row
                back_to[depth] = at
                left[depth] = blocks
                depth += 1
                at += 1
                continue
            if op in (ops.INT, ops.LONG, ops.ENUM):
                number, position = read_varint(content, position, end)
                if position < 0:
                    return row
                if op == ops.INT and not -_INT32_END <= number < _INT32_END:
                    return row
                if op == ops.ENUM and not 0 <= number < argument:
                    return row
                numbers[place] = number
            elif op in (ops.BYTES, ops.FIXED):
                size = argument
                if op == ops.BYTES:
                    size, position = read_varint(content, position, end)
                    if position < 0:
                        return row
                if size < 0 or size > end - position:
                    return row
                used = int(numbers[place - 1]) if filled > 0 else 0
                copy_bytes(content, position, size, text, int(text_start[column]) + used)
                numbers[place] = used + size
                position += size
            elif op == ops.BOOL:
                if position >= end or content[position] > 1:
                    return row
                numbers[place] = content[position]
                position += 1
            elif op in (ops.FLOAT, ops.DOUBLE):
                size = 4 if op == ops.FLOAT else 8
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

"""The compiled loop that decodes records; only `columns` calls it.

This module loads numba (0.3 s), so it is imported when it is first needed.

    batches   i64[batch][BATCH_FIELDS]   what `columns` knows of each batch's records
    cursor    i64[CURSOR_FIELDS]         position of decoding, filled sizes, error code
    limits    i64[4]                     rows outside [offset, offset) or [ms, ms] are left out

The rule of the file: bytes come from anywhere. Nothing is read at a position that was not compared
with its end before, a length is compared with what is left (never added first: the sum may wrap),
sums of deltas are checked for wrapping, and an error becomes a code in the cursor. The same
bytes must be accepted here as by `record.iter_records`; a property test compares the two.

Outputs are as large as the payloads of the run, and each payload byte is copied at most once, so
the writes need no checks.
"""

from __future__ import annotations

import numpy as np

from strandline.storage.records.kernels.parts import (
    BAD_LENGTH,
    BAD_RECORD_LENGTH,
    BAD_VARINT,
    DONE,
    Bytes,
    Int32s,
    Int64s,
    compiled,
    copy_bytes,
    inlined,
    read_varint,
    skip_nullable,
    sum_wraps,
)

# Columns of the table of batches that `decode_records` takes.
PAYLOAD_START = 0
PAYLOAD_END = 1
BASE_OFFSET = 2
BASE_TIMESTAMP = 3
FIXED_TIMESTAMP = 4  # the broker's time for LogAppendTime batches
TIMESTAMP_TYPE = 5
RECORD_COUNT = 6
LAST_OFFSET_DELTA = 7
BATCH_FIELDS = 8

# Fields of the cursor. The first four are where to go on; the rest is for one output.
BATCH = 0
RECORD = 1
POSITION = 2
PREVIOUS_DELTA = 3
ROWS = 4
KEY_BYTES = 5
VALUE_BYTES = 6
HEADERS = 7
HEADER_KEY_BYTES = 8
HEADER_VALUE_BYTES = 9
KEY_NULLS = 10
VALUE_NULLS = 11
HEADERLESS_ROWS = 12
HEADER_VALUE_NULLS = 13
HEADER_KEY_HIGH_BITS = 14  # the "or" of all bytes of header keys: below 128 means plain ASCII
CURSOR_FIELDS = 15

# How a kernel ended. 0 and 1 are fine, the others, and those of `parts`, are the reasons of
# CorruptRecords.
FULL = 1
BAD_HEADER_COUNT = 5
SPARE_RECORD_BYTES = 6
SPARE_BATCH_BYTES = 7
BAD_OFFSET = 8
BAD_TIMESTAMP = 9

INT64_MAX = 0x7FFFFFFFFFFFFFFF


@inlined
def _parse_record(
    buffer: Bytes, position: int, payload_end: int
) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """Walks one record.

    Returns timestamp delta, offset delta, key length, key position, value length, value position,
    header count, headers position, end of the record, status.
    """
    nothing = (0, 0, 0, 0, 0, 0, 0, 0, 0)
    # As `step_record`, a call of which costs this loop a tenth.
    length, position = read_varint(buffer, position, payload_end)
    if position < 0:
        return (*nothing, BAD_VARINT)
    if length < 1 or length > payload_end - position:
        return (*nothing, BAD_RECORD_LENGTH)
    end = position + length
    timestamp_delta, position = read_varint(buffer, position + 1, end)
    if position < 0:
        return (*nothing, BAD_VARINT)
    offset_delta, position = read_varint(buffer, position, end)
    if position < 0:
        return (*nothing, BAD_VARINT)
    key_length, key_position, status = skip_nullable(buffer, position, end)
    if status != DONE:
        return (*nothing, status)
    position = key_position + max(key_length, 0)
    value_length, value_position, status = skip_nullable(buffer, position, end)
    if status != DONE:
        return (*nothing, status)
    position = value_position + max(value_length, 0)
    header_count, position = read_varint(buffer, position, end)
    if position < 0:
        return (*nothing, BAD_VARINT)
    if header_count < 0 or header_count > end - position:
        return (*nothing, BAD_HEADER_COUNT)
    headers_position = position
    for _ in range(header_count):
        length, position, status = skip_nullable(buffer, position, end)
        if status != DONE:
            return (*nothing, status)
        if length < 0:
            return (*nothing, BAD_LENGTH)
        length, position, status = skip_nullable(buffer, position + length, end)
        if status != DONE:
            return (*nothing, status)
        position += max(length, 0)
    if position != end:
        return (*nothing, SPARE_RECORD_BYTES)
    return (
        timestamp_delta,
        offset_delta,
        key_length,
        key_position,
        value_length,
        value_position,
        header_count,
        headers_position,
        end,
        DONE,
    )


@inlined
def _copy_headers(
    buffer: Bytes,
    position: int,
    end: int,
    count: int,
    header: int,
    key_at: int,
    value_at: int,
    key_ends: Int32s,
    key_bytes: Bytes,
    value_ends: Int32s,
    value_bytes: Bytes,
    value_valid: Bytes,
) -> tuple[int, int, int, int, int]:
    """Copies headers that `_parse_record` has walked already.

    Returns the next header, key and value positions, null values, and the bytes of the keys or-ed.
    """
    nulls = 0
    high_bits = 0
    for _ in range(count):
        length, position = read_varint(buffer, position, end)
        copy_bytes(buffer, position, length, key_bytes, key_at)
        for step in range(length):
            high_bits |= int(buffer[position + step])
        key_at += length
        key_ends[header] = key_at
        length, position = read_varint(buffer, position + length, end)
        if length >= 0:
            copy_bytes(buffer, position, length, value_bytes, value_at)
            value_at += length
            position += length
            value_valid[header >> 3] |= np.uint8(1 << (header & 7))
        else:
            nulls += 1
        value_ends[header] = value_at
        header += 1
    return header, key_at, value_at, nulls, high_bits


@compiled
def decode_records(
    buffer: Bytes,
    batches: Int64s,
    cursor: Int64s,
    limits: Int64s,
    rows_max: int,
    bytes_max: int,
    with_key: bool,
    with_value: bool,
    with_headers: bool,
    offsets: Int64s,
    timestamps: Int64s,
    timestamp_types: Int32s,
    key_ends: Int32s,
    key_bytes: Bytes,
    key_valid: Bytes,
    value_ends: Int32s,
    value_bytes: Bytes,
    value_valid: Bytes,
    header_ends: Int32s,
    headers_valid: Bytes,
    header_key_ends: Int32s,
    header_key_bytes: Bytes,
    header_value_ends: Int32s,
    header_value_bytes: Bytes,
    header_value_valid: Bytes,
) -> int:
    """Decodes from where the cursor stands until the batches end or the output is full.

    FULL leaves the cursor in front of the record that did not fit. Arrays named `..._ends` are
    Arrow's offsets without the leading 0, `..._valid` are Arrow's bitmaps, zeroed by the caller.
    """
    first_batch = cursor[BATCH]
    first_record = cursor[RECORD]
    position = cursor[POSITION]
    previous_delta = cursor[PREVIOUS_DELTA]
    row = 0
    key_at = 0
    value_at = 0
    header = 0
    header_key_at = 0
    header_value_at = 0
    key_nulls = 0
    value_nulls = 0
    headerless_rows = 0
    header_value_nulls = 0
    high_bits = 0
    status = DONE
    batch = first_batch
    record = first_record
    while batch < batches.shape[0]:
        payload_end = batches[batch, PAYLOAD_END]
        base_offset = batches[batch, BASE_OFFSET]
        base_timestamp = batches[batch, BASE_TIMESTAMP]
        timestamp_type = batches[batch, TIMESTAMP_TYPE]
        record_count = batches[batch, RECORD_COUNT]
        last_offset_delta = batches[batch, LAST_OFFSET_DELTA]
        if record == 0:
            position = batches[batch, PAYLOAD_START]
            previous_delta = -1
        while record < record_count:
            (
                timestamp_delta,
                offset_delta,
                key_length,
                key_position,
                value_length,
                value_position,
                header_count,
                headers_position,
                record_end,
                status,
            ) = _parse_record(buffer, position, payload_end)
            if status != DONE:
                break
            # The offset cannot wrap: the walk refuses base offsets for which it could.
            if offset_delta <= previous_delta or offset_delta > last_offset_delta:
                status = BAD_OFFSET
                break
            if sum_wraps(base_timestamp, timestamp_delta):
                status = BAD_TIMESTAMP
                break
            offset = base_offset + offset_delta
            timestamp = base_timestamp + timestamp_delta
            if timestamp_type != 0:
                timestamp = batches[batch, FIXED_TIMESTAMP]
            if limits[0] <= offset < limits[1] and limits[2] <= timestamp <= limits[3]:
                size = record_end - position
                used = key_at + value_at + header_key_at + header_value_at
                if row == rows_max or (row > 0 and used + size > bytes_max):
                    status = FULL
                    break
                offsets[row] = offset
                timestamps[row] = timestamp
                timestamp_types[row] = timestamp_type
                if with_key:
                    if key_length >= 0:
                        copy_bytes(buffer, key_position, key_length, key_bytes, key_at)
                        key_at += key_length
                        key_valid[row >> 3] |= np.uint8(1 << (row & 7))
                    else:
                        key_nulls += 1
                    key_ends[row] = key_at
                if with_value:
                    if value_length >= 0:
                        copy_bytes(buffer, value_position, value_length, value_bytes, value_at)
                        value_at += value_length
                        value_valid[row >> 3] |= np.uint8(1 << (row & 7))
                    else:
                        value_nulls += 1
                    value_ends[row] = value_at
                if with_headers:
                    if header_count == 0:
                        headerless_rows += 1
                    else:
                        headers_valid[row >> 3] |= np.uint8(1 << (row & 7))
                    (
                        header,
                        header_key_at,
                        header_value_at,
                        nulls,
                        bits,
                    ) = _copy_headers(
                        buffer,
                        headers_position,
                        record_end,
                        header_count,
                        header,
                        header_key_at,
                        header_value_at,
                        header_key_ends,
                        header_key_bytes,
                        header_value_ends,
                        header_value_bytes,
                        header_value_valid,
                    )
                    header_value_nulls += nulls
                    high_bits |= bits
                    header_ends[row] = header
                row += 1
            position = record_end
            previous_delta = offset_delta
            record += 1
        if status != DONE:
            break
        if position != payload_end:
            status = SPARE_BATCH_BYTES
            break
        batch += 1
        record = 0
    cursor[BATCH] = batch
    cursor[RECORD] = record
    cursor[POSITION] = position
    cursor[PREVIOUS_DELTA] = previous_delta
    cursor[ROWS] = row
    cursor[KEY_BYTES] = key_at
    cursor[VALUE_BYTES] = value_at
    cursor[HEADERS] = header
    cursor[HEADER_KEY_BYTES] = header_key_at
    cursor[HEADER_VALUE_BYTES] = header_value_at
    cursor[KEY_NULLS] = key_nulls
    cursor[VALUE_NULLS] = value_nulls
    cursor[HEADERLESS_ROWS] = headerless_rows
    cursor[HEADER_VALUE_NULLS] = header_value_nulls
    cursor[HEADER_KEY_HIGH_BITS] = high_bits
    return status

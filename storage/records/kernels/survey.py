"""The compiled pass over a segment before its upload; only `survey` calls it.

    rows     i64[batch][ROW_FIELDS]   what one call found: the header, where it lies, its bounds

Headers, time bounds and keys of many batches are found by one call: with batches of 16 KiB, what a
call costs is more than what it does. Compressed batches are left to `record_bounds`.

The rule of `kernels` holds: nothing is read at a position that was not compared with its end. What
a header may not say ends a call, and the plain code says what is wrong with it.
"""

from __future__ import annotations

from strandline.storage.records.kernels.batches import INT64_MAX
from strandline.storage.records.kernels.key_filter import KEYS_LOST, Words, add_key
from strandline.storage.records.kernels.parts import (
    Bytes,
    Int64s,
    big_endian,
    compiled,
    inlined,
    read_varint,
    sum_wraps,
)

# The fields of `BatchHeader` in their order, then these.
BASE_OFFSET = 0
BATCH_LENGTH = 1
LEADER_EPOCH = 2
MAGIC = 3
CRC = 4
ATTRIBUTES = 5
LAST_OFFSET_DELTA = 6
BASE_TIMESTAMP = 7
MAX_TIMESTAMP = 8
PRODUCER_ID = 9
PRODUCER_EPOCH = 10
BASE_SEQUENCE = 11
RECORD_COUNT = 12
HEADER_FIELDS = 13
POSITION = 13
OUTCOME = 14
MIN_MS = 15
MAX_MS = 16
ROW_FIELDS = 17

# What became of the records of a batch.
READ = 0
UNREADABLE = 1
COMPRESSED = 2

_HEADER_BYTES = 61
_BATCH_LENGTH_MIN = 49
_CODEC_MASK = 0x07
_TIMESTAMP_TYPE_BIT = 0x08


@inlined
def _walk(
    buffer: Bytes,
    position: int,
    end: int,
    record_count: int,
    base_timestamp: int,
    castagnoli: Words,
    ieee: Words,
    words: Words,
    keys: int,
) -> tuple[int, int, int, int]:
    """Steps over the records of [position, end): outcome, min ms, max ms, keys.

    `keys` counts those that were added; KEYS_LOST going in means that nobody wants them.
    """
    minimum = INT64_MAX
    maximum = -INT64_MAX - 1
    if record_count < 1:
        return UNREADABLE, 0, 0, keys
    for _ in range(record_count):
        length, position = read_varint(buffer, position, end)
        if position < 0 or length < 1 or length > end - position:
            return UNREADABLE, 0, 0, KEYS_LOST
        record_end = position + length
        delta, after = read_varint(buffer, position + 1, record_end)
        if after < 0 or sum_wraps(base_timestamp, delta):
            return UNREADABLE, 0, 0, KEYS_LOST
        minimum = min(minimum, base_timestamp + delta)
        maximum = max(maximum, base_timestamp + delta)
        if keys != KEYS_LOST:
            added = add_key(buffer, after, record_end, castagnoli, ieee, words)
            keys = KEYS_LOST if added == KEYS_LOST else keys + added
        position = record_end
    if position != end:
        return UNREADABLE, 0, 0, KEYS_LOST
    return READ, minimum, maximum, keys


@compiled
def survey(
    buffer: Bytes,
    position: int,
    rows: Int64s,
    castagnoli: Words,
    ieee: Words,
    words: Words,
    keys: int,
) -> tuple[int, int, int]:
    """Fills `rows` from `position` on: batches found, position behind the last one, keys."""
    count = 0
    while count < rows.shape[0] and buffer.size - position >= _HEADER_BYTES:
        batch_length = big_endian(buffer, position + 8, 4)
        last_offset_delta = big_endian(buffer, position + 23, 4)
        if (
            buffer[position + 16] != 2
            or batch_length < _BATCH_LENGTH_MIN
            or batch_length + 12 > buffer.size - position
            or last_offset_delta < 0
        ):
            break
        end = position + batch_length + 12
        attributes = big_endian(buffer, position + 21, 2)
        base_timestamp = big_endian(buffer, position + 27, 8)
        record_count = big_endian(buffer, position + 57, 4)
        rows[count, BASE_OFFSET] = big_endian(buffer, position, 8)
        rows[count, BATCH_LENGTH] = batch_length
        rows[count, LEADER_EPOCH] = big_endian(buffer, position + 12, 4)
        rows[count, MAGIC] = 2
        rows[count, CRC] = big_endian(buffer, position + 17, 4) & 0xFFFFFFFF
        rows[count, ATTRIBUTES] = attributes
        rows[count, LAST_OFFSET_DELTA] = last_offset_delta
        rows[count, BASE_TIMESTAMP] = base_timestamp
        rows[count, MAX_TIMESTAMP] = big_endian(buffer, position + 35, 8)
        rows[count, PRODUCER_ID] = big_endian(buffer, position + 43, 8)
        rows[count, PRODUCER_EPOCH] = big_endian(buffer, position + 51, 2)
        rows[count, BASE_SEQUENCE] = big_endian(buffer, position + 53, 4)
        rows[count, RECORD_COUNT] = record_count
        rows[count, POSITION] = position
        if attributes & _CODEC_MASK:
            rows[count, OUTCOME] = COMPRESSED
        else:
            outcome, minimum, maximum, keys = _walk(
                buffer,
                position + _HEADER_BYTES,
                end,
                record_count,
                base_timestamp,
                castagnoli,
                ieee,
                words,
                keys,
            )
            if attributes & _TIMESTAMP_TYPE_BIT:
                minimum = maximum = rows[count, MAX_TIMESTAMP]
            rows[count, OUTCOME] = outcome
            rows[count, MIN_MS] = minimum
            rows[count, MAX_MS] = maximum
        position = end
        count += 1
    return count, position, keys

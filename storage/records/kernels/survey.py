"""The compiled pass over the records of a segment before its upload; only `survey` calls it.

    rows     i64[batch][4]              positions of each batch's records, decompressed
    found    i64[batch][FOUND_FIELDS]   their time bounds

One call takes many batches: with batches of 16 KiB a call costs more than its work.

The rule of `kernels` holds: nothing is read at a position that was not compared with its end.
"""

from __future__ import annotations

from strandline.storage.records.kernels.batches import INT64_MAX
from strandline.storage.records.kernels.key_filter import KEYS_LOST, Words, add_key
from strandline.storage.records.kernels.parts import (
    DONE,
    Bytes,
    Int64s,
    compiled,
    inlined,
    step_record,
    sum_wraps,
)

# Columns of `rows`.
START = 0
END = 1
BASE_TIMESTAMP = 2
RECORD_COUNT = 3

# Columns of `found`.
IS_READABLE = 0
MIN_MS = 1
MAX_MS = 2
FOUND_FIELDS = 3


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
) -> tuple[bool, int, int, int]:
    """Steps over the records of [position, end): whether they can be read, min ms, max ms, keys.

    `keys` counts those that were added; KEYS_LOST as input means that no caller needs them.
    """
    minimum = INT64_MAX
    maximum = -INT64_MAX - 1
    if record_count < 1:
        return False, 0, 0, keys
    for _ in range(record_count):
        record_end, _at, after, delta, status = step_record(buffer, position, end)
        if status != DONE or sum_wraps(base_timestamp, delta):
            return False, 0, 0, KEYS_LOST
        minimum = min(minimum, base_timestamp + delta)
        maximum = max(maximum, base_timestamp + delta)
        if keys != KEYS_LOST:
            added = add_key(buffer, after, record_end, castagnoli, ieee, words)
            keys = KEYS_LOST if added == KEYS_LOST else keys + added
        position = record_end
    if position != end:
        return False, 0, 0, KEYS_LOST
    return True, minimum, maximum, keys


@compiled
def survey(
    buffer: Bytes,
    rows: Int64s,
    found: Int64s,
    castagnoli: Words,
    ieee: Words,
    words: Words,
    keys: int,
) -> int:
    """Fills `found` for all `rows`; the number of keys that were added, or KEYS_LOST."""
    for row in range(rows.shape[0]):
        is_readable, minimum, maximum, keys = _walk(
            buffer,
            rows[row, START],
            rows[row, END],
            rows[row, RECORD_COUNT],
            rows[row, BASE_TIMESTAMP],
            castagnoli,
            ieee,
            words,
            keys,
        )
        found[row, IS_READABLE] = is_readable
        found[row, MIN_MS] = minimum
        found[row, MAX_MS] = maximum
    return keys

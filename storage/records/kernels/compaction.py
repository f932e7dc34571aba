"""The compiled loops of compaction: the latest offset of each key, and the retained records.

    table   u64[slot] = hash 1 | hash 2 | latest offset + 1 (0: free)      24 bytes a key
    rows    i64[batch][7]                   positions of each batch's decompressed records
    found   i64[batch][FOUND_FIELDS]        results of `filter_records`

The table stores a key as its SipHash-2-4 of 128 bits under a secret of this run. Without the
secret no client can make two keys collide; by chance two of a billion keys collide once in 10^20
runs. Kafka's SkimpyOffsetMap does the same with MD5. Collisions are resolved by linear probing.

This module loads numba; only `key_index` imports it, when it is needed.

The rule of the file is that of `kernels`: nothing is read at a position that was not compared with
its end before. A batch is walked as a whole before the first of its records counts.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from strandline.storage.records.kernels.parts import (
    DONE,
    Bytes,
    Int64s,
    compiled,
    copy_bytes,
    inlined,
    read_varint,
    skip_nullable,
    step_record,
)

Hashes: TypeAlias = npt.NDArray[np.uint64]

# Columns of `rows`.
START = 0
END = 1
BASE_OFFSET = 2
BASE_TIMESTAMP = 3
RECORD_COUNT = 4
LAST_OFFSET_DELTA = 5
DROP_TOMBSTONES = 6

# Columns of `found`.
FOUND_START = 0
FOUND_END = 1
FOUND_COUNT = 2
FOUND_MAX_TIMESTAMP = 3
FOUND_TOMBSTONES = 4
FOUND_READABLE = 5
FOUND_KEYLESS = 6
FOUND_FIELDS = 7

# Fields of the state of the table.
KEY_COUNT = 0
LATEST_OFFSET = 1
STATE_FIELDS = 2

TABLE_COLUMNS = 3


@inlined
def _rotate(word: np.uint64, bits: int) -> np.uint64:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@inlined
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 = v0 + v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = v2 + v3
    v3 = _rotate(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = _rotate(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inlined
def _word(buffer: Bytes, position: int) -> np.uint64:
    """Eight bytes, the lowest first; LLVM makes one load of it."""
    return (
        np.uint64(buffer[position])
        | (np.uint64(buffer[position + 1]) << np.uint64(8))
        | (np.uint64(buffer[position + 2]) << np.uint64(16))
        | (np.uint64(buffer[position + 3]) << np.uint64(24))
        | (np.uint64(buffer[position + 4]) << np.uint64(32))
        | (np.uint64(buffer[position + 5]) << np.uint64(40))
        | (np.uint64(buffer[position + 6]) << np.uint64(48))
        | (np.uint64(buffer[position + 7]) << np.uint64(56))
    )


@inlined
def _siphash(
    buffer: Bytes, position: int, length: int, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """SipHash-2-4 with 128 bits of output (Aumasson and Bernstein)."""
    v0 = np.uint64(0x736F6D6570736575) ^ k0
    v1 = np.uint64(0x646F72616E646F6D) ^ k1 ^ np.uint64(0xEE)
    v2 = np.uint64(0x6C7967656E657261) ^ k0
    v3 = np.uint64(0x7465646279746573) ^ k1
    end = position + (length & ~7)
    while position < end:
        word = _word(buffer, position)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        position += 8
    last = np.uint64(length & 0xFF) << np.uint64(56)
    for step in range(length & 7):
        last |= np.uint64(buffer[position + step]) << np.uint64(8 * step)
    v3 ^= last
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= last
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@inlined
def _find(table: Hashes, first: np.uint64, second: np.uint64) -> int:
    """Returns the slot of a key, or the free one where it belongs; the table is never full."""
    slots = np.uint64(table.shape[0])
    slot = np.int64(((first >> np.uint64(32)) * slots) >> np.uint64(32))
    while table[slot, 2] != np.uint64(0) and (table[slot, 0] != first or table[slot, 1] != second):
        slot += 1
        if slot == table.shape[0]:
            slot = np.int64(0)
    return int(slot)


@compiled
def hash_key(buffer: Bytes, k0: np.uint64, k1: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Returns the hash of a whole buffer; for tests against the published vectors."""
    return _siphash(buffer, 0, buffer.size, k0, k1)


# Columns of the two scratch tables that `_survey` fills, one row a record.
RECORD_START = 0
RECORD_END = 1
RECORD_OFFSET = 2
RECORD_TIMESTAMP = 3
RECORD_KIND = 4
RECORD_FIELDS = 5

# RECORD_KIND: a sum of these.
PLAIN = 0
TOMBSTONE = 1
KEYLESS = 2


@inlined
def _survey(
    buffer: Bytes,
    rows: Int64s,
    row: int,
    records: Int64s,
    hashes: Hashes,
    k0: np.uint64,
    k1: np.uint64,
) -> bool:
    """Walks a batch and hashes its keys; False if its records do not fill it with growing offsets.

    A later loop looks the hashes up: lookups that do not wait for the walk overlap, and they mostly
    wait for memory.
    """
    position = rows[row, START]
    end = rows[row, END]
    previous_delta = -1
    for index in range(rows[row, RECORD_COUNT]):
        record_end, _, after_delta, timestamp_delta, status = step_record(buffer, position, end)
        if status != DONE:
            return False
        offset_delta, key_at = read_varint(buffer, after_delta, record_end)
        if key_at < 0:
            return False
        if offset_delta <= previous_delta or offset_delta > rows[row, LAST_OFFSET_DELTA]:
            return False
        key_length, key_position, status = skip_nullable(buffer, key_at, record_end)
        if status != DONE:
            return False
        value_length, _, status = skip_nullable(
            buffer, key_position + max(key_length, 0), record_end
        )
        if status != DONE:
            return False
        kind = PLAIN
        if value_length < 0:
            kind = TOMBSTONE
        if key_length < 0:
            kind += KEYLESS
        else:
            first, second = _siphash(buffer, key_position, key_length, k0, k1)
            hashes[index, 0] = first
            hashes[index, 1] = second
        records[index, RECORD_START] = position
        records[index, RECORD_END] = record_end
        records[index, RECORD_OFFSET] = rows[row, BASE_OFFSET] + offset_delta
        records[index, RECORD_TIMESTAMP] = rows[row, BASE_TIMESTAMP] + timestamp_delta
        records[index, RECORD_KIND] = kind
        previous_delta = offset_delta
        position = record_end
    return bool(position == end)


@inlined
def _scratch_rows(rows: Int64s) -> int:
    """Returns the most records that a batch can really have: each takes seven bytes or more."""
    most = 0
    for row in range(rows.shape[0]):
        most = max(most, min(rows[row, RECORD_COUNT], (rows[row, END] - rows[row, START]) // 7))
    return int(most)


@compiled
def index_records(
    buffer: Bytes,
    rows: Int64s,
    start_offset: int,
    table: Hashes,
    key_count_max: int,
    k0: np.uint64,
    k1: np.uint64,
    state: Int64s,
) -> bool:
    """Notes the latest offset of every key at or after `start_offset`; True if the table is full.

    LATEST_OFFSET of the state is then that of the last record that went in.
    """
    most = _scratch_rows(rows)
    records = np.empty((most, RECORD_FIELDS), np.int64)
    hashes = np.empty((most, 2), np.uint64)
    for row in range(rows.shape[0]):
        if rows[row, RECORD_COUNT] > most:
            continue
        if not _survey(buffer, rows, row, records, hashes, k0, k1):
            continue
        for index in range(rows[row, RECORD_COUNT]):
            offset = records[index, RECORD_OFFSET]
            if records[index, RECORD_KIND] >= KEYLESS or offset < start_offset:
                continue
            if state[KEY_COUNT] >= key_count_max:
                return True
            slot = _find(table, hashes[index, 0], hashes[index, 1])
            if table[slot, 2] == np.uint64(0):
                table[slot, 0] = hashes[index, 0]
                table[slot, 1] = hashes[index, 1]
                state[KEY_COUNT] += 1
            table[slot, 2] = np.uint64(offset + 1)
            state[LATEST_OFFSET] = offset
    return False


@inlined
def _stays(
    records: Int64s,
    hashes: Hashes,
    index: int,
    latest_offset: int,
    drop_tombstones: bool,
    table: Hashes,
) -> bool:
    offset = records[index, RECORD_OFFSET]
    if offset > latest_offset:
        return True
    kind = records[index, RECORD_KIND]
    if kind >= KEYLESS or (kind == TOMBSTONE and drop_tombstones):
        return False
    slot = _find(table, hashes[index, 0], hashes[index, 1])
    # A free slot holds 0, which stands for "no later offset known".
    return bool(np.uint64(offset + 1) >= table[slot, 2])


@compiled
def filter_records(
    buffer: Bytes,
    rows: Int64s,
    latest_offset: int,
    table: Hashes,
    k0: np.uint64,
    k1: np.uint64,
    target: Bytes,
    found: Int64s,
) -> None:
    """Copies the records that stay to `target`, which is as large as the payloads together.

    A record stays if its offset is above `latest_offset`, or if it is the latest of its key and no
    tombstone to drop. An unreadable batch is not copied.
    """
    most = _scratch_rows(rows)
    records = np.empty((most, RECORD_FIELDS), np.int64)
    hashes = np.empty((most, 2), np.uint64)
    stays = np.empty(most, np.uint8)
    target_at = 0
    for row in range(rows.shape[0]):
        found[row, :] = 0
        found[row, FOUND_START] = target_at
        found[row, FOUND_END] = target_at
        count = rows[row, RECORD_COUNT]
        if count > most or not _survey(buffer, rows, row, records, hashes, k0, k1):
            continue
        found[row, FOUND_READABLE] = 1
        drop_tombstones = rows[row, DROP_TOMBSTONES] != 0
        for index in range(count):
            stays[index] = _stays(records, hashes, index, latest_offset, drop_tombstones, table)
        kept = 0
        latest_ms = np.int64(-1)
        for index in range(count):
            kind = records[index, RECORD_KIND]
            if not stays[index]:
                if kind >= KEYLESS:
                    found[row, FOUND_KEYLESS] += 1
                continue
            size = records[index, RECORD_END] - records[index, RECORD_START]
            copy_bytes(buffer, records[index, RECORD_START], size, target, target_at)
            target_at += size
            if kept == 0 or records[index, RECORD_TIMESTAMP] > latest_ms:
                latest_ms = records[index, RECORD_TIMESTAMP]
            kept += 1
            if kind & TOMBSTONE:
                found[row, FOUND_TOMBSTONES] = 1
        found[row, FOUND_COUNT] = kept
        found[row, FOUND_MAX_TIMESTAMP] = latest_ms
        found[row, FOUND_END] = target_at


@inlined
def _write_varint(target: Bytes, position: int, number: int) -> int:
    """Writes a zigzag varint; the position behind it."""
    encoded = np.uint64((number << 1) ^ (number >> 63))
    while encoded > np.uint64(0x7F):
        target[position] = np.uint8(encoded & np.uint64(0x7F)) | np.uint8(0x80)
        encoded >>= np.uint64(7)
        position += 1
    target[position] = np.uint8(encoded)
    return position + 1


@inlined
def _varint_bytes(number: int) -> int:
    encoded = np.uint64((number << 1) ^ (number >> 63))
    size = 1
    while encoded > np.uint64(0x7F):
        encoded >>= np.uint64(7)
        size += 1
    return size


@compiled
def rebase_records(buffer: Bytes, record_count: int, shift: int, target: Bytes) -> tuple[int, bool]:
    """Copies records with `shift` added to every timestamp delta; the size, and whether all went.

    `target` has room for the buffer and 20 bytes more for each record.
    """
    position = 0
    target_at = 0
    for _ in range(record_count):
        record_end, delta_position, after_delta, timestamp_delta, status = step_record(
            buffer, position, buffer.size
        )
        if status != DONE:
            return target_at, False
        delta = timestamp_delta + shift
        rest = record_end - after_delta
        target_at = _write_varint(target, target_at, 1 + _varint_bytes(delta) + rest)
        target[target_at] = buffer[delta_position - 1]
        target_at = _write_varint(target, target_at + 1, delta)
        copy_bytes(buffer, after_delta, rest, target, target_at)
        target_at += rest
        position = record_end
    return target_at, bool(position == buffer.size)

"""The compiled loop that adds the key of a record to a key filter; `survey` inlines it.

The rule of `kernels` holds: nothing is read at a position that was not compared with its end. Any
record whose key cannot be found ends the loop, and the caller gives the filter up.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from strandline.storage.records.kernels.parts import DONE, Bytes, inlined, skip_nullable
from strandline.storage.system import crc32c

Words = npt.NDArray[np.uint32]

# The number of keys, after one that cannot be found.
KEYS_LOST = -1

# Bytes of a varint have this bit but for the last; and the length -1 of a key that is null.
_CONTINUES = 0x80
_NULL = 1

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def _table(polynomial: int) -> npt.NDArray[np.uint32]:
    """Returns the table of a reflected CRC, one byte at a time."""
    rows = np.zeros(256, np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        rows[byte] = value
    return rows


CASTAGNOLI = _table(0x82F63B78)
IEEE = _table(0xEDB88320)

# The broker makes the same hashes with the C functions; two kinds of hash would lose rows.
_CHECK = bytes(range(256))


def _of(table: npt.NDArray[np.uint32], content: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in content:
        value = int(table[(value ^ byte) & 0xFF]) ^ (value >> 8)
    return value ^ 0xFFFFFFFF


assert _of(CASTAGNOLI, _CHECK) == crc32c.crc32c(_CHECK)
assert _of(IEEE, _CHECK) == zlib.crc32(_CHECK)


@inlined
def add_key(
    buffer: Bytes,
    position: int,
    end: int,
    castagnoli: Words,
    ieee: Words,
    words: Words,
) -> int:
    """Adds the key of the record whose offset delta lies at `position`.

    1 if it has one, 0 if not, KEYS_LOST if it cannot be found.
    """
    while position < end and buffer[position] >= _CONTINUES:
        position += 1
    position += 1
    if position < end and buffer[position] == _NULL:
        return 0
    length, position, status = skip_nullable(buffer, position, end)
    if status != DONE:
        return KEYS_LOST
    if length < 0:
        return 0
    first = np.uint32(0xFFFFFFFF)
    second = np.uint32(0xFFFFFFFF)
    for step in range(length):
        byte = np.uint32(buffer[position + step])
        first = castagnoli[(first ^ byte) & np.uint32(0xFF)] ^ (first >> np.uint32(8))
        second = ieee[(second ^ byte) & np.uint32(0xFF)] ^ (second >> np.uint32(8))
    first ^= np.uint32(0xFFFFFFFF)
    second ^= np.uint32(0xFFFFFFFF)
    hashed = ((np.uint64(first) << np.uint64(32)) | np.uint64(second)) * _MULTIPLIER
    mixed = hashed ^ (hashed >> np.uint64(32))
    word = np.int64(hashed >> np.uint64(49)) * 8
    for number in range(8):
        bit = np.uint32((mixed >> np.uint64(5 * number)) & np.uint64(31))
        words[word + number] |= np.uint32(1) << bit
    return 1

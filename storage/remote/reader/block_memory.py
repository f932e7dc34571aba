"""Reusable memory mappings for chunks.

The kernel must zero fresh memory first, which costs as much as receiving the data into it; so a
block outlives its chunk. Sizes are rounded up, so that the chunks of a log, which differ slightly
in size, can reuse the same block.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

MEMORY_UNIT_BYTES = 1024 * 1024
LARGE_MEMORY_UNIT_BYTES = 2 * 1024 * 1024
# Blocks without a chunk that are kept, in addition to the bound on memory.
SPARES_MAX = 4


def map_memory(size_bytes: int) -> mmap.mmap:
    """A private mapping of at least `size_bytes`. Raises OSError if there is no memory left."""
    return mmap.mmap(-1, rounded(size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def rounded(size_bytes: int) -> int:
    """The block size for `size_bytes`."""
    if size_bytes < MEMORY_UNIT_BYTES:
        return size_bytes
    is_large = size_bytes >= LARGE_MEMORY_UNIT_BYTES
    unit_bytes = LARGE_MEMORY_UNIT_BYTES if is_large else MEMORY_UNIT_BYTES
    return -(-size_bytes // unit_bytes) * unit_bytes


def best_fit(spares: Iterable[mmap.mmap], size_bytes: int, *, bytes_max: int) -> int | None:
    """Index of the smallest spare that fits without much waste; None if there is none.

    It is at most `bytes_max` large, unless a fresh one would be no smaller.
    """
    largest = max(min(2 * size_bytes, bytes_max), rounded(size_bytes))
    fitting = [
        (len(memory), index)
        for index, memory in enumerate(spares)
        if size_bytes <= len(memory) <= largest
    ]
    return min(fitting)[1] if fitting else None

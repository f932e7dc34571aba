"""Memory for chunks: mappings that are filled again and again, shared with a child where it may be.

Fresh memory must be zeroed by the kernel first, which costs as much as receiving what goes into
it; that is why a block outlives the chunk in it. Sizes are rounded up, so that the chunks of a
log, which are never of quite the same size, can follow each other in the same block.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence

from strandline.storage.remote.download.fresh_pages import write_pages

MEMORY_UNIT_BYTES = 1024 * 1024
LARGE_MEMORY_UNIT_BYTES = 2 * 1024 * 1024
# Blocks without a chunk that are kept, beside what the bound on memory counts.
SPARES_MAX = 4
# MADV_POPULATE_WRITE, which Python does not name; of Linux 5.14.
_POPULATE_WRITE = 23

_numbers = itertools.count(1)


class BlockMemory:
    """One mapping. `descriptor` names it to another process; -1 if it is private to this one."""

    __slots__ = ("descriptor", "mapping", "number", "on_gone")

    def __init__(
        self, size_bytes: int, *, shared: bool, on_gone: Callable[[int], None] | None = None
    ) -> None:
        """At least `size_bytes`; `on_gone` gets the number of a block that is given back.

        Raises OSError if there is no memory or no descriptor left.
        """
        self.on_gone = on_gone
        self.descriptor = -1
        # Never given twice, so that a process that knows an old block does not take it for a new.
        self.number = next(_numbers)
        length = rounded(size_bytes)
        if shared:
            self.descriptor = os.memfd_create("strandline-chunk", os.MFD_CLOEXEC)
            os.ftruncate(self.descriptor, length)
            self.mapping = mmap.mmap(self.descriptor, length, flags=mmap.MAP_SHARED)
            return
        self.mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Filling 8 MiB of small pages takes 5 ms of page faults, more than receiving them.
        with contextlib.suppress(AttributeError, OSError):  # not every kernel has them
            self.mapping.madvise(mmap.MADV_HUGEPAGE)

    def __len__(self) -> int:
        return len(self.mapping)

    def populate(self) -> None:
        """Gives shared memory that is new its pages at once, for whoever fills it here. Blocks."""
        # Where there is no room, filling it says so.
        with contextlib.suppress(OSError):
            if self.descriptor >= 0 and write_pages(self.descriptor, len(self)):
                self.mapping.madvise(_POPULATE_WRITE)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            if self.on_gone is not None:
                self.on_gone(self.number)

    def __repr__(self) -> str:
        return f"<BlockMemory {self.number} bytes={len(self)} fd={self.descriptor}>"


def rounded(size_bytes: int) -> int:
    """The size of the block for so many bytes."""
    if size_bytes < MEMORY_UNIT_BYTES:
        return size_bytes
    is_large = size_bytes >= LARGE_MEMORY_UNIT_BYTES
    unit_bytes = LARGE_MEMORY_UNIT_BYTES if is_large else MEMORY_UNIT_BYTES
    return -(-size_bytes // unit_bytes) * unit_bytes


def best_fit(
    spares: Sequence[BlockMemory] | deque[BlockMemory], size_bytes: int, *, bytes_max: int
) -> int | None:
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

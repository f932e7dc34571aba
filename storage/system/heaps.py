"""Limit on the heaps of the C library, where that is glibc.

glibc gives each thread a heap of its own, and leaves up to 64 MiB of freed memory in each. A
process of some ten threads that each handle megabytes at a time then holds hundreds of MiB that
nobody uses. Allocators of other C libraries, and Arrow's own, have no such limit and need none.
"""

from __future__ import annotations

import ctypes

# Of mallopt(3).
_M_ARENA_MAX = -8


def limit_heaps(count: int) -> None:
    """Lets all threads share `count` heaps; before there are threads.

    For the owner of the process only: it holds for all of it. Does nothing without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, count)

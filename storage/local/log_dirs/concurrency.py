"""Many short waits for a disk, several at a time.

A file system writes what several threads wait for in one go. Where the system gives no thread, the
caller's does all of it: logs are made and closed also when the machine is at its limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

# Creating or closing 2,000 logs takes a fraction of the time.
THREADS = 8


def together(calls: Sequence[Callable[[], T]], name: str) -> list[T]:
    """What each of `calls` returns, in order. They must not raise. Blocks."""
    waiting = deque(enumerate(calls))
    done: dict[int, T] = {}

    def work() -> None:
        while True:
            try:
                index, call = waiting.popleft()
            except IndexError:  # others have taken the rest
                return
            done[index] = call()

    with ThreadPoolExecutor(THREADS, name) as pool:
        with suppress(RuntimeError, MemoryError):
            for _ in range(min(THREADS, len(calls)) - 1):
                pool.submit(work)
        work()
    return [done[index] for index in range(len(calls))]

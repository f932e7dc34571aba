"""Maps over threads: bounded look-ahead in order, and a batch of short waits for a disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Creating or closing 2,000 logs takes a fraction of the time with this many threads.
THREADS = 8


def map_ahead(
    executor: Executor, work: Callable[[T], R], items: Iterable[T], *, ahead_max: int
) -> Iterator[R]:
    """Maps `work` over `items` in order, with at most `ahead_max` started and not yet taken.

    Raises what `work` raises; started calls then continue, others are cancelled. `Executor.map`
    starts everything at once and keeps every result until it is taken (from Python 3.14 on it has
    a `buffersize`).
    """
    begun: deque[Future[R]] = deque()
    try:
        for item in items:
            begun.append(executor.submit(work, item))
            if len(begun) >= ahead_max:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()


def together(calls: Sequence[Callable[[], T]], name: str) -> list[T]:
    """Runs short disk-bound calls in THREADS threads; returns their results in order. Blocks.

    The calls must not raise. A file system combines the syncs that several threads wait for. If
    the system gives no thread, the caller's thread runs all of them, so that logs can be created
    and closed when the machine is at its limits.
    """
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

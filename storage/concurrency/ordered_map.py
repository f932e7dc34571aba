"""Work in threads, a few pieces ahead of who takes the results, in order.

`Executor.map` begins everything at once and keeps every result until it is taken: for a hundred
thousand requests to a store that is neither patient nor small. (From Python 3.14 on it has a
`buffersize` for that.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(
    executor: Executor, work: Callable[[T], R], items: Iterable[T], *, ahead_max: int
) -> Iterator[R]:
    """`work` of each item, in their order, at most `ahead_max` of them begun and not taken.

    Raises what `work` raises; what has begun then goes on, what has not is given up.
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

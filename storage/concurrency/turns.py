"""Bounded turns of the event loop: long work lets others run whenever its turn is over.

    async for log in in_turns(logs):          a walk over any number of items
    async for log in in_turns(logs, turn):    walks that share one turn, as one inside another

The bound is time, not a number of items: of most items the work is a microsecond, of some it is a
millisecond, and a turn of the loop itself costs as much as dozens of small ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

# A client's request waits so long for work that is not urgent, and seldom longer.
TURN_S_MAX = 0.002


class Turn:
    """The time that is left of one turn; made within a running loop."""

    __slots__ = ("_ends_s", "_time_s")

    def __init__(self) -> None:
        self._time_s = asyncio.get_running_loop().time
        self._ends_s = self._time_s() + TURN_S_MAX

    @property
    def is_over(self) -> bool:
        return self._time_s() >= self._ends_s

    async def pass_if_over(self) -> None:
        """Lets all others run before the next turn begins, if this one is over."""
        if self.is_over:
            await asyncio.sleep(0)
            self._ends_s = self._time_s() + TURN_S_MAX


def in_turns(items: Iterable[T], turn: Turn | None = None) -> AsyncIterator[T]:
    """Iterates in as many turns as it takes. Others run between: `items` must not change then."""
    return _InTurns(items, turn or Turn())


class _InTurns(Generic[T]):
    """A generator that is left early would need a task to close it."""

    __slots__ = ("_items", "_turn")

    def __init__(self, items: Iterable[T], turn: Turn) -> None:
        self._items = iter(items)
        self._turn = turn

    def __aiter__(self) -> _InTurns[T]:
        return self

    async def __anext__(self) -> T:
        if self._turn.is_over:
            await self._turn.pass_if_over()
        for item in self._items:
            return item
        raise StopAsyncIteration

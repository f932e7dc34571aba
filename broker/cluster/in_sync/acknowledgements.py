"""Producers that wait until their records are below the high watermark, in the order of offsets.

They wait without a task or a timer each: who owns the partition tells them.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import Offset

# Waits that ended otherwise (by their time, by their client) are dropped above this number.
_PRUNED_ABOVE = 256


class Awaiter(Protocol):
    """Waits for records of one partition, or more."""

    @property
    def is_over(self) -> bool:
        """Whether nobody waits any more."""
        ...

    def acknowledged(self, index: int, code: ErrorCode) -> None:
        """What it waits for at `index` is replicated, or never will be. Must only take note."""
        ...


class _Wait(NamedTuple):
    end_offset: Offset
    awaiter: Awaiter
    place: int


class Acknowledgements:
    """The waits of one partition. Used on the event loop only."""

    __slots__ = ("_prune_above", "_waits")

    def __init__(self) -> None:
        self._waits: deque[_Wait] = deque()
        self._prune_above = _PRUNED_ABOVE

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, end_offset: Offset, awaiter: Awaiter, index: int) -> None:
        """`awaiter` is told once the high watermark is at or above `end_offset`."""
        waits = self._waits
        if waits and end_offset < waits[-1].end_offset:
            # A duplicate of earlier records; told with those after it, which come soon.
            end_offset = waits[-1].end_offset
        waits.append(_Wait(end_offset, awaiter, index))
        if len(waits) > self._prune_above:
            self._waits = deque(one for one in waits if not one.awaiter.is_over)
            self._prune_above = max(_PRUNED_ABOVE, 2 * len(self._waits))

    def tell_below(self, high_watermark: Offset, code: ErrorCode) -> None:
        waits = self._waits
        while waits and waits[0].end_offset <= high_watermark:
            one = waits.popleft()
            one.awaiter.acknowledged(one.place, code)

    def tell_all(self, code: ErrorCode) -> None:
        """Nobody here will know what becomes of their records."""
        waits, self._waits = self._waits, deque()
        for one in waits:
            one.awaiter.acknowledged(one.place, code)

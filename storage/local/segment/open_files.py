"""The bound on sealed segments with an open file.

A sealed segment opens its file for the first read, and drops it after too many others were opened
since; the next read reopens it. Readers hold the file, not the segment, so this interrupts none.

First in, first out: an `open` takes 10 us, less in all than recording each read would.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

# Beside these, each partition has its active segment open, and each connection a socket.
OPEN_SEALED_MAX = 1024


class Reopenable(Protocol):
    """An owner of an open file that can close and reopen it."""

    def give_up_file(self) -> None:
        """Drops the open file; the next use opens it again."""
        ...


class OpenSegments:
    """The sealed segments of this process that have an open file, bounded. Thread-safe."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._lock = threading.Lock()
        # By identity, in the order of opening.
        self._opened: dict[int, weakref.ref[Reopenable]] = {}

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, segment: Reopenable) -> None:
        """Adds a segment that opened its file; drops the files opened first beyond the bound."""
        with self._lock:
            self._opened.pop(id(segment), None)
            self._opened[id(segment)] = weakref.ref(segment)
            while len(self._opened) > self.count_max:
                oldest = self._opened.pop(next(iter(self._opened)))()
                if oldest is not None:
                    oldest.give_up_file()

    def forget(self, segment: Reopenable) -> None:
        """Removes a segment; its file stays open for its readers."""
        with self._lock:
            self._opened.pop(id(segment), None)


OPEN_SEALED = OpenSegments(OPEN_SEALED_MAX)

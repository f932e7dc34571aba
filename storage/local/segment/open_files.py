"""The bound on sealed segments with an open file.

A sealed segment opens its file for the first read, and gives it up again when too many
others were opened since; the next read reopens it. Readers hold the file, not the
segment, so giving it up interrupts no reader.

First in, first out: an `open` takes 10 us, less than keeping count of every read would cost in all.
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
    """The bound, over all logs of the process. Every method may be called from any thread."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._lock = threading.Lock()
        # By identity, in the order of opening: a dict keeps it.
        self._opened: dict[int, weakref.ref[Reopenable]] = {}

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, segment: Reopenable) -> None:
        """Notes that `segment` has its file open; others give up theirs until the bound holds."""
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

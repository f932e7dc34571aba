"""How many sealed segments have their file open.

A sealed segment opens its file when somebody wants to read it, and gives it up again when too many
others were opened since; then the next reader opens it anew. Who is reading holds the file, not the
segment, so giving up takes nothing away from anybody.

First in, first out: an `open` takes 10 us, less than keeping count of every read would cost in all.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

# Beside these, each partition has its active segment open, and each connection a socket.
OPEN_SEALED_MAX = 1024


class Reopenable(Protocol):
    """What has a file open, and can do without for a while."""

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
        """Leaves its file to whoever has the segment."""
        with self._lock:
            self._opened.pop(id(segment), None)


OPEN_SEALED = OpenSegments(OPEN_SEALED_MAX)

"""Lines that wait to be written: a bounded number, so that no client waits for what writes them.

    add ──► waiting ──take──► taken ──written──► gone
       └─ no room: lost, and counted; a later line says how many

What was taken counts until it is written.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

# Some 50,000 lines.
WAITING_BYTES_MAX = 16 * 1024 * 1024


class WaitingLines:
    """A queue of lines. Thread-safe, but for `news`."""

    def __init__(self, lost_line: Callable[[int], str]) -> None:
        """`lost_line` tells of so many that were lost."""
        self._lost_line = lost_line
        # Set when there are lines; for the event loop.
        self.news = asyncio.Event()
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._unsaid_lost_count = 0
        self.waiting_bytes = 0
        # Since the start.
        self.lost_count = 0

    def add(self, line: str) -> None:
        """Adds a line of ASCII, without its end. For the event loop."""
        data = f"{line}\n".encode("ascii")
        with self._lock:
            if self.waiting_bytes + len(data) > WAITING_BYTES_MAX:
                self.lost_count += 1
                self._unsaid_lost_count += 1
                return
            self._waiting.append(data)
            self.waiting_bytes += len(data)
        self.news.set()

    def take(self) -> list[bytes]:
        """Takes over all lines that wait, each with its end."""
        with self._lock:
            # These were lost after all that waits was added.
            if self._unsaid_lost_count:
                data = f"{self._lost_line(self._unsaid_lost_count)}\n".encode("ascii")
                self._unsaid_lost_count = 0
                self._waiting.append(data)
                self.waiting_bytes += len(data)
            taken, self._waiting = self._waiting, []
        return taken

    def lose(self, count: int) -> None:
        """Counts lines that were taken and cannot be written."""
        with self._lock:
            self.lost_count += count
            self._unsaid_lost_count += count

    def written(self, byte_count: int) -> None:
        """Gives back the room of lines that were taken."""
        with self._lock:
            self.waiting_bytes -= byte_count

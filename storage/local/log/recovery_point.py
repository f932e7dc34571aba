"""The recovery point of a log, which one thread raises after a sync while another truncates.

    sync    note `cut_count` │ fsync all below an offset │ `raise_to(offset)`
    cut     lowered │ the lower one written down │ files cut │ the log's end set
            └───────────── `cutting`: nothing raises it ─────────────────┘

New records replace truncated ones. So a sync that read the log's end before the cut ended says
nothing about the records that are there now.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strandline.storage.model import Offset


class RecoveryPoint:
    """The exclusive offset below which recovery trusts the log unread. Thread-safe."""

    __slots__ = ("_cuts", "_is_cutting", "_lock", "cut_count", "offset")

    def __init__(self) -> None:
        self.offset: Offset = 0
        # Grows with every cut: a sync that noted an earlier value may have synced lost records.
        self.cut_count = 0
        self._is_cutting = False
        self._lock = threading.Lock()
        # Held for a whole cut: one after the other.
        self._cuts = threading.Lock()

    def raise_to(self, offset: Offset, *, cut_count: int) -> None:
        """Raises it after a sync; `cut_count` is from before the log's end was read."""
        with self._lock:
            if cut_count == self.cut_count and not self._is_cutting:
                self.offset = max(self.offset, offset)

    @contextmanager
    def cutting(self, offset: Offset, write_down: Callable[[], None] | None) -> Iterator[None]:
        """Lowers it to `offset` while the body truncates the log there.

        `write_down` makes the lower one durable before new records can replace synced ones. If it
        raises, the error is passed to the caller and nothing has changed. Another cut waits.
        """
        with self._cuts, self._cutting(offset, write_down):
            yield

    @contextmanager
    def _cutting(self, offset: Offset, write_down: Callable[[], None] | None) -> Iterator[None]:
        with self._lock:
            self.cut_count += 1
            self._is_cutting = True
            synced_end = self.offset
            self.offset = min(synced_end, offset)
        try:
            if offset < synced_end and write_down is not None:
                try:
                    write_down()
                except BaseException:
                    self.offset = synced_end
                    raise
            yield
        finally:
            with self._lock:
                self.cut_count += 1
                self._is_cutting = False

    def __repr__(self) -> str:
        return f"<RecoveryPoint {self.offset} cuts={self.cut_count}>"

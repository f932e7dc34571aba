"""How many chunks are read ahead at the same time: as many as the store's distance asks for.

A far store takes a while for each answer and gives only so much to a connection: what it brings
grows with the number of GETs. A near one gives all it has to a few. More of them wait for each
other there, and each that waits has its bytes in the store's memory, in a socket's buffer and in
ours: that is work without a byte more.

    GETs = what a broker can send / the most that one GET brought + 1, but FEW at least

The most: who shares the store with others is slower than it is far. What GETs that ran side by side
cannot explain any more, is: then the store is believed to have become slower. Where nothing is
known, there may be as many as there are workers.
"""

from __future__ import annotations

import math

# What one loop sends to a client on its own machine.
ENOUGH_BYTES_PER_S = 1.6e9
# One that is wanted, and three that are guessed: while one ends and the next begins, two go on.
FEW = 4
# In less, nearly all of the time is the way to the store.
SAMPLE_BYTES_MIN = 4 * 1024 * 1024
# So many are looked at before the store is believed to have become slower.
LOOK_BACK = 16
# Beside their number, by which GETs may be slower than one alone; processors have other work, too.
SLOWER_MAX = 2


class DownloadWidth:
    """See the top of this file. Any thread may tell it: a sample that is lost is no loss."""

    __slots__ = ("_best", "_enough", "_recent_best", "_recent_count")

    def __init__(self) -> None:
        # Bytes per second; 0: nothing is known.
        self._best = 0.0
        self._recent_best = 0.0
        self._recent_count = 0
        self._enough = 0

    def note(self, size_bytes: int, took_s: float) -> None:
        """A GET of so many bytes took so long, and was not held back by us."""
        if size_bytes < SAMPLE_BYTES_MIN or took_s <= 0:
            return
        rate = size_bytes / took_s
        if rate > self._best:
            self._believe(rate)
            return
        self._recent_best = max(self._recent_best, rate)
        self._recent_count += 1
        if self._recent_count >= LOOK_BACK:
            is_slower = self._recent_best * SLOWER_MAX * self._enough < self._best
            self._believe(self._recent_best if is_slower else self._best)

    def _believe(self, rate: float) -> None:
        self._best = rate
        self._recent_best, self._recent_count = 0.0, 0
        self._enough = max(math.ceil(ENOUGH_BYTES_PER_S / rate) + 1, FEW)

    def of(self, most: int) -> int:
        """How many at the same time, where `most` may be."""
        return min(most, self._enough) if self._enough else most

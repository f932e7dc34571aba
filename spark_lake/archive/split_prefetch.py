"""Prefetches the ranges of a split across segments.

    range    [window 1][window 2]   [window 1]   [window 1][window 2]
    fetched  ----------=========----==========---=========              in a thread
    decoded            ------------ ============ ----------             meanwhile

Inside a range `LogReader` fetches a window ahead. This takes the next range, whose segment may be
another, as soon as the last window of one has come: else a task of four segments of 16 MiB would
wait for every second of its windows. Still no more than two windows are held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from strandline.spark_lake.archive.segments import LogReader
from strandline.spark_lake.plan.splits import ChunkRange
from strandline.storage.model import AbortedTransaction
from strandline.storage.remote.manifest.entries import SegmentEntry


@dataclass(slots=True, kw_only=True)
class LogRange:
    """A range of one log to read, with the facts that reading needs."""

    entry: SegmentEntry
    log: LogReader
    part: ChunkRange
    aborted: Sequence[AbortedTransaction]
    # Of the first range of a segment: how many chunks of it are read.
    chunks: int | None
    first: Future[bytes] | None = None


class SplitPrefetch:
    """Returns the ranges in order, with prefetch; raises an error of a range at its turn."""

    def __init__(self, ranges: Iterator[LogRange]) -> None:
        self._ranges = ranges
        self._next: LogRange | None = None
        self._error: Exception | None = None

    def take(self) -> LogRange | None:
        """Returns the next range; None behind the last. Raises what finding it raised."""
        if self._error is not None:
            raise self._error
        taken = self._next or next(self._ranges, None)
        self._next = None
        return taken

    def fetch_next(self) -> None:
        """Finds the next range and has its first window fetched."""
        if self._next is not None or self._error is not None:
            return
        try:
            self._next = next(self._ranges, None)
        except Exception as error:  # rows before it come first, and may be all that is wanted
            self._error = error
            return
        if self._next is not None:
            self._next.first = self._next.log.first_window(self._next.part)

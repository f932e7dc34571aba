"""One range of an object into memory, and its batches found and checked while it comes.

Whoever has no store, no SDK and no errors of its own uses it: the download process, and workers of
the broker as long as there is no such process. It ends with the index of the batches, or with why
there is none.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from strandline.storage.errors import CorruptRecords
from strandline.storage.remote.download.messages import Answer, NotDone
from strandline.storage.remote.download.ranged_get import RangedGets, Refused
from strandline.storage.remote.segment.batch_index import BatchWalk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strandline.storage.clock import Clock
    from strandline.storage.model import Offset, Position
    from strandline.storage.remote.object_store.direct_read import DirectRead


def get_checked(
    gets: RangedGets,
    source: DirectRead,
    target: memoryview,
    *,
    start: Position,
    base_offset: Offset,
    bytes_per_s: int = 0,
) -> Answer:
    """Fills all of `target` with the object's bytes from `start`; the first batch there must begin
    with `base_offset`. Blocks. Comes no faster than `bytes_per_s`; 0: as fast as it comes.
    """
    walk = BatchWalk(len(target), base_offset)

    def received(size_bytes: int) -> None:
        # While it is in the processor's cache, and while the rest is on its way.
        window_bytes = size_bytes - walk.position
        if window_bytes >= walk.missing_bytes or size_bytes == len(target):
            with target[walk.position : size_bytes] as window:
                walk.add(window)

    try:
        gets.get_into(source, target, start=start, on_received=received, bytes_per_s=bytes_per_s)
        assert walk.is_done, walk.position
        return walk.index
    except Refused as error:
        return NotDone(detail=str(error))
    except CorruptRecords as error:
        return NotDone(detail=str(error), is_corrupt=True)


class CheckedGets:
    """GETs of threads that come and go, over connections that are kept. Thread-safe.

    There are as many connections as there were threads at the same time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[RangedGets] = []
        self._is_closed = False

    @staticmethod
    def takes(source: DirectRead) -> bool:
        """Whether a connection costs next to nothing: a server's certificate, and what it is
        checked against, would be loaded for each of them, and the SDK has some that are open.
        """
        return source.url.startswith("http://")

    def get(
        self,
        source: DirectRead,
        target: memoryview,
        *,
        start: Position,
        base_offset: Offset,
        bytes_per_s: int = 0,
    ) -> Answer:
        """As `get_checked`."""
        with self._connection() as gets:
            return get_checked(
                gets,
                source,
                target,
                start=start,
                base_offset=base_offset,
                bytes_per_s=bytes_per_s,
            )

    def get_bytes(self, source: DirectRead, start: Position, end: Position) -> bytes | NotDone:
        """The object's bytes [start, end), as they are."""
        target = bytearray(end - start)
        try:
            with self._connection() as gets:
                gets.get_into(source, memoryview(target), start=start)
        except Refused as error:
            return NotDone(detail=str(error))
        return bytes(target)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[RangedGets]:
        with self._lock:
            gets = self._idle.pop() if self._idle else RangedGets(self._clock)
            self._is_closed = False
        try:
            yield gets
        finally:
            with self._lock:
                is_kept = not self._is_closed
                if is_kept:
                    self._idle.append(gets)
            if not is_kept:
                gets.close()

    def close(self) -> None:
        """Closes the connections; those in use follow when they are free."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._is_closed = True
        for gets in idle:
            gets.close()

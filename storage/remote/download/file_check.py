"""A range of an object's file, read and checked; the bytes themselves are not kept.

They pass through one buffer, window by window: it stays in the processor's cache, so the checksum
reads it there, and a chunk costs no memory. The file is read and not mapped: one that was cut off
shall be an error and not a SIGBUS.

Beside live traffic the windows are small, with sleeps between them (`paced_steps`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from strandline.storage.errors import CorruptRecords
from strandline.storage.remote.segment.batch_index import BatchIndex, BatchWalk

if TYPE_CHECKING:
    from strandline.storage.model import Offset, Position
    from strandline.storage.remote.download.pacing import PacedSteps

# Half of the second-level cache of a processor that is not new.
WINDOW_BYTES = 512 * 1024
# What a larger batch made of it is kept up to here: the next batches will be as large.
KEPT_BYTES_MAX = 4 * 1024 * 1024


class FileCheck:
    """Checks ranges of files one after the other; keeps its buffer. Not thread-safe."""

    def __init__(self, steps: PacedSteps | None = None) -> None:
        """Without `steps` a check never sleeps; with them, as they say: the caller begins them."""
        self._steps = steps
        # Made by the first check: the download process has one for each channel.
        self._buffer = bytearray()

    def check(
        self, descriptor: int, position: Position, size_bytes: int, *, base_offset: Offset
    ) -> BatchIndex:
        """The batches of the file's bytes [position, position + size_bytes), all of them checked.

        Raises CorruptRecords, also for a file that ends too early, and OSError.
        """
        walk = BatchWalk(size_bytes, base_offset)
        try:
            while not walk.is_done:
                left_bytes = size_bytes - walk.position
                window_bytes = max(len(self._buffer), WINDOW_BYTES)
                if self._steps is not None:
                    window_bytes = self._steps.step_bytes(window_bytes)
                wanted_bytes = min(max(window_bytes, walk.missing_bytes), left_bytes)
                if wanted_bytes > len(self._buffer):
                    self._buffer = bytearray(wanted_bytes)
                with memoryview(self._buffer) as whole, whole[:wanted_bytes] as window:
                    self._fill(descriptor, window, position + walk.position)
                    walk.add(window)
                if self._steps is not None and not walk.is_done:
                    self._steps.rest(walk.position)
        finally:
            if len(self._buffer) > KEPT_BYTES_MAX:
                self._buffer = bytearray()
        return walk.index

    @staticmethod
    def _fill(descriptor: int, window: memoryview, position: Position) -> None:
        done = 0
        while done < len(window):
            count = os.preadv(descriptor, [window[done:]], position + done)
            if count == 0:
                missing_bytes = len(window) - done
                raise CorruptRecords(f"ends at {position + done}, {missing_bytes} bytes too early")
            done += count

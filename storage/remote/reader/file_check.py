"""Reads and checks a range of an object's file without keeping its bytes.

The bytes pass through one buffer, window by window: it stays in the processor's cache, so the
checksum reads it there, and a chunk needs no memory. The file is read and not mapped: a truncated
file must be an error and not a SIGBUS.
"""

from __future__ import annotations

import os

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Offset, Position
from strandline.storage.remote.segment.batch_index import BatchIndex, BatchWalk

# Half of the second-level cache of a processor that is not new.
WINDOW_BYTES = 512 * 1024


def check_file(
    descriptor: int, position: Position, size_bytes: int, *, base_offset: Offset
) -> BatchIndex:
    """Checks all batches in the file's bytes [position, position + size_bytes).

    Raises CorruptRecords, also for a file that ends too early, and OSError.
    """
    walk = BatchWalk(size_bytes, base_offset)
    buffer = bytearray(min(size_bytes, WINDOW_BYTES))
    while not walk.is_done:
        wanted_bytes = min(max(len(buffer), walk.missing_bytes), size_bytes - walk.position)
        if wanted_bytes > len(buffer):
            buffer = bytearray(wanted_bytes)
        with memoryview(buffer) as whole, whole[:wanted_bytes] as window:
            _fill(descriptor, window, position + walk.position)
            walk.add(window)
    return walk.index


def _fill(descriptor: int, window: memoryview, position: Position) -> None:
    done = 0
    while done < len(window):
        count = os.preadv(descriptor, [window[done:]], position + done)
        if count == 0:
            missing_bytes = len(window) - done
            raise CorruptRecords(f"ends at {position + done}, {missing_bytes} bytes too early")
        done += count

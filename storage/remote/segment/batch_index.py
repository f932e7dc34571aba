"""Checks the batches of a chunk and indexes their positions. Pure.

The only loop over batches in a cold read. A chunk may arrive in windows: each begins with the batch
that the previous window held only partly.

    chunk     │ batch │ batch │ batch │ batch  │
    windows   │◄──────────────────►┊  │              walked: two batches, the third begins the next
                              │◄──────────────►│
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

from strandline.storage.errors import CorruptRecords
from strandline.storage.records.batch import any_batch
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.old_messages import is_old, message_bytes
from strandline.storage.system import crc32c

if TYPE_CHECKING:
    from strandline.storage.model import Offset, Position

# Offsets have 63 bits. A corrupt batch may claim more, which no index can hold.
_OFFSET_MAX = 2**63 - 1
# The head of a batch up to the last offset delta; see records/batch.py for the whole.
_BATCH_HEAD = struct.Struct(">qiibIhi")
_MAGIC_POSITION = 16


class BatchIndex(NamedTuple):
    """One element per batch; `positions` has one more, the end of the last batch."""

    base_offsets: array[int]
    next_offsets: array[int]
    positions: array[int]


def index_batches(view: memoryview, base_offset: Offset) -> BatchIndex:
    """Checks everything in `view`. Raises CorruptRecords.

    `base_offset` is the expected first base offset: bytes of another position are refused even if
    their CRCs are right.
    """
    walk = BatchWalk(len(view), base_offset)
    walk.add(view)
    return walk.index


class BatchWalk:
    """The batches of a chunk of `size_bytes`, checked window by window."""

    def __init__(self, size_bytes: int, base_offset: Offset) -> None:
        self.index = BatchIndex(array("q"), array("q"), array("q", [0]))
        # Where the next window has to begin, and its minimum size.
        self.position: Position = 0
        self.missing_bytes = 0
        self._size_bytes = size_bytes
        self._expected_offset = self._base_offset = base_offset

    @property
    def is_done(self) -> bool:
        return self.position == self._size_bytes

    def add(self, view: memoryview) -> None:
        """Checks the whole batches of `view`, the chunk's bytes from `position` on.

        Raises CorruptRecords. A batch that extends beyond the window is left for the next one,
        which must have `missing_bytes`; a window with the chunk's last byte leaves none.
        """
        base_offsets, next_offsets, positions = self.index
        start, end = self.position, len(view)
        is_last = start + end == self._size_bytes
        read_head, checksum = _BATCH_HEAD.unpack_from, crc32c.crc32c
        crc_start, overhead_bytes = batch_format.CRC_START, batch_format.LOG_OVERHEAD_BYTES
        header_bytes, length_min = batch_format.HEADER_BYTES, batch_format.BATCH_LENGTH_MIN
        batch_magic = batch_format.MAGIC
        position, expected_offset = 0, self._expected_offset
        self.missing_bytes = 0
        while position < end:
            if end - position < header_bytes:
                if not is_last:
                    self.missing_bytes = header_bytes
                    break
                if not is_old(view, position):
                    raise CorruptRecords(f"{end - position} bytes after the last batch")
                magic = view[position + _MAGIC_POSITION]
            else:
                offset, length, _, magic, crc, _, last_offset_delta = read_head(view, position)
            if magic == batch_magic:
                batch_end = position + overhead_bytes + length
                if length < length_min:
                    raise CorruptRecords(f"no batch at {start + position}: length {length}")
                if batch_end > end:
                    beyond_bytes = start + batch_end - self._size_bytes
                    if beyond_bytes <= 0:
                        self.missing_bytes = batch_end - position
                        break
                    raise CorruptRecords(
                        f"batch at {start + position} exceeds the chunk by {beyond_bytes}"
                    )
                if checksum(view[position + crc_start : batch_end]) != crc:
                    raise CorruptRecords(
                        f"wrong CRC of the batch at {start + position}, offset {offset}"
                    )
                # The base offset is not covered by the CRC.
                if start + position == 0 and offset != self._base_offset:
                    raise CorruptRecords(f"begins with offset {offset}, not {self._base_offset}")
                if last_offset_delta < 0 or not (
                    expected_offset <= offset < _OFFSET_MAX - last_offset_delta
                ):
                    raise CorruptRecords(f"offset {offset} follows {expected_offset}")
                expected_offset = offset + last_offset_delta + 1
            elif is_old(view, position):
                batch_end = position + message_bytes(view, position)
                if batch_end > end and start + batch_end <= self._size_bytes:
                    self.missing_bytes = batch_end - position
                    break
                header = any_batch.read_header(view, position)
                any_batch.check_crc(view, header, position)
                offset = header.base_offset
                if offset < expected_offset or header.next_offset > _OFFSET_MAX:
                    raise CorruptRecords(f"offset {offset} follows {expected_offset}")
                expected_offset = header.next_offset
            else:
                raise CorruptRecords(f"no batch at {start + position}: magic {magic}")
            position = batch_end
            base_offsets.append(offset)
            next_offsets.append(expected_offset)
            positions.append(start + batch_end)
        self._expected_offset = expected_offset
        self.position = start + position

"""Checks the batches of a chunk and indexes their positions. Pure.

The only loop over batches in a cold read.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

from strandline.storage.errors import CorruptRecords
from strandline.storage.records.batch import any_batch
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.system import crc32c

if TYPE_CHECKING:
    from strandline.storage.model import Offset

# Offsets have 63 bits. A corrupt batch may claim more, which no index can hold.
_OFFSET_MAX = 2**63 - 1
# The head of a batch up to the last offset delta; see records/batch.py for the whole.
_BATCH_HEAD = struct.Struct(">qiibIhi")


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
    base_offsets, next_offsets, positions = array("q"), array("q"), array("q", [0])
    end = len(view)
    read_head, checksum = _BATCH_HEAD.unpack_from, crc32c.crc32c
    crc_start, overhead_bytes = batch_format.CRC_START, batch_format.LOG_OVERHEAD_BYTES
    header_bytes, length_min = batch_format.HEADER_BYTES, batch_format.BATCH_LENGTH_MIN
    batch_magic = batch_format.MAGIC
    position, expected_offset = 0, base_offset
    while position < end:
        # A message of an old format may be shorter than a header.
        magic = None
        if end - position >= header_bytes:
            offset, length, _, magic, crc, _, last_offset_delta = read_head(view, position)
        if magic == batch_magic:
            batch_end = position + overhead_bytes + length
            if length < length_min:
                raise CorruptRecords(f"no batch at {position}: length {length}")
            if batch_end > end:
                raise CorruptRecords(f"batch at {position} exceeds the chunk by {batch_end - end}")
            if checksum(view[position + crc_start : batch_end]) != crc:
                raise CorruptRecords(f"wrong CRC of the batch at {position}, offset {offset}")
            # The base offset is not covered by the CRC.
            if position == 0 and offset != base_offset:
                raise CorruptRecords(f"begins with offset {offset}, not {base_offset}")
            if last_offset_delta < 0 or not (
                expected_offset <= offset < _OFFSET_MAX - last_offset_delta
            ):
                raise CorruptRecords(f"offset {offset} follows {expected_offset}")
            expected_offset = offset + last_offset_delta + 1
        else:
            header = any_batch.read_header(view, position)
            any_batch.check_crc(view, header, position)
            batch_end, offset = position + header.size_bytes, header.base_offset
            if offset < expected_offset or header.next_offset > _OFFSET_MAX:
                raise CorruptRecords(f"offset {offset} follows {expected_offset}")
            expected_offset = header.next_offset
        position = batch_end
        base_offsets.append(offset)
        next_offsets.append(expected_offset)
        positions.append(batch_end)
    return BatchIndex(base_offsets, next_offsets, positions)

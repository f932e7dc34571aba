"""Where the batches of a chunk lie, found while each of them is checked. Pure.

The only loop over batches on the way of a cold read. It runs in the process that downloaded the
chunk, so it imports little.
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

from strandline.storage import crc32c
from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Offset
from strandline.storage.records import any_batch
from strandline.storage.records import batch as batch_format
from strandline.storage.records.old_messages import is_old

# The head of a batch up to the last offset delta; see records/batch.py for the whole.
_BATCH_HEAD = struct.Struct(">qiibIhi")


class BatchIndex(NamedTuple):
    """One element per batch; `positions` has one more, the end of the last batch."""

    base_offsets: array[int]
    next_offsets: array[int]
    positions: array[int]


def index_batches(view: memoryview, base_offset: Offset) -> BatchIndex:
    """Checks everything in `view`. Raises CorruptRecords.

    `base_offset` is what the first batch must begin with: bytes of another place are not let pass
    because their CRCs are right.
    """
    index = BatchIndex(array("q"), array("q"), array("q", [0]))
    base_offsets, next_offsets, positions = index
    end = len(view)
    read_head, checksum = _BATCH_HEAD.unpack_from, crc32c.crc32c
    crc_start, overhead_bytes = batch_format.CRC_START, batch_format.LOG_OVERHEAD_BYTES
    position, expected_offset = 0, base_offset
    while position < end:
        if is_old(view, position):
            header = any_batch.read_header(view, position)
            any_batch.check_crc(view, header, position)
            if header.base_offset < expected_offset:
                raise CorruptRecords(f"offset {header.base_offset} follows {expected_offset}")
            expected_offset, position = header.next_offset, position + header.size_bytes
            base_offsets.append(header.base_offset)
            next_offsets.append(expected_offset)
            positions.append(position)
            continue
        if end - position < batch_format.HEADER_BYTES:
            raise CorruptRecords(f"{end - position} bytes after the last batch")
        offset, length, _, magic, crc, _, last_offset_delta = read_head(view, position)
        batch_end = position + overhead_bytes + length
        if magic != batch_format.MAGIC or length < batch_format.BATCH_LENGTH_MIN:
            raise CorruptRecords(f"no batch at {position}: magic {magic}, length {length}")
        if batch_end > end:
            raise CorruptRecords(f"batch at {position} exceeds the chunk by {batch_end - end}")
        if checksum(view[position + crc_start : batch_end]) != crc:
            raise CorruptRecords(f"wrong CRC of the batch at {position}, offset {offset}")
        # The base offset is not covered by the CRC.
        if position == 0 and offset != base_offset:
            raise CorruptRecords(f"begins with offset {offset}, not {base_offset}")
        if last_offset_delta < 0 or offset < expected_offset:
            raise CorruptRecords(f"offset {offset} follows {expected_offset}")
        expected_offset = offset + last_offset_delta + 1
        base_offsets.append(offset)
        next_offsets.append(expected_offset)
        positions.append(batch_end)
        position = batch_end
    return index

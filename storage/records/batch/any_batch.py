"""Batches of whatever magic: v2, or a message of the old formats in the place of a batch.

Segments that were written by a Kafka before 0.11 hold old messages, and one segment may hold both.
Reading, checking and archiving them goes through here. What is appended is v2 alone, also where a
client sends old messages (`prepare_old` in storage/local/log/preparation.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer
from strandline.storage.records.batch import batch, old_messages, record
from strandline.storage.records.batch.batch import MAGIC, BatchHeader, PositionedBatch
from strandline.storage.records.compression import DECOMPRESSED_BYTES_MAX

# The shortest that can be a batch: a message of v0 without key and value.
BATCH_BYTES_MIN = old_messages.MESSAGE_BYTES_MIN


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; an old message must be there as a whole. Raises CorruptRecords."""
    if old_messages.is_old(buffer, position):
        return old_messages.read_header(buffer, position)
    return batch.read_header(buffer, position)


def check_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Raises CorruptRecords unless the batch at `position` is whole and its CRC is right."""
    if header.magic == MAGIC:
        batch.check_crc(buffer, header, position)
    else:
        old_messages.check_crc(buffer, position)


def iter_records(
    buffer: Buffer,
    header: BatchHeader,
    position: int = 0,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[record.Record]:
    """The records of the batch at `position`.

    Raises CorruptRecords; DecompressedTooLarge if they would become more than `bytes_max`.
    """
    if header.magic == MAGIC:
        return record.iter_records(buffer, header, position, bytes_max=bytes_max)
    return old_messages.iter_records(buffer, position, bytes_max=bytes_max)


def iter_batches(buffer: Buffer, position: int = 0) -> Iterator[PositionedBatch]:
    """Walks the whole batches from `position`; a last partial one is left out silently.

    Raises CorruptRecords at one whose length or magic are impossible.
    """
    end = len(buffer)
    while end - position >= BATCH_BYTES_MIN:
        if old_messages.is_old(buffer, position):
            if position + old_messages.message_bytes(buffer, position) > end:
                return
        elif end - position < batch.HEADER_BYTES:
            return
        header = read_header(buffer, position)
        if header.last_offset_delta < 0:
            raise CorruptRecords(f"batch at position {position} ends before it begins")
        if position + header.size_bytes > end:
            return
        yield PositionedBatch(position, header)
        position += header.size_bytes

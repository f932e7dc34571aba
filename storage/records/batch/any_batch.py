"""Reads batches of any magic: v2, or messages of the old formats.

Segments that a Kafka before 0.11 wrote have old messages, and one segment may have both. Readers
get the same `Batch`, records, times and payload for every format. Appended batches are always v2,
also if a client sends old messages (`prepare_old` in storage/local/log/preparation.py), and
`down_conversion.py` makes old messages for old clients.

`walk_file` is the one loop over batches, in memory, in a file or in an object. It reads in windows,
so a damaged length field cannot fill the memory:

    source    │ batch │ batch │ batch │        large batch         │ batch │
    windows   │◄─────────────────►┊   │                            │
                              │◄───────── its CRC, in pieces ─────►│◄─────►│

Messages of the old formats are the exception: the first offset of a wrapper is known only after
it is decompressed as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer
from strandline.storage.records.batch import batch, old_messages, record, record_times
from strandline.storage.records.batch.batch import (
    BATCH_LENGTH_MIN,
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    Batch,
    BatchHeader,
)
from strandline.storage.records.compression import DECOMPRESSED_BYTES_MAX, Codec, decompress
from strandline.storage.system import crc32c

# The shortest possible batch: a message of v0 without key and value.
BATCH_BYTES_MIN = old_messages.MESSAGE_BYTES_MIN

WINDOW_BYTES = 4 * 1024 * 1024
# Sixty times Kafka's default limit; a longer message of an old format is damage.
OLD_MESSAGE_BYTES_MAX = 64 * 1024 * 1024

# Offsets from here on could wrap when a 32-bit delta is added.
_OFFSET_END = 2**63 - 2**32

# (position, length) -> the bytes there, fewer only at the end of the source.
ReadAt = Callable[[int, int], Buffer]


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Returns the header at `position`; an old message must be whole. Raises CorruptRecords."""
    if old_messages.is_old(buffer, position):
        return old_messages.read_header(buffer, position)
    return batch.read_header(buffer, position)


def read_header_at(read: ReadAt, position: int) -> BatchHeader:
    """Returns the header of a batch in a file or an object. Raises CorruptRecords."""
    content = read(position, HEADER_BYTES)
    if old_messages.is_old(content):
        size_bytes = old_messages.message_bytes(content)
        if size_bytes > OLD_MESSAGE_BYTES_MAX:
            raise CorruptRecords(f"message of {size_bytes} bytes")
        content = read(position, size_bytes)
    return read_header(content)


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
    """Returns the records of the batch at `position`.

    Raises CorruptRecords; DecompressedTooLarge if they would take more than `bytes_max`.
    """
    if header.magic == MAGIC:
        return record.iter_records(buffer, header, position, bytes_max=bytes_max)
    return old_messages.iter_records(buffer, position, bytes_max=bytes_max)


def iter_times(buffer: Buffer, header: BatchHeader, position: int = 0) -> Iterator[tuple[int, int]]:
    """Returns offset and timestamp (ms) of each record of the batch at `position`.

    Raises CorruptRecords, UnsupportedCodec, DecompressedTooLarge; see record_times.py.
    """
    if header.magic == MAGIC:
        return record_times.iter_times(buffer, header, position)
    records = old_messages.iter_records(buffer, position)
    return ((one.offset, one.timestamp_ms) for one in records)


def payload_of(encoded: Buffer, header: BatchHeader) -> Buffer:
    """Returns the records of the batch that fills `encoded`: decompressed, and encoded as in v2.

    Raises CorruptRecords, UnsupportedCodec, DecompressedTooLarge.
    """
    if header.magic == MAGIC:
        return decompress(header.codec, memoryview(encoded)[HEADER_BYTES:])
    return record.encode_records(
        old_messages.iter_records(encoded),
        base_offset=header.base_offset,
        base_timestamp_ms=header.base_timestamp_ms,
    )


def convert_old(buffer: Buffer, batches: Sequence[Batch]) -> bytes | None:
    """`batches` of `buffer` with v2 batches in place of old messages; None if it has no old ones.

    Offsets, times and codecs stay. Checks the CRC of what it converts. Raises CorruptRecords.
    """
    if all(header.magic == MAGIC for _, header in batches):
        return None
    return b"".join(
        batch.encoded(buffer) if batch.header.magic == MAGIC else _converted(buffer, batch)
        for batch in batches
    )


def _converted(buffer: Buffer, batch: Batch) -> bytes:
    old_messages.check_crc(buffer, batch.position)
    return record.encode_batch(
        list(old_messages.iter_records(buffer, batch.position)),
        base_offset=batch.header.base_offset,
        codec=Codec(batch.header.codec),
        timestamp_type=batch.header.timestamp_type,
    )


class TornBatch(CorruptRecords):
    """A batch that reaches behind the end of the source."""


def walk(buffer: Buffer, position: int = 0, *, verify_crc: bool = False) -> Iterator[Batch]:
    """Yields the whole batches of a buffer from `position`, which must be at a batch border.

    A last partial one is left out silently: a buffer may have been cut anywhere. Raises
    CorruptRecords at one whose length, magic, offsets or CRC are impossible.
    """
    view = memoryview(buffer)
    size_bytes = len(view)
    with suppress(TornBatch):
        yield from walk_file(
            lambda start, length: view[start : start + length],
            position,
            size_bytes,
            verify_crc=verify_crc,
            window_bytes=size_bytes,
        )


def walk_file(
    read: ReadAt,
    position: int,
    end_position: int,
    *,
    verify_crc: bool = False,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Batch]:
    """The whole batches in [position, end_position) of a file or an object; both are borders.

    Raises CorruptRecords at the first byte that is no whole, valid batch, TornBatch if it is only
    not whole; what was yielded before is good. Without `verify_crc` only headers and lengths are
    looked at.
    """
    window = memoryview(b"")
    window_start, window_end = position, position
    make, unpack, checksum = BatchHeader._make, batch.HEADER.unpack_from, crc32c.crc32c
    while position < end_position:
        at = position - window_start
        if window_end - position < HEADER_BYTES and window_end < end_position:
            window = _window(read, position, end_position, window_bytes)
            window_start, window_end, at = position, position + len(window), 0
        left = window_end - position
        magic = window[at + MAGIC_POSITION] if left > MAGIC_POSITION else MAGIC
        if magic in old_messages.OLD_MAGICS:
            header = _read_old(read, position, end_position, verify_crc=verify_crc)
            batch_end = position + header.size_bytes
        elif left < HEADER_BYTES:
            raise TornBatch(f"batch header needs {HEADER_BYTES} bytes, {left} are left")
        else:
            header = make(unpack(window, at))
            batch_end = position + LOG_OVERHEAD_BYTES + header.batch_length
            if (
                magic != MAGIC
                or header.batch_length < BATCH_LENGTH_MIN
                or not 0 <= header.base_offset < _OFFSET_END
                or not 0 <= header.record_count <= header.last_offset_delta + 1
            ):
                raise CorruptRecords(f"batch at position {position} has {_fault_of(header)}")
            if batch_end > end_position:
                raise TornBatch(
                    f"batch of {header.size_bytes} bytes at position {position} exceeds the file"
                )
            if verify_crc and batch_end > window_end:
                _check_crc_in_pieces(read, position, header)
            elif (
                verify_crc
                and checksum(window[at + CRC_START : batch_end - window_start]) != header.crc
            ):
                batch.check_crc(window, header, at)  # which raises the error
        if header.last_offset_delta < 0:
            raise CorruptRecords(f"batch at position {position} ends before it begins")
        yield Batch(position, header)
        position = batch_end
        if position > window_end:
            window, window_start, window_end = memoryview(b""), position, position


def _fault_of(header: BatchHeader) -> str:
    if header.magic != MAGIC:
        return f"magic {header.magic}, only {MAGIC} is served"
    if header.batch_length < BATCH_LENGTH_MIN:
        return f"a length of {header.batch_length}, below {BATCH_LENGTH_MIN}"
    return f"{header.record_count} records at offsets {header.base_offset} to {header.last_offset}"


def _window(read: ReadAt, position: int, end_position: int, window_bytes: int) -> memoryview:
    window = memoryview(read(position, min(window_bytes, end_position - position)))
    if len(window) < min(HEADER_BYTES, end_position - position):
        raise CorruptRecords(f"file is shorter than expected at position {position}")
    return window


def _read_old(read: ReadAt, position: int, end_position: int, *, verify_crc: bool) -> BatchHeader:
    """Returns the message of an old format at `position`. Raises CorruptRecords."""
    size_bytes = old_messages.message_bytes(read(position, old_messages.OVERHEAD_BYTES))
    if position + size_bytes > end_position:
        raise TornBatch(
            f"message of {size_bytes} bytes at position {position} exceeds the file, or all reason"
        )
    if size_bytes > OLD_MESSAGE_BYTES_MAX:
        raise CorruptRecords(f"message of {size_bytes} bytes at position {position}")
    content = read(position, size_bytes)
    if verify_crc:
        old_messages.check_crc(content)
    return old_messages.read_header(content)


def _check_crc_in_pieces(read: ReadAt, position: int, header: BatchHeader) -> None:
    """Checks the CRC of a batch that is not whole in the window, and may be larger than one."""
    piece_position, end_position = position + CRC_START, position + header.size_bytes
    computed = 0
    while piece_position < end_position:
        piece = read(piece_position, min(WINDOW_BYTES, end_position - piece_position))
        if not piece:
            raise CorruptRecords(f"file ended inside the batch at position {position}")
        computed = crc32c.crc32c(piece, computed)
        piece_position += len(piece)
    batch.compare_crc(header, computed)

"""Walking the batches of a segment file, with or without their CRCs.

The file is read in windows, so memory stays flat whatever a damaged length field claims: a batch
larger than a window is checked piece by piece and never held as a whole. Messages of the old
formats are the exception: a wrapper tells its first offset only when it is decompressed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strandline.storage.errors import CorruptRecords
from strandline.storage.files import OpenFile
from strandline.storage.local.formats.producer_state import TransactionMarker, read_marker
from strandline.storage.records.batch import old_messages
from strandline.storage.records.batch.batch import (
    CRC_START,
    HEADER_BYTES,
    BatchHeader,
    check_crc,
    read_header,
)
from strandline.storage.system import crc32c

WINDOW_BYTES = 4 * 1024 * 1024
# Sixty times what Kafka took by default; a longer message of an old format is damage.
OLD_MESSAGE_BYTES_MAX = 64 * 1024 * 1024


class ScannedBatch(NamedTuple):
    """A whole batch in a file; `marker` is set for control batches that end a transaction."""

    position: int
    header: BatchHeader
    marker: TransactionMarker | None

    @property
    def end_position(self) -> int:
        return self.position + self.header.size_bytes


def scan_batches(
    file: OpenFile, position: int, end_position: int, *, verify_crc: bool
) -> Iterator[ScannedBatch]:
    """Whole batches in [position, end_position), which must be at a batch border.

    Raises CorruptRecords at the first byte that is no whole, valid batch; what was yielded before
    is good. Without `verify_crc` only headers and lengths are looked at.
    """
    window, window_start = b"", position
    while position < end_position:
        at = position - window_start
        left = len(window) - at
        if left < HEADER_BYTES and window_start + len(window) < end_position:
            window, window_start = _read_window(file, position, end_position), position
            continue
        if old_messages.is_old(window, at):
            header = _read_old(file, position, end_position, verify_crc=verify_crc)
            yield ScannedBatch(position, header, None)
            position += header.size_bytes
            if position - window_start > len(window):
                window, window_start = b"", position
            continue
        header = read_header(window, at)
        size_bytes = header.size_bytes
        if position + size_bytes > end_position:
            raise CorruptRecords(
                f"batch of {size_bytes} bytes at position {position} exceeds the file"
            )
        if (verify_crc or header.is_control) and size_bytes > left:
            if size_bytes > WINDOW_BYTES:
                _check_crc_in_pieces(file, position, header)
            elif at > 0:
                window, window_start = _read_window(file, position, end_position), position
                continue
            else:
                raise CorruptRecords(f"file ended inside the batch at position {position}")
        elif verify_crc:
            check_crc(window, header, at)
        yield ScannedBatch(position, header, _marker_of(window, header, at))
        position += size_bytes
        if position - window_start > len(window):
            window, window_start = b"", position


def _read_window(file: OpenFile, position: int, end_position: int) -> bytes:
    window = file.read_at(position, min(WINDOW_BYTES, end_position - position))
    if len(window) < min(HEADER_BYTES, end_position - position):
        raise CorruptRecords(f"{file.path} is shorter than expected at position {position}")
    return window


def _read_old(file: OpenFile, position: int, end_position: int, *, verify_crc: bool) -> BatchHeader:
    """The message of an old format at `position`. Raises CorruptRecords."""
    size_bytes = old_messages.message_bytes(file.read_at(position, old_messages.OVERHEAD_BYTES))
    if position + size_bytes > end_position or size_bytes > OLD_MESSAGE_BYTES_MAX:
        raise CorruptRecords(
            f"message of {size_bytes} bytes at position {position} exceeds the file, or all reason"
        )
    content = file.read_at(position, size_bytes)
    if verify_crc:
        old_messages.check_crc(content)
    return old_messages.read_header(content)


def _marker_of(window: bytes, header: BatchHeader, at: int) -> TransactionMarker | None:
    if not header.is_control:
        return None
    # A marker is one tiny record; a control batch beyond a window would not be one.
    if at + header.size_bytes > len(window):
        raise CorruptRecords(f"control batch of {header.size_bytes} bytes")
    return read_marker(window, header, at)


def _check_crc_in_pieces(file: OpenFile, position: int, header: BatchHeader) -> None:
    piece_position, end_position = position + CRC_START, position + header.size_bytes
    computed = 0
    while piece_position < end_position:
        piece = file.read_at(piece_position, min(WINDOW_BYTES, end_position - piece_position))
        if not piece:
            raise CorruptRecords(f"{file.path} ended inside a batch at position {position}")
        computed = crc32c.crc32c(piece, computed)
        piece_position += len(piece)
    if computed != header.crc:
        raise CorruptRecords(
            f"CRC of batch at offset {header.base_offset} is {computed:#010x}, "
            f"its header says {header.crc:#010x}"
        )

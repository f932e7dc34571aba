"""The batches of one segment as a cleaning reads them: windows of whole batches.

    segment file   [batch][batch][batch][batch....]      a window holds as many whole batches as fit
                   |---- window ----|--- window --       into io_bytes; a larger batch gets its own

    window = content, one row of header fields per batch (`vectorised.BatchRow`)

Messages of formats 0 and 1 come out as batches of v2: so a log is in one format once it was
cleaned, and only there can a tombstone have a delete horizon. Kafka keeps the old format and goes
by the age of the file.

Whoever uses a batch verifies its CRC first; here only what was old is verified, before it is
written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from strandline.storage.errors import CorruptRecords, UnsupportedCodec
from strandline.storage.files import OpenFile
from strandline.storage.local.cleaner.cleaned_batch import modern_batch
from strandline.storage.model import Buffer
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.any_batch import iter_batches
from strandline.storage.records.columns import vectorised
from strandline.storage.records.columns.vectorised import BatchRow
from strandline.storage.records.compression import Codec, decompress

WINDOW_BYTES_MIN = 64 * 1024


class BatchWindow(NamedTuple):
    """A piece of a segment file with whole batches; `source_bytes` are those of the file."""

    content: bytes
    rows: list[BatchRow]
    source_bytes: int
    is_modernised: bool = False

    def batch(self, row: BatchRow) -> memoryview:
        """The bytes of one of its batches, header and records."""
        return memoryview(self.content)[row.position : row.end_position]

    def decompressed(self, row: BatchRow) -> Buffer | None:
        """The records of a compressed batch; None if they do not decompress."""
        try:
            return decompress(Codec(row.codec), self.batch(row)[batch_format.HEADER_BYTES :])
        except (CorruptRecords, UnsupportedCodec, ValueError):
            return None


def read_windows(
    path: Path,
    size_bytes: int,
    *,
    io_bytes: int,
    compiled: bool,
    spend: Callable[[int], None],
) -> Iterator[BatchWindow]:
    """The first `size_bytes` of a segment file; `spend` is told of every window's bytes.

    `compiled` reads the headers with the compiled kernels. Raises CorruptRecords, DiskError.
    """
    file = OpenFile(path, writable=False)
    window_bytes = max(io_bytes, WINDOW_BYTES_MIN)
    position, wanted_bytes = 0, window_bytes
    try:
        while position < size_bytes:
            left_bytes = size_bytes - position
            content = file.read_at(position, min(wanted_bytes, left_bytes))
            rows = _rows(content, compiled=compiled)
            if rows:
                spend(rows[-1].end_position)
                position += rows[-1].end_position
                wanted_bytes = window_bytes
                window = BatchWindow(content, rows, rows[-1].end_position)
                yield _modern(window, compiled=compiled)
                continue
            # Not even one batch fits, or the file ends inside of one.
            if len(content) < batch_format.LOG_OVERHEAD_BYTES:
                raise CorruptRecords(f"{path} ends inside a batch header at {position}")
            _, length = batch_format.LOG_OVERHEAD.unpack_from(content)
            wanted_bytes = batch_format.LOG_OVERHEAD_BYTES + length
            if wanted_bytes > left_bytes or len(content) >= wanted_bytes:
                raise CorruptRecords(f"{path} ends inside the batch at {position}")
    finally:
        file.close()


def _rows(content: bytes, *, compiled: bool) -> list[BatchRow]:
    if compiled:
        return list(vectorised.scan_batches(content))
    return [
        BatchRow(
            position,
            header.size_bytes,
            header.base_offset,
            header.last_offset_delta,
            header.attributes | (vectorised.OLD_MESSAGE_BIT if header.magic < 2 else 0),
            header.base_timestamp_ms,
            header.max_timestamp_ms,
            header.producer_id,
            header.record_count,
            header.crc,
        )
        for position, header in ((b.position, b.header) for b in iter_batches(content))
    ]


def _modern(window: BatchWindow, *, compiled: bool) -> BatchWindow:
    """The window with messages of formats 0 and 1 as batches of v2."""
    if not any(row.is_old for row in window.rows):
        return window
    parts: list[Buffer] = []
    for row in window.rows:
        if row.is_old:
            vectorised.check_crc(window.content, row)
            parts.append(modern_batch(window.content, row.position))
        else:
            parts.append(window.batch(row))
    content = b"".join(parts)
    rows = _rows(content, compiled=compiled)
    return BatchWindow(content, rows, window.source_bytes, is_modernised=True)

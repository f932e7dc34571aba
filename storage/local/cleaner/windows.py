"""Reads the batches of one segment for a cleaning, in windows of whole batches.

    segment file   [batch][batch][batch][batch....]      a window holds as many whole batches as fit
                   |---- window ----|--- window --       into io_bytes; a larger batch gets its own

    window = content, and the positions of its batches

Messages of formats 0 and 1 are converted to batches of v2: a cleaned log has one format, and only
v2 batches can have a delete horizon. Kafka keeps the old format and uses the age of the file.

Callers verify the CRC of a batch before they use it; here only old messages are verified, before
they are converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from strandline.storage.errors import CorruptRecords, UnsupportedCodec
from strandline.storage.files import OpenFile
from strandline.storage.model import Buffer
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.any_batch import convert_old, walk
from strandline.storage.records.batch.batch import Batch
from strandline.storage.records.compression import Codec, decompress

WINDOW_BYTES_MIN = 64 * 1024


class BatchWindow(NamedTuple):
    """A piece of a segment file with whole batches; `source_bytes` counts the bytes in the file."""

    content: bytes
    batches: list[Batch]
    source_bytes: int
    is_converted: bool = False

    def decompressed(self, batch: Batch) -> Buffer | None:
        """Returns the records of a compressed batch; None if they do not decompress."""
        try:
            return decompress(
                Codec(batch.header.codec), batch.encoded(self.content)[batch_format.HEADER_BYTES :]
            )
        except (CorruptRecords, UnsupportedCodec, ValueError):
            return None


def read_windows(
    path: Path,
    size_bytes: int,
    *,
    io_bytes: int,
    spend: Callable[[int], None],
) -> Iterator[BatchWindow]:
    """Yields the first `size_bytes` of a segment file; `spend` is called with every window's bytes.

    Raises CorruptRecords, DiskError.
    """
    file = OpenFile(path, writable=False)
    window_bytes = max(io_bytes, WINDOW_BYTES_MIN)
    position, wanted_bytes = 0, window_bytes
    try:
        while position < size_bytes:
            left_bytes = size_bytes - position
            content = file.read_at(position, min(wanted_bytes, left_bytes))
            batches = list(walk(content))
            if batches:
                source_bytes = batches[-1].end_position
                spend(source_bytes)
                position += source_bytes
                wanted_bytes = window_bytes
                converted = convert_old(content, batches)
                if converted is None:
                    yield BatchWindow(content, batches, source_bytes)
                else:
                    batches = list(walk(converted))
                    yield BatchWindow(converted, batches, source_bytes, is_converted=True)
                continue
            # No whole batch fits, or the file ends inside a batch.
            if len(content) < batch_format.LOG_OVERHEAD_BYTES:
                raise CorruptRecords(f"{path} ends inside a batch header at {position}")
            _, length = batch_format.LOG_OVERHEAD.unpack_from(content)
            wanted_bytes = batch_format.LOG_OVERHEAD_BYTES + length
            if wanted_bytes > left_bytes or len(content) >= wanted_bytes:
                raise CorruptRecords(f"{path} ends inside the batch at {position}")
    finally:
        file.close()

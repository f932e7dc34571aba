"""Reads offsets and times of a v2 batch's records without holding the batch decompressed.

    blocks of at most BLOCK_BYTES ─► length, time and offset of a record ─► its rest is skipped

For lookups by time: a client may name any batch, and a few KB can decompress to half a GiB. So the
reader keeps no block after its records, and copies no key or value. Raw snappy, as librdkafka
frames it, is one block; it grows by a factor of 22 at most.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer, TimestampType
from strandline.storage.records.batch.batch import HEADER_BYTES, BatchHeader
from strandline.storage.records.batch.record import INT64_MAX, INT64_MIN
from strandline.storage.records.batch.stepper import read_varint
from strandline.storage.records.compression import DECOMPRESSED_BYTES_MAX, iter_decompressed

# A length, the attributes, a time and an offset: three varints of 64 bits and a byte.
_HEAD_BYTES_MAX = 31


def iter_times(
    buffer: Buffer,
    header: BatchHeader,
    position: int = 0,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[tuple[int, int]]:
    """Offset and timestamp (ms) of each record of the batch at `position`, in order.

    Raises CorruptRecords, UnsupportedCodec, DecompressedTooLarge, as `record.iter_records`, but
    does not look into keys, values and headers, nor for bytes behind the last record.
    """
    packed = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    reader = _Reader(iter_decompressed(header.codec, packed, bytes_max=bytes_max))
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    previous_delta = -1
    for _ in range(header.record_count):
        reader.fill()
        view, end = reader.view, len(reader.view)
        length, start = read_varint(view, reader.position, end)
        delta_ms, position = read_varint(view, start + 1, end)
        offset_delta, reader.position = read_varint(view, position, end)
        timestamp_ms = header.base_timestamp_ms + delta_ms
        if not INT64_MIN <= timestamp_ms <= INT64_MAX:
            raise CorruptRecords(f"timestamp {timestamp_ms} has more than 64 bits")
        if not previous_delta < offset_delta <= header.last_offset_delta:
            raise CorruptRecords(
                f"offset delta {offset_delta} follows {previous_delta}"
                f" in a batch that ends at {header.last_offset_delta}"
            )
        previous_delta = offset_delta
        reader.pass_over(start, length)
        yield (
            header.base_offset + offset_delta,
            header.max_timestamp_ms if is_append_time else timestamp_ms,
        )


class _Reader:
    """A cursor over blocks; it holds one, and the last bytes of the one before."""

    __slots__ = ("_blocks", "position", "view")

    def __init__(self, blocks: Iterator[Buffer]) -> None:
        self._blocks = blocks
        self.view: Buffer = b""
        self.position = 0

    def fill(self) -> None:
        """Makes the whole head of the next record available, if there is one."""
        while len(self.view) - self.position < _HEAD_BYTES_MAX:
            block = next(self._blocks, None)
            if block is None:
                return
            self.view = bytes(self.view[self.position :]) + block
            self.position = 0

    def pass_over(self, start: int, length: int) -> None:
        """Moves to the end of the record of `length` bytes that began at `start`."""
        end = start + length
        if end < self.position:
            raise CorruptRecords(f"record of {length} bytes is shorter than its head")
        while end > len(self.view):
            end -= len(self.view)
            block = next(self._blocks, None)
            if block is None:
                raise CorruptRecords(f"record of {length} bytes exceeds its batch")
            self.view = block
        self.position = end

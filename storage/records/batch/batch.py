"""Record batch v2: the header and its checks.

    position  field                  bytes
           0  base offset               8   stamped by the broker
           8  batch length              4   bytes that follow this field
          12  partition leader epoch    4   stamped by the broker
          16  magic                     1   2
          17  crc                       4   CRC-32C over everything from position 21
          21  attributes                2   bits 0-2 codec, 3 timestamp type, 4 transactional,
                                            5 control, 6 has delete horizon
          23  last offset delta         4
          27  base timestamp            8
          35  max timestamp             8
          43  producer id               8
          51  producer epoch            2
          53  base sequence             4
          57  record count              4
          61  records

The broker stamps the base offset and the leader epoch, which lie before the CRC'd part, and
changes nothing else. Reading a header never touches the records.

The functions raise `CorruptRecords` for a bad byte; the caller knows whether that is a hostile
client, a torn tail or a damaged object.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer, TimestampType
from strandline.storage.system import crc32c

MAGIC = 2
HEADER_BYTES = 61
# Base offset and batch length: enough to step over a batch.
LOG_OVERHEAD_BYTES = 12
BATCH_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD_BYTES
CRC_START = 21

HEADER = struct.Struct(">qiibIhiqqqhii")
LOG_OVERHEAD = struct.Struct(">qi")
OFFSET_FIELD = struct.Struct(">q")
EPOCH_FIELD = struct.Struct(">i")
EPOCH_POSITION = 12
MAGIC_POSITION = 16
CRC_FIELD = struct.Struct(">I")
CRC_POSITION = 17
ATTRIBUTES_FIELD = struct.Struct(">h")
MAX_TIMESTAMP_POSITION = 35

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

CODEC_LAST = 4  # zstd; 5 to 7 are not assigned

assert HEADER.size == HEADER_BYTES


class BatchHeader(NamedTuple):
    """The 61 bytes in front of the records, decoded; unchecked unless a function says otherwise.

    A tuple, because every batch needs one: creating it takes a quarter of the time.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch with its header."""
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(1 if self.attributes & TIMESTAMP_TYPE_BIT else 0)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_plain(self) -> bool:
        """Whether the records follow the header as v2 encodes them, uncompressed."""
        return self.magic == MAGIC and not self.attributes & CODEC_MASK

    @property
    def has_producer(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap at 2^31. -1 if the batch has none."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class Batch(NamedTuple):
    """A whole batch: its header, and its position in a buffer or file."""

    position: int
    header: BatchHeader

    @property
    def end_position(self) -> int:
        return self.position + LOG_OVERHEAD_BYTES + self.header.batch_length

    def encoded(self, buffer: Buffer) -> memoryview:
        """Returns the bytes of the batch, header and records; `buffer` is the one it lies in."""
        return memoryview(buffer)[self.position : self.end_position]


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decodes the header at `position`, checking magic and batch length only.

    Raises CorruptRecords if fewer than 61 bytes are left, or length or magic are impossible.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptRecords(
            f"batch header needs {HEADER_BYTES} bytes, {len(buffer) - position} are left"
        )
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise CorruptRecords(f"record batch magic is {header.magic}, only {MAGIC} is served")
    if header.batch_length < BATCH_LENGTH_MIN:
        raise CorruptRecords(f"batch length {header.batch_length} is below {BATCH_LENGTH_MIN}")
    return header


def check_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Raises CorruptRecords unless the batch at `position` is whole and its CRC-32C is right."""
    end = position + header.size_bytes
    if end > len(buffer):
        raise CorruptRecords(
            f"batch needs {header.size_bytes} bytes, {len(buffer) - position} left"
        )
    compare_crc(header, crc32c.crc32c(memoryview(buffer)[position + CRC_START : end]))


def compare_crc(header: BatchHeader, computed: int) -> None:
    """Raises CorruptRecords unless the header has the CRC that was `computed`."""
    if computed != header.crc:
        raise CorruptRecords(
            f"CRC of batch at offset {header.base_offset} is {computed:#010x}, "
            f"its header says {header.crc:#010x}"
        )


def stamp(buffer: memoryview | bytearray, position: int, base_offset: int, epoch: int) -> None:
    """Writes base offset and leader epoch into the batch at `position`; the CRC stays true."""
    OFFSET_FIELD.pack_into(buffer, position, base_offset)
    EPOCH_FIELD.pack_into(buffer, position + EPOCH_POSITION, epoch)

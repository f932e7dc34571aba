"""Batches of a segment at compiled speed: their headers, and the time bounds of their records.

    bytes of a segment --scan_batches--> BatchRows     (headers only; `columns` decodes the records)
    one batch          --record_bounds-> RecordBounds  (steps over the records)

The loops are compiled by numba, which costs 0.3 s and more to import: nothing is imported before
the first call. Every function here raises CorruptRecords for bytes that are not what their headers
say, and never reads outside them.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer, TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch import old_messages
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import iter_records
from strandline.storage.records.columns.key_filter import KeyFilterBuilder
from strandline.storage.records.compression import decompress
from strandline.storage.system import crc32c

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes: TypeAlias = npt.NDArray[np.uint8]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

# Headers are scanned in tables of this many rows: 320 KiB, however many batches there are.
SCAN_ROWS_MAX: Final = 4096


# Beyond the 16 bits that attributes have: the row is a message of an old format.
OLD_MESSAGE_BIT: Final = 1 << 16


def available() -> bool:
    """Whether numba and numpy are installed; `record_bounds` works without them, only slower."""
    return bool(importlib.util.find_spec("numba") and importlib.util.find_spec("numpy"))


# --- time bounds ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBounds:
    """What the records of a batch say themselves; a header only claims its maximum."""

    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int


def record_bounds(
    buffer: Buffer,
    header: BatchHeader,
    position: int = 0,
    *,
    keys: KeyFilterBuilder | None = None,
) -> RecordBounds:
    """Steps over the records of the batch at `position`, decompressed if need be.

    Their keys are added to `keys`, which gives up if they cannot be found.

    Only lengths and timestamps are looked at, so that odd contents never keep a segment from
    being archived; the CRC is the caller's. Raises CorruptRecords, also for a batch without
    records.
    """
    if not available():
        return _bounds_record_by_record(buffer, header, position, keys)
    import numpy as np

    _check_not_empty(header)
    payload = as_array(_payload(buffer, header, position))
    bounds = np.zeros(3, np.int64)
    status = load_kernels().record_bounds(
        payload, header.record_count, header.base_timestamp_ms, bounds
    )
    if status != load_kernels().DONE:
        raise corrupt_record(status, header.base_offset, int(bounds[2]))
    if keys is not None and keys.is_complete:
        _add_keys(payload, header.record_count, keys)
    minimum, maximum = int(bounds[0]), int(bounds[1])
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        minimum = maximum = header.max_timestamp_ms
    return RecordBounds(
        record_count=header.record_count, min_timestamp_ms=minimum, max_timestamp_ms=maximum
    )


def _add_keys(payload: Bytes, record_count: int, keys: KeyFilterBuilder) -> None:
    from strandline.storage.records.kernels import key_filter as kernels

    added = kernels.add_keys(payload, record_count, kernels.CASTAGNOLI, kernels.IEEE, keys.words)
    if added < 0:
        keys.give_up()
    else:
        keys.count(added)


def _bounds_record_by_record(
    buffer: Buffer, header: BatchHeader, position: int, keys: KeyFilterBuilder | None
) -> RecordBounds:
    _check_not_empty(header)
    timestamps_ms: list[int] = []
    for record in iter_records(buffer, header, position):
        timestamps_ms.append(record.timestamp_ms)
        if keys is not None and record.key is not None:
            keys.add(bytes(record.key))
    return RecordBounds(
        record_count=len(timestamps_ms),
        min_timestamp_ms=min(timestamps_ms),
        max_timestamp_ms=max(timestamps_ms),
    )


# --- headers ----------------------------------------------------------------------------------


class BatchRow(NamedTuple):
    """The header fields that decoding needs; a tuple because there is one for every batch.

    The fields are in the order of the scan's table, its columns by these names.
    """

    position: int
    size_bytes: int
    base_offset: int
    last_offset_delta: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    record_count: int
    crc: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def end_position(self) -> int:
        return self.position + self.size_bytes

    @property
    def codec(self) -> int:
        return self.attributes & batch_format.CODEC_MASK

    @property
    def is_old(self) -> bool:
        """Whether this is a message of v0 or v1, which no kernel can decode."""
        return bool(self.attributes & OLD_MESSAGE_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & batch_format.TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & batch_format.CONTROL_BIT)


def scan_batches(buffer: Buffer, position: int = 0) -> Iterator[BatchRow]:
    """The headers of the whole batches from `position`; a last partial one is left out silently.

    Raises CorruptRecords at a header whose magic, length, counts or offsets are impossible.
    """
    import numpy as np

    kernels = load_kernels()
    view = as_array(buffer)
    table = np.empty((SCAN_ROWS_MAX, len(BatchRow._fields)), np.int64)
    while True:
        count, position, status = kernels.scan_batches(view, position, table)
        yield from map(BatchRow._make, table[:count].tolist())
        # The last old message of a buffer may be too short to be taken for a batch at all.
        if status == kernels.BAD_MAGIC or (status == kernels.DONE and count < SCAN_ROWS_MAX):
            row = _old_message(buffer, position)
            if row is not None:
                yield row
                position = row.end_position
                continue
            if old_messages.is_old(buffer, position):
                return
        if status != kernels.DONE:
            raise _corrupt_header(status, position)
        if count < SCAN_ROWS_MAX:
            return


def _old_message(buffer: Buffer, position: int) -> BatchRow | None:
    """The row of a message of v0 or v1; None if there is none, or not the whole of it."""
    if not old_messages.is_old(buffer, position) or position + old_messages.message_bytes(
        buffer, position
    ) > len(buffer):
        return None
    try:
        header = old_messages.read_header(buffer, position)
    except CorruptRecords as error:
        raise CorruptRecords(f"message at position {position}: {error}") from error
    return BatchRow(
        position=position,
        size_bytes=header.size_bytes,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        attributes=header.attributes | OLD_MESSAGE_BIT,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        producer_id=-1,
        record_count=header.record_count,
        crc=header.crc,
    )


def check_crc(buffer: Buffer, row: BatchRow) -> None:
    """Raises CorruptRecords unless the CRC of the batch is right."""
    if row.is_old:
        old_messages.check_crc(buffer, row.position)
        return
    computed = crc32c.crc32c(
        memoryview(buffer)[row.position + batch_format.CRC_START : row.end_position]
    )
    if computed != row.crc:
        raise CorruptRecords(
            f"CRC of batch at offset {row.base_offset} is {computed:#010x}, "
            f"its header says {row.crc:#010x}"
        )


# --- parts ------------------------------------------------------------------------------------


@functools.cache
def load_kernels() -> ModuleType:
    """The compiled loops: imports numba."""
    from strandline.storage.records.kernels import batches as kernels

    return kernels


def as_array(buffer: Buffer) -> Bytes:
    """The same memory as numpy sees it."""
    import numpy as np

    # Always read-only: numba would compile every kernel once more for writable input.
    view = np.frombuffer(buffer, np.uint8)
    view.flags.writeable = False
    return view


def corrupt_record(status: int, base_offset: int, record: int) -> CorruptRecords:
    """The error for what a kernel found in a record of the batch at `base_offset`."""
    kernels = load_kernels()
    if status == kernels.SPARE_BATCH_BYTES:
        return CorruptRecords(f"batch at offset {base_offset} has bytes behind its last record")
    reason = {
        kernels.BAD_VARINT: "ends inside a varint, or has one of more than 64 bits",
        kernels.BAD_RECORD_LENGTH: "has a length that exceeds its batch",
        kernels.BAD_LENGTH: "has a key, value or header longer than itself",
        kernels.BAD_HEADER_COUNT: "has an impossible header count",
        kernels.SPARE_RECORD_BYTES: "has spare bytes",
        kernels.BAD_OFFSET: "has an offset delta outside its batch, or not above the one before",
        kernels.BAD_TIMESTAMP: "has a timestamp of more than 64 bits",
    }[status]
    return CorruptRecords(f"record {record} of the batch at offset {base_offset} {reason}")


def _corrupt_header(status: int, position: int) -> CorruptRecords:
    kernels = load_kernels()
    fault = {
        kernels.BAD_MAGIC: f"a magic that is not {batch_format.MAGIC}",
        kernels.BAD_BATCH_LENGTH: f"a length below {batch_format.BATCH_LENGTH_MIN}",
        kernels.BAD_BATCH_OFFSETS: "impossible offsets or record count",
    }[status]
    return CorruptRecords(f"batch at position {position} has {fault}")


def _payload(buffer: Buffer, header: BatchHeader, position: int) -> Buffer:
    end = position + header.size_bytes
    if end > len(buffer):
        raise CorruptRecords(
            f"batch needs {header.size_bytes} bytes, {len(buffer) - position} left"
        )
    start = position + batch_format.HEADER_BYTES
    return decompress(header.codec, memoryview(buffer)[start:end])


def _check_not_empty(header: BatchHeader) -> None:
    if header.record_count < 1:
        raise CorruptRecords(
            f"batch at offset {header.base_offset} says {header.record_count} records"
        )

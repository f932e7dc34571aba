"""Records of many batches at once: their time bounds, and their columns as Arrow lays them out.

    bytes of a segment --scan_batches--> BatchTable --RunBuilder--> Run --decode--> DecodedRecords
                        (headers only)               (decompressed)      (numpy arrays: values,
                                                                          ends, bitmaps)

A run is a bounded number of payload bytes: either a stretch of a segment whose batches are not
compressed, taken as it lies, or decompressed batches one behind another. `decode` cuts a run into
outputs of bounded rows and bytes, so that Arrow's 32-bit ends cannot overflow.

The loops are compiled by numba, which costs 0.3 s to import: nothing is imported before the first
call. Every function here raises CorruptRecords for bytes that are not what their headers say.
`decode` accepts exactly what `record.iter_records` accepts, which is the slow oracle of its tests.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import crc32c

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer, TimestampType
from strandline.storage.records import batch as batch_format
from strandline.storage.records.batch import BatchHeader
from strandline.storage.records.compression import decompress
from strandline.storage.records.record import iter_records

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes: TypeAlias = npt.NDArray[np.uint8]
    Int32s: TypeAlias = npt.NDArray[np.int32]
    Int64s: TypeAlias = npt.NDArray[np.int64]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

# Length, attributes, two deltas, two null lengths and a header count: one byte each.
RECORD_BYTES_MIN: Final = 7

# One output holds at most this much. Larger ones cost more, not less: their memory comes fresh from
# the kernel for each of them, and the JVM behind a Spark task is slower with them.
OUTPUT_ROWS_MAX: Final = 1 << 16
OUTPUT_BYTES_MAX: Final = 2 * 1024 * 1024

# Payloads are gathered up to this size. One batch may be larger (compression bounds it); together
# with an output limit this stays far below the 2^31 of Arrow's ends.
RUN_BYTES_MAX: Final = 2 * 1024 * 1024

# Headers are scanned in tables of this many rows: 320 KiB, however many batches there are.
SCAN_ROWS_MAX: Final = 4096


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


def record_bounds(buffer: Buffer, header: BatchHeader, position: int = 0) -> RecordBounds:
    """Steps over the records of the batch at `position`, decompressed if need be.

    Only lengths and timestamps are looked at, so that odd contents never keep a segment from
    being archived; the CRC is the caller's. Raises CorruptRecords, also for a batch without
    records.
    """
    if not available():
        return _bounds_record_by_record(buffer, header, position)
    import numpy as np

    _check_not_empty(header)
    payload = _as_bytes(_payload(buffer, header, position))
    found = np.zeros(3, np.int64)
    status = _kernels().record_bounds(payload, header.record_count, header.base_timestamp_ms, found)
    if status != _kernels().DONE:
        raise _corrupt(status, header.base_offset, int(found[2]))
    minimum, maximum = int(found[0]), int(found[1])
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        minimum = maximum = header.max_timestamp_ms
    return RecordBounds(
        record_count=header.record_count, min_timestamp_ms=minimum, max_timestamp_ms=maximum
    )


def _bounds_record_by_record(buffer: Buffer, header: BatchHeader, position: int) -> RecordBounds:
    _check_not_empty(header)
    timestamps_ms = [record.timestamp_ms for record in iter_records(buffer, header, position)]
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

    kernels = _kernels()
    view = _as_bytes(buffer)
    table = np.empty((SCAN_ROWS_MAX, len(BatchRow._fields)), np.int64)
    while True:
        count, position, status = kernels.scan_batches(view, position, table)
        yield from map(BatchRow._make, table[:count].tolist())
        if status != kernels.DONE:
            raise _corrupt_header(status, position)
        if count < SCAN_ROWS_MAX:
            return


def check_crc(buffer: Buffer, row: BatchRow) -> None:
    """Raises CorruptRecords unless the CRC-32C of the batch is right."""
    computed = crc32c.crc32c(
        memoryview(buffer)[row.position + batch_format.CRC_START : row.end_position]
    )
    if computed != row.crc:
        raise CorruptRecords(
            f"CRC of batch at offset {row.base_offset} is {computed:#010x}, "
            f"its header says {row.crc:#010x}"
        )


# --- columns ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Rows outside are left out; both ends exclusive at the top."""

    start_offset: int = INT64_MIN
    end_offset: int = INT64_MAX
    start_timestamp_ms: int = INT64_MIN
    end_timestamp_ms: int = INT64_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedColumns:
    """Columns that cost something; offsets and times are always decoded."""

    key: bool = True
    value: bool = True
    headers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryColumn:
    """A variable-size Arrow column: `ends` has one element more than rows and begins with 0."""

    ends: Int32s
    content: Bytes
    valid: Bytes | None  # Arrow's bitmap; None when nothing is null
    null_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderColumns:
    """A list column: row `i` has headers `ends[i]` to `ends[i + 1]`; rows without any are null."""

    ends: Int32s
    valid: Bytes | None
    null_count: int
    header_count: int
    keys: BinaryColumn
    keys_are_ascii: bool
    values: BinaryColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecords:
    """Columns of up to the asked number of rows; arrays belong to whoever gets this."""

    row_count: int
    offsets: Int64s
    timestamps_ms: Int64s
    timestamp_types: Int32s
    key: BinaryColumn | None
    value: BinaryColumn | None
    headers: HeaderColumns | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Payloads in one buffer, with a row of the kernel's table for each batch."""

    payloads: Buffer
    batches: tuple[tuple[int, ...], ...]


class RunBuilder:
    """Gathers batches of one buffer into runs; the caller adds them in order, wanted ones only."""

    def __init__(self, buffer: Buffer, *, run_bytes_max: int = RUN_BYTES_MAX) -> None:
        self._buffer = memoryview(buffer)
        self._run_bytes_max = run_bytes_max
        self._rows: list[tuple[int, ...]] = []
        self._payload_bytes = 0
        # The decompressed payloads of the run; none while it is a stretch of the buffer.
        self._unpacked: list[Buffer] = []

    def add(self, row: BatchRow) -> Iterator[Run]:
        """Decompresses if need be; yields the runs that this batch completes.

        The CRC is the caller's (`check_crc`). Raises CorruptRecords or UnsupportedCodec.
        """
        start = row.position + batch_format.HEADER_BYTES
        payload: Buffer = self._buffer[start : row.end_position]
        if row.codec:
            payload = decompress(row.codec, payload)
        if row.record_count > len(payload) // RECORD_BYTES_MIN:
            raise CorruptRecords(
                f"batch at offset {row.base_offset} says {row.record_count} records"
                f" in {len(payload)} bytes"
            )
        if (
            bool(self._unpacked) != bool(row.codec)
            or self._payload_bytes + len(payload) > self._run_bytes_max
        ):
            yield from self.finish()
        if row.codec:
            start = self._payload_bytes
            self._unpacked.append(payload)
        self._rows.append(_table_row(row, start, start + len(payload)))
        self._payload_bytes += len(payload)

    def finish(self) -> Iterator[Run]:
        """The run that is left, if any."""
        rows, self._rows = self._rows, []
        parts, self._unpacked = self._unpacked, []
        self._payload_bytes = 0
        if not rows:
            return
        if not parts:
            yield Run(payloads=self._buffer, batches=tuple(rows))
        else:
            yield Run(
                payloads=parts[0] if len(parts) == 1 else b"".join(parts), batches=tuple(rows)
            )


def decode(
    run: Run,
    *,
    limits: RowLimits,
    wanted: WantedColumns,
    rows_max: int = OUTPUT_ROWS_MAX,
    bytes_max: int = OUTPUT_BYTES_MAX,
) -> Iterator[DecodedRecords]:
    """The wanted rows of a run in outputs of at most `rows_max` rows and about `bytes_max` bytes.

    A single record larger than `bytes_max` makes an output of its own. Outputs without rows are
    left out. Raises CorruptRecords, after the outputs in front of the bad record.
    """
    import numpy as np

    kernels = _kernels()
    payloads = _as_bytes(run.payloads)
    batches = np.array(run.batches, np.int64).reshape(-1, kernels.BATCH_FIELDS)
    cursor = np.zeros(kernels.CURSOR_FIELDS, np.int64)
    payload_bytes = int((batches[:, kernels.PAYLOAD_END] - batches[:, kernels.PAYLOAD_START]).sum())
    row_limits = np.array(
        [
            limits.start_offset,
            limits.end_offset,
            limits.start_timestamp_ms,
            limits.end_timestamp_ms,
        ],
        np.int64,
    )
    rows_max = min(rows_max, payload_bytes // RECORD_BYTES_MIN)
    status = kernels.FULL
    while status == kernels.FULL:
        output = _Output(rows_max, payload_bytes, wanted)
        status = kernels.decode_records(
            payloads,
            batches,
            cursor,
            row_limits,
            rows_max,
            bytes_max,
            wanted.key,
            wanted.value,
            wanted.headers,
            *output.arrays(),
        )
        if status not in (kernels.DONE, kernels.FULL):
            bad = int(cursor[kernels.BATCH])
            raise _corrupt(
                status, int(batches[bad, kernels.BASE_OFFSET]), int(cursor[kernels.RECORD])
            )
        if cursor[kernels.ROWS]:
            yield output.columns(cursor.tolist())


class _Output:
    """Arrays as large as one output may become; memory is only touched as far as it is filled."""

    def __init__(self, rows_max: int, payload_bytes: int, wanted: WantedColumns) -> None:
        self._wanted = wanted
        # Each header is at least two bytes of its payload.
        headers_max = payload_bytes // 2 if wanted.headers else 0
        self._offsets = _empty64(rows_max)
        self._timestamps = _empty64(rows_max)
        self._timestamp_types = _empty32(rows_max)
        self._key = _BinaryOutput(rows_max, payload_bytes, used=wanted.key)
        self._value = _BinaryOutput(rows_max, payload_bytes, used=wanted.value)
        self._header_ends = _empty32(rows_max + 1 if wanted.headers else 1)
        self._header_ends[0] = 0
        self._headers_valid = _bitmap(rows_max if wanted.headers else 0)
        self._header_key = _BinaryOutput(headers_max, payload_bytes, used=wanted.headers)
        self._header_value = _BinaryOutput(headers_max, payload_bytes, used=wanted.headers)

    def arrays(self) -> tuple[Int64s | Int32s | Bytes, ...]:
        """In the order of the kernel's arguments."""
        return (
            self._offsets,
            self._timestamps,
            self._timestamp_types,
            self._key.ends[1:],
            self._key.content,
            self._key.valid,
            self._value.ends[1:],
            self._value.content,
            self._value.valid,
            self._header_ends[1:],
            self._headers_valid,
            self._header_key.ends[1:],
            self._header_key.content,
            self._header_value.ends[1:],
            self._header_value.content,
            self._header_value.valid,
        )

    def columns(self, cursor: list[int]) -> DecodedRecords:
        kernels = _kernels()
        rows = cursor[kernels.ROWS]
        wanted = self._wanted
        return DecodedRecords(
            row_count=rows,
            offsets=self._offsets[:rows],
            timestamps_ms=self._timestamps[:rows],
            timestamp_types=self._timestamp_types[:rows],
            key=self._key.column(rows, cursor[kernels.KEY_BYTES], cursor[kernels.KEY_NULLS])
            if wanted.key
            else None,
            value=self._value.column(rows, cursor[kernels.VALUE_BYTES], cursor[kernels.VALUE_NULLS])
            if wanted.value
            else None,
            headers=self._header_columns(cursor) if wanted.headers else None,
        )

    def _header_columns(self, cursor: list[int]) -> HeaderColumns:
        kernels = _kernels()
        count = cursor[kernels.HEADERS]
        null_count = cursor[kernels.HEADERLESS_ROWS]
        return HeaderColumns(
            ends=self._header_ends[: cursor[kernels.ROWS] + 1],
            valid=self._headers_valid if null_count else None,
            null_count=null_count,
            header_count=count,
            keys=self._header_key.column(count, cursor[kernels.HEADER_KEY_BYTES], 0),
            keys_are_ascii=cursor[kernels.HEADER_KEY_HIGH_BITS] < 0x80,
            values=self._header_value.column(
                count, cursor[kernels.HEADER_VALUE_BYTES], cursor[kernels.HEADER_VALUE_NULLS]
            ),
        )


class _BinaryOutput:
    """Ends, content and bitmap of one variable-size column; nearly empty if it is not used."""

    def __init__(self, rows_max: int, bytes_max: int, *, used: bool) -> None:
        rows = rows_max if used else 0
        self.ends = _empty32(rows + 1)
        self.ends[0] = 0
        self.content = _empty8(bytes_max if used else 0)
        self.valid = _bitmap(rows)

    def column(self, rows: int, size_bytes: int, null_count: int) -> BinaryColumn:
        return BinaryColumn(
            ends=self.ends[: rows + 1],
            content=self.content[:size_bytes],
            valid=self.valid if null_count else None,
            null_count=null_count,
        )


# --- parts ------------------------------------------------------------------------------------


@functools.cache
def _kernels() -> ModuleType:
    from strandline.storage.records import kernels

    return kernels


def _as_bytes(buffer: Buffer) -> Bytes:
    import numpy as np

    # Always read-only: numba would compile every kernel once more for writable input.
    view = np.frombuffer(buffer, np.uint8)
    view.flags.writeable = False
    return view


def _empty64(length: int) -> Int64s:
    import numpy as np

    return np.empty(length, np.int64)


def _empty32(length: int) -> Int32s:
    import numpy as np

    return np.empty(length, np.int32)


def _empty8(length: int) -> Bytes:
    import numpy as np

    return np.empty(length, np.uint8)


def _bitmap(length: int) -> Bytes:
    import numpy as np

    return np.zeros((length + 7) // 8, np.uint8)


def _payload(buffer: Buffer, header: BatchHeader, position: int) -> Buffer:
    end = position + header.size_bytes
    if end > len(buffer):
        raise CorruptRecords(
            f"batch needs {header.size_bytes} bytes, {len(buffer) - position} left"
        )
    start = position + batch_format.HEADER_BYTES
    return decompress(header.codec, memoryview(buffer)[start:end])


def _table_row(row: BatchRow, start: int, end: int) -> tuple[int, ...]:
    return (
        start,
        end,
        row.base_offset,
        row.base_timestamp_ms,
        row.max_timestamp_ms,
        1 if row.attributes & batch_format.TIMESTAMP_TYPE_BIT else 0,
        row.record_count,
        row.last_offset_delta,
    )


def _check_not_empty(header: BatchHeader) -> None:
    if header.record_count < 1:
        raise CorruptRecords(
            f"batch at offset {header.base_offset} says {header.record_count} records"
        )


def _corrupt(status: int, base_offset: int, record: int) -> CorruptRecords:
    kernels = _kernels()
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
    kernels = _kernels()
    fault = {
        kernels.BAD_MAGIC: f"a magic that is not {batch_format.MAGIC}",
        kernels.BAD_BATCH_LENGTH: f"a length below {batch_format.BATCH_LENGTH_MIN}",
        kernels.BAD_BATCH_OFFSETS: "impossible offsets or record count",
    }[status]
    return CorruptRecords(f"batch at position {position} has {fault}")

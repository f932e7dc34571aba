"""Decodes records of many batches into columns, in Arrow's memory layout.

    batches  --RunBuilder--> Run --decode--> DecodedRecords
                (decompressed)     (numpy arrays: values, ends, bitmaps)

A run is a bounded number of payload bytes: either uncompressed batches in place in their segment,
or decompressed batches joined into one buffer. `decode` splits a run into outputs of bounded rows
and bytes, so that Arrow's 32-bit ends cannot overflow.

`decode` accepts exactly the batches that `record.iter_records` accepts, the slow oracle of its
tests, and raises CorruptRecords for all others. Plain Python decodes the first records of a
process, and all of them where numba is not installed: loading the compiled loop takes longer than
those, and compiling it the first time takes seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.any_batch import payload_of
from strandline.storage.records.batch.batch import Batch, BatchHeader
from strandline.storage.records.batch.record import read_nullable
from strandline.storage.records.batch.stepper import read_varint, step_records
from strandline.storage.records.columns.vectorised import (
    INT64_MAX,
    INT64_MIN,
    as_array,
    available,
    corrupt_record,
    load_kernels,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes: TypeAlias = npt.NDArray[np.uint8]
    Int32s: TypeAlias = npt.NDArray[np.int32]
    Int64s: TypeAlias = npt.NDArray[np.int64]

# Plain Python decodes so much of a process's payloads in a tenth of a second or two, in which the
# compiled loop would be loaded; compiling it takes seconds more.
PLAIN_BYTES_MAX: Final = 4 * 1024 * 1024
# From here on a scan without numba is told what would make it fast.
SLOW_BYTES: Final = 64 * 1024 * 1024

# Length, attributes, two deltas, two null lengths and a header count: one byte each.
RECORD_BYTES_MIN: Final = 7

# Bound on the bytes of one output. Larger ones cost more, not less: their memory comes fresh from
# the kernel for each of them, and the JVM behind a Spark task is slower with them.
OUTPUT_ROWS_MAX: Final = 1 << 16
OUTPUT_BYTES_MAX: Final = 2 * 1024 * 1024

# Arrow's ends are 32 bits. An output is at most the larger of its limit and one record, and a
# record is smaller than its batch, whose length has 32 bits too.
ENDS_MAX: Final = 2**31 - 1

# Payloads are gathered up to this size; one batch may be larger (compression bounds it).
RUN_BYTES_MAX: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Rows to keep: [start, end) by offset, and [start, last] by time.

    No offset is as large as an int64 can be. A time may be, so its upper end is inclusive.
    """

    start_offset: int = INT64_MIN
    end_offset: int = INT64_MAX
    start_timestamp_ms: int = INT64_MIN
    last_timestamp_ms: int = INT64_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedColumns:
    """Columns that are decoded on request only; offsets and times are always decoded."""

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
    """Columns of up to the requested number of rows; the receiver owns the arrays."""

    row_count: int
    offsets: Int64s
    timestamps_ms: Int64s
    timestamp_types: Int32s
    key: BinaryColumn | None
    value: BinaryColumn | None
    headers: HeaderColumns | None


class BatchRow(NamedTuple):
    """What decoding needs of a batch; the fields are those of the kernel's table."""

    payload_start: int
    payload_end: int
    base_offset: int
    base_timestamp_ms: int
    fixed_timestamp_ms: int
    timestamp_type: int
    record_count: int
    last_offset_delta: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Payloads in one buffer, with a row of the kernel's table for each batch."""

    payloads: Buffer
    batches: tuple[BatchRow, ...]


class RunBuilder:
    """Gathers batches of one buffer into runs; the caller adds the wanted ones, in order."""

    def __init__(self, buffer: Buffer, *, run_bytes_max: int = RUN_BYTES_MAX) -> None:
        self._buffer = memoryview(buffer)
        self._run_bytes_max = run_bytes_max
        self._rows: list[BatchRow] = []
        self._payload_bytes = 0
        # The decompressed payloads of the run; none while it is a stretch of the buffer.
        self._unpacked: list[Buffer] = []

    def add(self, batch: Batch) -> Iterator[Run]:
        """Decompresses if necessary; yields the runs that this batch completes.

        The caller checks the CRC (`check_crc`). Raises CorruptRecords or UnsupportedCodec.
        """
        header = batch.header
        if _is_empty(header):
            return
        start = batch.position + batch_format.HEADER_BYTES
        payload = payload_of(batch.encoded(self._buffer), header)
        is_unpacked = not header.is_plain
        if header.record_count > len(payload) // RECORD_BYTES_MIN:
            raise CorruptRecords(
                f"batch at offset {header.base_offset} says {header.record_count} records"
                f" in {len(payload)} bytes"
            )
        if (
            bool(self._unpacked) != is_unpacked
            or self._payload_bytes + len(payload) > self._run_bytes_max
        ):
            yield from self.finish()
        if is_unpacked:
            start = self._payload_bytes
            self._unpacked.append(payload)
        self._rows.append(_table_row(header, start, start + len(payload)))
        self._payload_bytes += len(payload)

    def add_all(self, batches: Iterable[Batch]) -> Iterator[Run]:
        """Adds many batches, without a call for each one that the kernel can read as it is."""
        for batch in batches:
            header = batch.header
            if self._unpacked or not header.is_plain:
                yield from self.add(batch)
                continue
            start = batch.position + batch_format.HEADER_BYTES
            size_bytes = header.batch_length - batch_format.BATCH_LENGTH_MIN
            if not size_bytes and not header.record_count:
                continue
            if header.record_count > size_bytes // RECORD_BYTES_MIN:
                yield from self.add(batch)  # which raises the error
            if self._payload_bytes + size_bytes > self._run_bytes_max:
                yield from self.finish()
            self._rows.append(_table_row(header, start, start + size_bytes))
            self._payload_bytes += size_bytes

    def finish(self) -> Iterator[Run]:
        """Yields the last run, if any."""
        rows, self._rows = self._rows, []
        parts, self._unpacked = self._unpacked, []
        self._payload_bytes = 0
        if not rows:
            return
        payloads: Buffer = self._buffer
        if parts:
            payloads = parts[0] if len(parts) == 1 else b"".join(parts)
        yield Run(payloads=payloads, batches=tuple(rows))


def _is_empty(header: BatchHeader) -> bool:
    """Returns whether compaction left only the header of a batch, of any codec."""
    return not header.record_count and header.size_bytes == batch_format.HEADER_BYTES


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
    assert bytes_max <= ENDS_MAX, bytes_max
    decode_run = _decode_plain if _DECODER.is_plain(run) else _decode_compiled
    return decode_run(run, limits, wanted, rows_max, bytes_max)


def _decode_compiled(
    run: Run, limits: RowLimits, wanted: WantedColumns, rows_max: int, bytes_max: int
) -> Iterator[DecodedRecords]:
    import numpy as np

    kernels = load_kernels()
    payloads = as_array(run.payloads)
    batches = np.array(run.batches, np.int64).reshape(-1, kernels.BATCH_FIELDS)
    cursor = np.zeros(kernels.CURSOR_FIELDS, np.int64)
    payload_bytes = int((batches[:, kernels.PAYLOAD_END] - batches[:, kernels.PAYLOAD_START]).sum())
    row_limits = np.array(
        [
            limits.start_offset,
            limits.end_offset,
            limits.start_timestamp_ms,
            limits.last_timestamp_ms,
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
            raise corrupt_record(
                status, int(batches[bad, kernels.BASE_OFFSET]), int(cursor[kernels.RECORD])
            )
        if cursor[kernels.ROWS]:
            yield output.columns(cursor.tolist())


class _Output:
    """Arrays as large as one output may become; memory is only touched as far as it is filled."""

    def __init__(self, rows_max: int, payload_bytes: int, wanted: WantedColumns) -> None:
        import numpy as np

        self._wanted = wanted
        # Each header is at least two bytes of its payload.
        headers_max = payload_bytes // 2 if wanted.headers else 0
        self._offsets: Int64s = np.empty(rows_max, np.int64)
        self._timestamps: Int64s = np.empty(rows_max, np.int64)
        self._timestamp_types: Int32s = np.empty(rows_max, np.int32)
        self._key = _BinaryOutput(rows_max, payload_bytes, used=wanted.key)
        self._value = _BinaryOutput(rows_max, payload_bytes, used=wanted.value)
        self._header_ends, self._headers_valid = _ends_and_bitmap(rows_max if wanted.headers else 0)
        self._header_key = _BinaryOutput(headers_max, payload_bytes, used=wanted.headers)
        self._header_value = _BinaryOutput(headers_max, payload_bytes, used=wanted.headers)

    def arrays(self) -> tuple[Int64s | Int32s | Bytes, ...]:
        """Returns the arrays in the order of the kernel's arguments."""
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
        kernels = load_kernels()
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
        kernels = load_kernels()
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
        import numpy as np

        self.ends, self.valid = _ends_and_bitmap(rows_max if used else 0)
        self.content: Bytes = np.empty(bytes_max if used else 0, np.uint8)

    def column(self, rows: int, size_bytes: int, null_count: int) -> BinaryColumn:
        return BinaryColumn(
            ends=self.ends[: rows + 1],
            content=self.content[:size_bytes],
            valid=self.valid if null_count else None,
            null_count=null_count,
        )


def _ends_and_bitmap(rows: int) -> tuple[Int32s, Bytes]:
    """Arrow's offsets, of which the first is 0, and a bitmap without a bit, for so many rows."""
    import numpy as np

    ends: Int32s = np.empty(rows + 1, np.int32)
    ends[0] = 0
    return ends, np.zeros((rows + 7) // 8, np.uint8)


def _table_row(header: BatchHeader, start: int, end: int) -> BatchRow:
    return BatchRow(
        start,
        end,
        header.base_offset,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        1 if header.attributes & batch_format.TIMESTAMP_TYPE_BIT else 0,
        header.record_count,
        header.last_offset_delta,
    )


# --- in plain Python -------------------------------------------------------------------------


@dataclass(slots=True)
class Decoder:
    """Decides how the runs of one process are decoded.

    Threads may count at once, and lose some bytes: no harm.
    """

    plain_bytes: int = 0

    def is_plain(self, run: Run) -> bool:
        """Whether to decode this run without the compiled loop; counts its bytes if so."""
        is_loaded = load_kernels.cache_info().currsize > 0
        if available() and (is_loaded or self.plain_bytes >= PLAIN_BYTES_MAX):
            return False
        before_bytes = self.plain_bytes
        self.plain_bytes += sum(batch.payload_end - batch.payload_start for batch in run.batches)
        if before_bytes < SLOW_BYTES <= self.plain_bytes:
            warnings.warn(
                "records are decoded in plain Python, which is slow: install numba",
                stacklevel=2,
            )
        return True


_DECODER = Decoder()


class _PlainRecord(NamedTuple):
    """A record, and how many bytes it takes in its batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]
    size_bytes: int


@dataclass(slots=True)
class _Rows:
    """The rows of one output; a column that is not wanted stays empty."""

    wanted: WantedColumns
    offsets: list[int] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    timestamp_types: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    header_counts: list[int] = field(default_factory=list)
    header_keys: list[bytes | None] = field(default_factory=list)
    header_values: list[bytes | None] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, record: _PlainRecord, timestamp_type: int) -> None:
        self.offsets.append(record.offset)
        self.timestamps_ms.append(record.timestamp_ms)
        self.timestamp_types.append(timestamp_type)
        if self.wanted.key:
            self.keys.append(record.key)
            self.size_bytes += len(record.key or b"")
        if self.wanted.value:
            self.values.append(record.value)
            self.size_bytes += len(record.value or b"")
        if self.wanted.headers:
            self.header_counts.append(len(record.headers))
            for key, value in record.headers:
                self.header_keys.append(key)
                self.header_values.append(value)
                self.size_bytes += len(key) + len(value or b"")

    def columns(self) -> DecodedRecords:
        import numpy as np

        return DecodedRecords(
            row_count=len(self.offsets),
            offsets=np.array(self.offsets, np.int64),
            timestamps_ms=np.array(self.timestamps_ms, np.int64),
            timestamp_types=np.array(self.timestamp_types, np.int32),
            key=_binary_column(self.keys) if self.wanted.key else None,
            value=_binary_column(self.values) if self.wanted.value else None,
            headers=self._header_columns() if self.wanted.headers else None,
        )

    def _header_columns(self) -> HeaderColumns:
        null_count = self.header_counts.count(0)
        return HeaderColumns(
            ends=_ends(self.header_counts),
            valid=_bitmap(count > 0 for count in self.header_counts) if null_count else None,
            null_count=null_count,
            header_count=len(self.header_keys),
            keys=_binary_column(self.header_keys),
            keys_are_ascii=all((key or b"").isascii() for key in self.header_keys),
            values=_binary_column(self.header_values),
        )


def _decode_plain(
    run: Run, limits: RowLimits, wanted: WantedColumns, rows_max: int, bytes_max: int
) -> Iterator[DecodedRecords]:
    payloads, rows = memoryview(run.payloads), _Rows(wanted)
    for batch in run.batches:
        payload = bytes(payloads[batch.payload_start : batch.payload_end])
        for record in _plain_records(batch, payload):
            if not (
                limits.start_offset <= record.offset < limits.end_offset
                and limits.start_timestamp_ms <= record.timestamp_ms <= limits.last_timestamp_ms
            ):
                continue
            is_full = rows.offsets and rows.size_bytes + record.size_bytes > bytes_max
            if is_full or len(rows.offsets) == rows_max:
                yield rows.columns()
                rows = _Rows(wanted)
            rows.add(record, batch.timestamp_type)
    if rows.offsets:
        yield rows.columns()


def _plain_records(batch: BatchRow, payload: bytes) -> Iterator[_PlainRecord]:
    """Yields the records of a batch. Raises CorruptRecords."""
    number, previous_delta = 0, -1
    try:
        for start, end, after, timestamp_delta_ms in step_records(payload, batch.record_count):
            offset_delta, at = read_varint(payload, after, end)
            key, at = read_nullable(payload, at, end)
            value, at = read_nullable(payload, at, end)
            headers = _read_headers(payload, at, end)
            if not previous_delta < offset_delta <= batch.last_offset_delta:
                raise CorruptRecords(f"an offset delta of {offset_delta} behind {previous_delta}")
            timestamp_ms = batch.base_timestamp_ms + timestamp_delta_ms
            if not INT64_MIN <= timestamp_ms <= INT64_MAX:
                raise CorruptRecords(f"a timestamp of more than 64 bits, {timestamp_ms}")
            if batch.timestamp_type:
                timestamp_ms = batch.fixed_timestamp_ms
            offset = batch.base_offset + offset_delta
            yield _PlainRecord(offset, timestamp_ms, key, value, headers, end - start)
            number, previous_delta = number + 1, offset_delta
    except CorruptRecords as error:
        raise CorruptRecords(
            f"record {number} of the batch at offset {batch.base_offset}: {error}"
        ) from None


def _read_headers(records: bytes, position: int, end: int) -> list[tuple[bytes, bytes | None]]:
    """Returns the headers that fill [position, end). Raises CorruptRecords."""
    count, position = read_varint(records, position, end)
    if not 0 <= count <= end - position:
        raise CorruptRecords(f"header count {count} is impossible")
    headers = []
    for _ in range(count):
        key, position = read_nullable(records, position, end)
        if key is None:
            raise CorruptRecords("record has a header without a key")
        value, position = read_nullable(records, position, end)
        headers.append((key, value))
    if position != end:
        raise CorruptRecords(f"record has {end - position} spare bytes")
    return headers


def _binary_column(contents: Sequence[bytes | None]) -> BinaryColumn:
    import numpy as np

    null_count = contents.count(None)
    return BinaryColumn(
        ends=_ends([len(content or b"") for content in contents]),
        content=np.frombuffer(b"".join(content or b"" for content in contents), np.uint8),
        valid=_bitmap(content is not None for content in contents) if null_count else None,
        null_count=null_count,
    )


def _ends(lengths: Sequence[int]) -> Int32s:
    import numpy as np

    return np.fromiter(accumulate(lengths, initial=0), np.int32, len(lengths) + 1)


def _bitmap(bits: Iterable[bool]) -> Bytes:
    import numpy as np

    return np.packbits(np.fromiter(bits, np.bool_), bitorder="little")

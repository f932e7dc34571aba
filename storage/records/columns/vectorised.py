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
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import Buffer, TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import iter_records
from strandline.storage.records.columns.key_filter import KeyFilterBuilder
from strandline.storage.records.compression import decompress

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes: TypeAlias = npt.NDArray[np.uint8]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


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

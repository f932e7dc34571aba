"""Encoder of decoded records as Arrow record batches with the columns of Spark's Kafka source.

    key            binary                  timestamp      timestamp, microseconds, UTC
    value          binary                  timestampType  int (0 CreateTime, 1 LogAppendTime)
    topic          string                  headers        array<struct<key string, value binary>>
    partition      int                                    null for a record without headers, as
    offset         long                                   Spark has it; only with includeHeaders

The arrays of the decoder become Arrow's buffers without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.spark_lake.options.options import (
    CORRUPT_COLUMN,
    HEADERS_COLUMN,
    RAW_COLUMN,
    REASON_COLUMN,
)
from strandline.storage.errors import CorruptRecords
from strandline.storage.model import TopicPartition
from strandline.storage.records.columns.columns import (
    BinaryColumn,
    DecodedRecords,
    HeaderColumns,
    WantedColumns,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MICROSECONDS_PER_MS = 1000
# Spark's timestamps are microseconds in 64 bits; Kafka's are milliseconds in as many.
_TIMESTAMP_MS_MAX = (2**63 - 1) // _MICROSECONDS_PER_MS


class ArrowEncoder:
    """Encoder of one partition's decoded columns into record batches of `columns`, in order."""

    def __init__(self, columns: Sequence[str], partition: TopicPartition) -> None:
        self._columns = tuple(columns)
        self._partition = partition
        self._schema = schema_of(columns)
        self._constants: dict[str, Any] = {}

    @property
    def wanted(self) -> WantedColumns:
        """The columns to decode."""
        return WantedColumns(
            key="key" in self._columns,
            value="value" in self._columns or RAW_COLUMN in self._columns,
            headers=HEADERS_COLUMN in self._columns,
        )

    def encode(self, decoded: DecodedRecords) -> Any:
        """Returns a `pyarrow.RecordBatch`; it shares memory with `decoded`.

        Raises CorruptRecords for a timestamp that Spark cannot hold. With RAW_COLUMN such a one
        is the first or the last that Spark can hold.
        """
        arrays = [self._array(column, decoded) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, column: str, decoded: DecodedRecords) -> Any:
        rows = decoded.row_count
        match column:
            case "key":
                assert decoded.key is not None
                return _binary(decoded.key, rows)
            case "value" | "_raw":  # RAW_COLUMN
                assert decoded.value is not None
                return _binary(decoded.value, rows)
            case "topic":
                return self._constant(column, rows, self._partition.topic, pa.string())
            case "partition":
                return self._constant(column, rows, self._partition.partition, pa.int32())
            case "offset":
                return _numbers(pa.int64(), decoded.offsets)
            case "timestamp":
                # Who wants the bytes keeps such a record, without its time.
                if RAW_COLUMN in self._columns:
                    times_ms = decoded.timestamps_ms.clip(-_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX)
                    times = times_ms * _MICROSECONDS_PER_MS
                else:
                    times = _microseconds(decoded)
                return _numbers(pa.timestamp("us", tz="UTC"), times)
            case "_reason":  # REASON_COLUMN: of values that are not decoded, none is wrong
                return pa.nulls(rows, pa.string())
            case "timestampType":
                return _numbers(pa.int32(), decoded.timestamp_types)
            case _:
                assert decoded.headers is not None, column
                return _headers(decoded.headers, rows)

    def _constant(self, column: str, rows: int, value: str | int, kind: Any) -> Any:
        """The same value in each row: a slice of an array that is as long as the longest batch."""
        known = self._constants.get(column)
        if known is None or len(known) < rows:
            known = pa.repeat(pa.scalar(value, kind), rows)
            self._constants[column] = known
        return known[:rows]


def schema_of(columns: Sequence[str], value_type: Any = None) -> Any:
    """Returns the `pyarrow.Schema` of these columns, exactly as Spark expects it.

    `value_type` is that of decoded values; None leaves them binary.
    """
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    kinds = {
        "key": pa.binary(),
        "value": pa.binary() if value_type is None else value_type,
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        CORRUPT_COLUMN: pa.binary(),
        RAW_COLUMN: pa.binary(),
        REASON_COLUMN: pa.string(),
        HEADERS_COLUMN: pa.list_(pa.field("element", header)),
    }
    return pa.schema([pa.field(column, kinds[column]) for column in columns])


def _microseconds(decoded: DecodedRecords) -> npt.NDArray[np.int64]:
    timestamps_ms = decoded.timestamps_ms
    too_far = (timestamps_ms > _TIMESTAMP_MS_MAX) | (timestamps_ms < -_TIMESTAMP_MS_MAX)
    if too_far.any():
        row = int(too_far.argmax())
        raise CorruptRecords(
            f"the timestamp {int(timestamps_ms[row])} ms of the record at offset"
            f" {int(decoded.offsets[row])} lies beyond what Spark can hold; leave that offset out,"
            " or choose a schema without the column timestamp"
        )
    return timestamps_ms * _MICROSECONDS_PER_MS


def _numbers(kind: Any, values: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], 0)


def _binary(column: BinaryColumn, rows: int) -> Any:
    buffers = [_bitmap(column.valid), pa.py_buffer(column.ends), pa.py_buffer(column.content)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers, column.null_count)


def _bitmap(valid: npt.NDArray[np.uint8] | None) -> Any:
    return None if valid is None else pa.py_buffer(valid)


def _headers(headers: HeaderColumns, rows: int) -> Any:
    count = headers.header_count
    pairs = pa.StructArray.from_arrays(
        [_header_keys(headers), _binary(headers.values, count)], ["key", "value"]
    )
    kind = schema_of([HEADERS_COLUMN]).field(0).type
    buffers = [_bitmap(headers.valid), pa.py_buffer(headers.ends)]
    return pa.Array.from_buffers(kind, rows, buffers, headers.null_count, children=[pairs])


def _header_keys(headers: HeaderColumns) -> Any:
    """Header keys as text; invalid UTF-8 is replaced, as in Java."""
    keys = _binary(headers.keys, headers.header_count)
    if headers.keys_are_ascii:
        return keys.view(pa.string())
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())

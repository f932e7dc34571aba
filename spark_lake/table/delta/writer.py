"""Writer of the Parquet files of a Delta table: rows by partition, one file per full buffer.

Delta has no transforms: `day(_timestamp)` is a column of its own, `_timestamp_day`, made here.
Columns that partition a table are in its log only. Statistics are those of numbers and times, by
which readers skip files.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from strandline.spark_lake.table.conform import columns_of, conform, cut_by
from strandline.spark_lake.table.errors import failed
from strandline.spark_lake.table.iceberg.places import is_too_long
from strandline.spark_lake.table.iceberg.writer import delete_files
from strandline.spark_lake.table.store import PartitionRows, WrittenFile

DAY_SUFFIX = "_day"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFile:
    """What the log says of a file: its place below the table, partition, and statistics."""

    place: str
    partition: Mapping[str, str | None]
    stats: str


@dataclass(slots=True, kw_only=True)
class DeltaWriter:
    """FileWriter of one table as it was loaded; picklable."""

    io: FileIO
    url: str
    schema: Any
    partition_by: Sequence[str]
    codec: str
    attempt: uuid.UUID
    sort_columns: Sequence[tuple[str, str]] = ()
    _file_count: int = 0

    def cut(self, rows: Any) -> Iterable[PartitionRows]:
        """By the values of the partition columns; a key is the tuple of them."""
        if not self.partition_by:
            yield PartitionRows(key=(), rows=rows)
            return
        keys = pa.table([self._values(rows, one) for one in self.partition_by], self.partition_by)
        yield from cut_by(keys, rows)

    def write(self, key: Any, batches: Sequence[Any]) -> WrittenFile:
        rows = pa.Table.from_batches(batches)
        if self.sort_columns:
            rows = rows.sort_by(list(self.sort_columns))
        inside = [one for one in self.schema if one.name not in self.partition_by]
        rows = conform(rows, pa.schema(inside))
        partition = dict(zip(self.partition_by, map(partition_text, key), strict=True))
        # Most readers take the values from the log, also without such a folder.
        folder = "" if is_folder_too_long(self.url, partition) else _folder(partition)
        place = f"{folder}{self._file_count:05d}-{self.attempt}.parquet"
        self._file_count += 1
        path = f"{self.url}/{place}"
        try:
            with self.io.new_output(path).create() as out:
                pq.write_table(rows, out, compression=self.codec)
            size_bytes = len(self.io.new_input(path))
        except (OSError, pa.ArrowException) as error:
            raise failed("write", path, error) from error
        return WrittenFile(
            path=path,
            size_bytes=size_bytes,
            record_count=rows.num_rows,
            entry=DeltaFile(place=place, partition=partition, stats=_statistics(rows)),
        )

    def read(self, file: WrittenFile, columns: Sequence[str] | None = None) -> Any:
        wanted = columns_of(self.schema, columns)
        try:
            with self.io.new_input(file.path).open() as source:
                parquet = pq.ParquetFile(source)
                known = set(parquet.schema_arrow.names)
                rows = parquet.read([one.name for one in wanted if one.name in known])
        except (OSError, pa.ArrowException) as error:
            raise failed("read", file.path, error) from error
        for name, text in file.entry.partition.items():
            if name in wanted.names:
                value = pa.array([text], pa.string()).cast(wanted.field(name).type)[0]
                rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return conform(rows, wanted)

    def renamed(self) -> DeltaWriter:
        return replace(self, attempt=uuid.uuid4(), _file_count=0)

    def discard(self, files: Sequence[WrittenFile]) -> None:
        delete_files(self.io, files)

    def _values(self, rows: Any, column: str) -> Any:
        if column in rows.schema.names:
            return rows.column(column)
        source = rows.column(column.removesuffix(DAY_SUFFIX))
        return source.cast(pa.timestamp("us", tz="UTC")).cast(pa.date32())


def reopen_file(io: FileIO, url: str, path: str) -> WrittenFile:
    """A file of another process, of a table without partitions. Raises what pyarrow raises."""
    with io.new_input(path).open() as source:
        rows = pq.ParquetFile(source).read()
    place = path.removeprefix(f"{url}/")
    return WrittenFile(
        path=path,
        size_bytes=len(io.new_input(path)),
        record_count=rows.num_rows,
        entry=DeltaFile(place=place, partition={}, stats=_statistics(rows)),
    )


def _folder(partition: Mapping[str, str | None]) -> str:
    """Named as Hive did: Polars takes the values of partitions from there, not from the log."""
    parts = [
        f"{name}={_NO_VALUE if text is None else quote(text, safe=' ')}/"
        for name, text in partition.items()
    ]
    return "".join(parts)


def is_folder_too_long(url: str, partition: Mapping[str, str | None]) -> bool:
    """Whether files of a partition lie outside of a folder of its values."""
    return is_too_long(url, _folder(partition))


def partition_text(value: object) -> str | None:
    """A partition's value as Delta's log has it, where an empty text is null."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value) or None


def _statistics(rows: Any) -> str:
    lowest, highest, nulls = {}, {}, {}
    for field in rows.schema:
        if not (pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)):
            continue
        column = rows.column(field.name)
        nulls[field.name] = column.null_count
        found = pc.min_max(column).as_py()
        if found["min"] is not None:
            lowest[field.name] = _shown(found["min"])
            highest[field.name] = _shown(_rounded_up(found["max"]))
    return json.dumps(
        {
            "numRecords": rows.num_rows,
            "minValues": lowest,
            "maxValues": highest,
            "nullCount": nulls,
        }
    )


def _shown(value: int | dt.datetime) -> int | str:
    """Times in milliseconds, which Delta's readers expect."""
    if isinstance(value, int):
        return value
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _rounded_up(value: int | dt.datetime) -> int | dt.datetime:
    """A maximum that is shown in milliseconds; there is none after the last one of year 9999."""
    if isinstance(value, int) or not value.microsecond % 1000:
        return value
    moment = value.replace(microsecond=value.microsecond // 1000 * 1000)
    last = dt.datetime.max.replace(microsecond=999_000, tzinfo=value.tzinfo)
    return moment if moment == last else moment + dt.timedelta(milliseconds=1)

"""Writer of Iceberg data files: rows by partition, one Parquet file per full buffer.

pyiceberg writes the Parquet file and computes its statistics as the table's properties say. The
file's name has the id of the attempt in it.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ParquetFormatWriter, parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import DayTransform, Transform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType

from strandline.spark_lake.table.conform import columns_of, conform, cut_by
from strandline.spark_lake.table.errors import failed
from strandline.spark_lake.table.iceberg.layout import sort_order_id
from strandline.spark_lake.table.iceberg.places import delete_paths, is_too_long
from strandline.spark_lake.table.iceberg.reader import null_counts, read_rows, refuse_nulls
from strandline.spark_lake.table.store import FileRole, PartitionRows, WrittenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergFile:
    """A data file, and the partition spec of its values."""

    data_file: DataFile
    spec_id: int


@dataclass(slots=True, kw_only=True)
class IcebergWriter:
    """FileWriter of one table as it was loaded; picklable."""

    io: FileIO
    metadata: TableMetadata
    attempt: uuid.UUID
    sort_columns: Sequence[tuple[str, str]] = ()
    _file_count: int = 0

    @property
    def schema(self) -> Any:
        return schema_to_pyarrow(self.metadata.schema())

    def read(self, file: WrittenFile, columns: Sequence[str] | None = None) -> Any:
        wanted = columns_of(self.schema, columns)
        try:
            rows = list(read_rows(self.io, self.metadata, file.entry.data_file, columns))
        except (OSError, pa.ArrowException) as error:
            raise failed("read", file.path, error) from error
        return pa.Table.from_batches(rows, wanted)

    def cut(self, rows: Any) -> Iterable[PartitionRows]:
        """By the values of the partition fields; a key is the tuple of them."""
        spec, schema = self.metadata.spec(), self.metadata.schema()
        if not spec.fields:
            yield PartitionRows(key=(), rows=rows)
            return
        values = []
        for one in spec.fields:
            source = schema.find_field(one.source_id)
            column = rows.column(schema.find_column_name(one.source_id))
            values.append(_transformed(one.transform, source.field_type, column))
        yield from cut_by(
            pa.table(values, names=[str(place) for place in range(len(values))]), rows
        )

    def write(self, key: Any, batches: Sequence[Any]) -> WrittenFile:
        spec, schema = self.metadata.spec(), self.metadata.schema()
        rows = pa.Table.from_batches(batches)
        if self.sort_columns:
            rows = rows.sort_by(list(self.sort_columns))
        partition = PartitionKey(
            field_values=[
                PartitionFieldValue(field=one, value=value)
                for one, value in zip(spec.fields, key, strict=True)
            ],
            partition_spec=spec,
            schema=schema,
        )
        given: Counter[int] = Counter()
        for field_id, count in null_counts(rows, schema):
            given[field_id] += count
        rows = conform(rows, schema_to_pyarrow(schema))
        properties = self.metadata.properties
        places = load_location_provider(self.metadata.location, properties)
        # Iceberg's readers take the values of partitions from the metadata, never from folders.
        is_named = spec.fields and not is_too_long(self.metadata.location, partition.to_path())
        path = places.new_data_location(
            f"{self._file_count:05d}-{self.attempt}.parquet", partition if is_named else None
        )
        self._file_count += 1
        output = self.io.new_output(path)
        try:
            with ParquetFormatWriter(output, schema, properties) as file:
                file.write(rows)
            size_bytes = len(output)
        except (OSError, pa.ArrowException) as error:
            raise failed("write", path, error) from error
        counts = file.result().to_serialized_dict()
        refuse_nulls(path, schema, counts["null_value_counts"] or {}, given)
        made = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=partition.partition if spec.fields else Record(),
            file_size_in_bytes=size_bytes,
            sort_order_id=sort_order_id(self.metadata),
            spec_id=spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **counts,
        )
        return written_file(made, spec.spec_id)

    def renamed(self) -> IcebergWriter:
        return replace(self, attempt=uuid.uuid4(), _file_count=0)

    def discard(self, files: Sequence[WrittenFile]) -> None:
        delete_files(self.io, files)


def _transformed(transform: Transform[Any, Any], kind: IcebergType, column: Any) -> Any:
    if isinstance(transform, DayTransform):
        # pyiceberg-core rounds to whole seconds first, towards 1970: of a time in the last second
        # of a day before 1970 it says the next day.
        return column.cast(pa.date32()).cast(pa.int32())
    return transform.pyarrow_transform(kind)(column)


def reopen_file(io: FileIO, metadata: TableMetadata, path: str) -> WrittenFile:
    """A file that another process wrote. Raises what `io` and pyarrow raise."""
    made = parquet_file_to_data_file(io, metadata, path)
    return written_file(made, metadata.default_spec_id)


def written_file(made: DataFile, spec_id: int) -> WrittenFile:
    """What a sync knows of a data file."""
    return WrittenFile(
        path=made.file_path,
        size_bytes=made.file_size_in_bytes,
        record_count=made.record_count,
        entry=IcebergFile(data_file=made, spec_id=spec_id),
    )


def delete_files(io: FileIO, files: Sequence[WrittenFile]) -> None:
    """Deletes what it can, never a file of the table."""
    delete_paths(io, [one.path for one in files if one.role is not FileRole.REMOVED])

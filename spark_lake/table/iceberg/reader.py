"""Reader of Iceberg data files: each column is placed by its field id, at any depth.

    the file has             the table has                 the rows have
    city, id 3               town, id 3                    the values of the file, as town
    columns without ids      a name mapping                the fields that the mapping names
    no field 7               field 7                       the partition's value, or the field's
                                                           initial default, or null

Structs, elements, keys and values have ids too. A file whose columns cannot be placed is refused:
its values would be read as null, and whoever rewrites the file would destroy them. So the nulls
that were read are counted too, and compared with those that the table's metadata say of the file:
its writer has counted them, and not this reader.

By Arrow, because pyiceberg's reader makes a null list an empty one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.exceptions import ResolveError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema, promote
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from strandline.spark_lake.table.errors import TableRefused

# Rows in memory while a file is read.
BATCH_ROWS = 32 * 1024


def read_rows(
    io: FileIO, metadata: TableMetadata, file: DataFile, columns: Sequence[str] | None = None
) -> Iterator[Any]:
    """The rows of a file as `pyarrow.RecordBatch`es in the types of some columns; None: of all.

    Raises OSError, ArrowException, and TableRefused for a file that cannot be placed; after its
    last row also for one with more nulls than the metadata say.
    """
    if file.file_format is not FileFormat.PARQUET:
        raise TableRefused(
            f"file {file.file_path} is {file.file_format.name}, and only Parquet is read:"
            " let the engine that wrote it rewrite it"
        )
    schema, nulls = metadata.schema(), Counter[int]()
    wanted = (schema if columns is None else schema.select(*columns)).as_struct()
    kind = schema_to_pyarrow(wanted)
    with io.new_input(file.file_path).open() as source:
        parquet = pq.ParquetFile(source)
        placing = _Placing(path=file.file_path, values=_partition_values(metadata, file))
        wanted_ids = {one.field_id for one in wanted.fields}
        found = _found_schema(parquet.schema_arrow, metadata, file.file_path)
        known = [one for one in found.fields if one.field_id in wanted_ids]
        for batch in parquet.iter_batches(BATCH_ROWS, columns=[one.name for one in known]):
            arrays = placing.fields(
                {one.field_id: (batch.column(one.name), one.field_type) for one in known},
                wanted,
                kind,
                row_count=batch.num_rows,
            )
            rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(kind)))
            for field_id, count in null_counts(rows, schema):
                nulls[field_id] += count
            yield rows
    # Of a field that the file lacks the metadata may say anything.
    placed = {one: count for one, count in nulls.items() if one in found.field_ids}
    refuse_nulls(file.file_path, schema, placed, file.null_value_counts or {})


def null_counts(rows: Any, schema: Schema) -> Iterator[tuple[int, int]]:
    """The nulls of each column of Arrow's rows, by field id; of structs those of their fields.

    As Parquet counts them: a null or empty list is a null of its elements.
    """
    for one in schema.fields:
        if one.name in rows.schema.names:
            column = rows.column(one.name)
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                yield from _null_counts(chunk, one.field_type, one.field_id)


def _null_counts(rows: Any, kind: IcebergType, field_id: int) -> Iterator[tuple[int, int]]:
    match kind:
        case StructType():
            parts = dict(zip((one.name for one in rows.type), rows.flatten(), strict=True))
            for one in kind.fields:
                if one.name in parts:
                    yield from _null_counts(parts[one.name], one.field_type, one.field_id)
        case ListType() | MapType():
            # Without null lists, which may have elements that nobody sees.
            offsets, elements = _elements(rows.drop_null())
            without = len(rows) - pc.count_distinct(offsets).as_py() + 1
            for inside_id, inside, part in _inside(kind, elements):
                for leaf_id, count in _null_counts(part, inside, inside_id):
                    yield leaf_id, count + without
        case _:
            yield field_id, rows.null_count


def refuse_nulls(
    path: str, schema: Schema, nulls: Mapping[int, int], known: Mapping[int, int]
) -> None:
    """Raises TableRefused if a field has more nulls than are known of it."""
    lost = [
        f"{schema.find_column_name(field_id)} ({count}, not {known[field_id]})"
        for field_id, count in nulls.items()
        if count > known.get(field_id, count)
    ]
    if lost:
        raise TableRefused(
            f"file {path} has nulls where its table has values: {', '.join(lost)}; nothing was"
            " committed, so that no value is lost"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placing:
    """Converter of a file's arrays to the fields of the table."""

    path: str
    # Of the file's partition, by the id of the field.
    values: Mapping[int, Any]

    def fields(
        self,
        found: Mapping[int, tuple[Any, IcebergType]],
        wanted: StructType,
        kind: Any,
        *,
        row_count: int,
    ) -> list[Any]:
        """`found` has the array and the type of the file's fields, by their ids."""
        return [
            self._placed(*found[one.field_id], one.field_type, field.type, one.name)
            if one.field_id in found
            else self._filled(one, field.type, row_count)
            for one, field in zip(wanted.fields, kind, strict=True)
        ]

    def _placed(
        self, rows: Any, found: IcebergType, wanted: IcebergType, kind: Any, name: str
    ) -> Any:
        match found, wanted:
            case StructType(), StructType():
                parts = zip(found.fields, rows.flatten(), strict=True)
                known = {one.field_id: (part, one.field_type) for one, part in parts}
                arrays = self.fields(known, wanted, kind, row_count=len(rows))
                return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=rows.is_null())
            case (ListType(), ListType()) | (MapType(), MapType()):
                return self._placed_elements(rows, found, wanted, kind, name)
            case _:
                self._check_type(found, wanted, name)
                # Every reader cuts the nanoseconds of a column of microseconds.
                return rows.cast(kind, safe=not pa.types.is_timestamp(rows.type))

    def _placed_elements(self, rows: Any, found: Any, wanted: Any, kind: Any, name: str) -> Any:
        offsets, elements = _elements(rows)
        kinds = [kind.key_type, kind.item_type] if pa.types.is_map(kind) else [kind.value_type]
        parts = []
        for (file_id, file_type, part), (field_id, field_type, _), one in zip(
            _inside(found, elements), _inside(wanted, elements), kinds, strict=True
        ):
            if file_id != field_id:
                raise _refusal(
                    self.path, f"{name} has elements with the id {file_id}, not {field_id}"
                )
            parts.append(self._placed(part, file_type, field_type, one, name))
        made = pa.MapArray if pa.types.is_map(kind) else pa.LargeListArray
        width = pa.int32() if pa.types.is_map(kind) else pa.int64()
        return made.from_arrays(offsets.cast(width), *parts, type=kind, mask=rows.is_null())

    def _filled(self, field: NestedField, kind: Any, row_count: int) -> Any:
        value = self.values.get(field.field_id, field.initial_default)
        if value is None and field.required:
            raise _refusal(self.path, f"it has no {field.name}, which each row must have")
        return pa.repeat(pa.scalar(value, kind), row_count)

    def _check_type(self, found: IcebergType, wanted: IcebergType, name: str) -> None:
        try:
            if found != wanted:
                promote(found, wanted)
        except ResolveError as error:
            raise _refusal(
                self.path, f"{name} is {found} there and {wanted} in the table"
            ) from error


def _refusal(path: str, reason: object) -> TableRefused:
    return TableRefused(
        f"the columns of file {path} cannot be placed: {reason}. Its values would be lost: let the"
        " engine that wrote the file rewrite it, or give the table a schema.name-mapping.default"
    )


def _found_schema(arrow_schema: Any, metadata: TableMetadata, path: str) -> Schema:
    """The schema of a file with the ids of its fields, its own or those of the name mapping."""
    try:
        return pyarrow_to_schema(
            arrow_schema,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=True,
            format_version=metadata.format_version,
        )
    except (ValueError, TypeError, StopIteration) as error:
        raise _refusal(path, error) from error


def _partition_values(metadata: TableMetadata, file: DataFile) -> dict[int, Any]:
    """The values that all rows of a file have, by the ids of their fields.

    Files that were moved from Hive lack these columns.
    """
    spec = metadata.specs()[file.spec_id]
    return {
        one.source_id: file.partition[place]
        for place, one in enumerate(spec.fields)
        if isinstance(one.transform, IdentityTransform) and file.partition[place] is not None
    }


def _elements(rows: Any) -> tuple[Any, Any]:
    """Where the lists or maps of an array begin and end among its elements, and these.

    The elements of a map are structs of key and value.
    """
    kind = rows.type
    is_map = pa.types.is_map(kind)
    inside = pa.struct([kind.key_field, kind.item_field]) if is_map else kind.value_field
    lists = rows.cast(pa.large_list(inside))
    offsets = lists.offsets
    first, last = offsets[0], offsets[-1]
    return pc.subtract(offsets, first), lists.values.slice(
        first.as_py(), last.as_py() - first.as_py()
    )


def _inside(kind: IcebergType, elements: Any) -> Iterator[tuple[int, IcebergType, Any]]:
    """Id, type and array of the elements of a list, or of the keys and the values of a map."""
    if isinstance(kind, ListType):
        yield kind.element_id, kind.element_type, elements
    elif isinstance(kind, MapType):
        keys, values = elements.flatten()
        yield kind.key_id, kind.key_type, keys
        yield kind.value_id, kind.value_type, values

"""Arrow arrays in the types of a table: fields by name, wider numbers, nulls for what is missing.

By Arrow's cast: pyiceberg's makes a null list an empty one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark_lake.table.store import PartitionRows


def conform(rows: Any, schema: Any) -> Any:
    """The `pyarrow.Table` with the columns of `schema`. Raises ArrowInvalid for a lossy cast."""
    arrays = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def shared_schema(schema: Any, other: Any) -> Any:
    """The fields that both `pyarrow.Schema`s have, at any depth, in the types of the first."""
    return without_fields(schema, added_fields(other, schema))


def added_fields(schema: Any, other: Any) -> list[tuple[str, ...]]:
    """The fields, at any depth, that the other `pyarrow.Schema` has and this one lacks.

    Each as its names from the column down; `element` is in a list, `value` in a map.
    """
    return list(_added(pa.struct(list(schema)), pa.struct(list(other))))


def _added(kind: Any, other: Any) -> Iterator[tuple[str, ...]]:
    known = _members(kind)
    # Without members of its own it is another type, not a struct that lacks fields.
    for name, more in _members(other).items() if known else ():
        if name in known:
            yield from ((name, *path) for path in _added(known[name], more))
        else:
            yield (name,)


def without_fields(schema: Any, fields: Sequence[tuple[str, ...]]) -> Any:
    """The `pyarrow.Schema` without these fields, as `added_fields` names them."""
    return pa.schema(list(_without(pa.struct(list(schema)), fields)))


def _without(kind: Any, fields: Sequence[tuple[str, ...]]) -> Any:
    left = {
        name: _without(one, [path[1:] for path in fields if path[0] == name and len(path) > 1])
        for name, one in _members(kind).items()
        if (name,) not in fields
    }
    if pa.types.is_struct(kind):
        return pa.struct(list(left.items()))
    if _is_list(kind):
        return pa.large_list(left["element"])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, left["value"])
    return kind


def _members(kind: Any) -> dict[str, Any]:
    """The types inside of a type, by name; the key of a map cannot change."""
    if pa.types.is_struct(kind):
        return {one.name: one.type for one in kind}
    if _is_list(kind):
        return {"element": kind.value_type}
    return {"value": kind.item_type} if pa.types.is_map(kind) else {}


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def columns_of(schema: Any, columns: Sequence[str] | None) -> Any:
    """The `pyarrow.Schema` of some columns; None: of all."""
    return schema if columns is None else pa.schema([schema.field(one) for one in columns])


def cut_by(keys: Any, rows: Any) -> Iterator[PartitionRows]:
    """The rows of a `pyarrow.RecordBatch` by the values of the `pyarrow.Table` beside it."""
    found = keys.group_by(keys.column_names, use_threads=False).aggregate([]).to_pylist()
    for one in found:
        key = tuple(one[name] for name in keys.column_names)
        is_all = len(found) == 1
        yield PartitionRows(key=key, rows=rows if is_all else rows.filter(_has_key(keys, key)))


def _has_key(keys: Any, key: Sequence[Any]) -> Any:
    """A mask of the rows whose columns `keys` have these values, nulls too."""
    wanted: Any = None
    for number, value in enumerate(key):
        column = keys.column(number)
        one = column.is_null() if value is None else pc.equal(column, pa.scalar(value, column.type))
        one = pc.fill_null(one, fill_value=False)
        wanted = one if wanted is None else pc.and_(wanted, one)
    return wanted.combine_chunks()

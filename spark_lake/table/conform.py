"""Arrow arrays in the types of a table: fields by name, wider numbers, nulls for what is missing.

Arrow's own cast refuses structs with other fields, and pyiceberg's writer makes a null list an
empty one. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def conform(rows: Any, schema: Any) -> Any:
    """The `pyarrow.Table` with the columns of `schema`. Raises ArrowInvalid for a lossy cast."""
    arrays = []
    for field in schema:
        if field.name in rows.column_names:
            column = rows.column(field.name)
            parts = [_array(one, field.type) for one in column.chunks]
            arrays.append(pa.chunked_array(parts, field.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def shared_schema(schema: Any, other: Any) -> Any:
    """The fields that both `pyarrow.Schema`s have, at any depth, in the types of the first."""
    return pa.schema(
        [
            pa.field(one.name, _shared(one.type, other.field(one.name).type))
            for one in schema
            if one.name in other.names
        ]
    )


def _shared(kind: Any, other: Any) -> Any:
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        known = {one.name: one.type for one in other}
        return pa.struct(
            [
                pa.field(one.name, _shared(one.type, known[one.name]))
                for one in kind
                if one.name in known
            ]
        )
    if _is_list(kind) and _is_list(other):
        return pa.large_list(_shared(kind.value_type, other.value_type))
    if pa.types.is_map(kind) and pa.types.is_map(other):
        return pa.map_(kind.key_type, _shared(kind.item_type, other.item_type))
    return kind


def _array(array: Any, kind: Any) -> Any:
    if array.type.equals(kind, check_metadata=True):
        return array
    if pa.types.is_struct(kind):
        known = {one.name: number for number, one in enumerate(array.type)}
        parts = [
            _array(array.field(known[one.name]), one.type)
            if one.name in known
            else pa.nulls(len(array), one.type)
            for one in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if _is_list(kind) and _is_list(array.type):
        return _list(array, kind)
    if pa.types.is_map(kind):
        items = pa.StructArray.from_arrays(
            [_array(array.keys, kind.key_type), _array(array.items, kind.item_type)],
            fields=[kind.key_field, kind.item_field],
        )
        return _same_places(array, kind, items)
    return array.cast(kind)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _list(array: Any, kind: Any) -> Any:
    """A list of other values; tables have large lists, whose offsets are wider."""
    values = _array(array.values, kind.value_type)
    is_large = pa.types.is_large_list(kind)
    if is_large == pa.types.is_large_list(array.type):
        return _same_places(array, kind, values)
    offsets = array.offsets.cast(pa.int64() if is_large else pa.int32())
    lists = pa.LargeListArray if is_large else pa.ListArray
    return lists.from_arrays(offsets, values, type=kind, mask=array.is_null())


def _same_places(array: Any, kind: Any, children: Any) -> Any:
    """A list or map of other children at the same places, and nulls where it has nulls."""
    return pa.Array.from_buffers(
        kind,
        len(array),
        array.buffers()[:2],
        array.null_count,
        offset=array.offset,
        children=[children],
    )


def has_key(keys: Any, key: Sequence[Any]) -> Any:
    """A mask of the rows whose columns `keys` have these values, nulls too."""
    wanted: Any = None
    for number, value in enumerate(key):
        column = keys.column(number)
        one = column.is_null() if value is None else pc.equal(column, pa.scalar(value, column.type))
        one = pc.fill_null(one, fill_value=False)
        wanted = one if wanted is None else pc.and_(wanted, one)
    return wanted.combine_chunks()

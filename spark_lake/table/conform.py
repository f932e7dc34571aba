"""Arrow arrays in the types of a table: fields by name, wider numbers, nulls for what is missing.

Arrow's own cast refuses structs with other fields, and pyiceberg's writer makes a null list an
empty one. Pure.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


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
    if pa.types.is_list(kind):
        return _same_places(array, kind, _array(array.values, kind.value_type))
    if pa.types.is_map(kind):
        items = pa.StructArray.from_arrays(
            [_array(array.keys, kind.key_type), _array(array.items, kind.item_type)],
            fields=[kind.key_field, kind.item_field],
        )
        return _same_places(array, kind, items)
    return array.cast(kind)


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

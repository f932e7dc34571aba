"""Arrow arrays in the types of a table: fields by name, wider numbers, nulls for what is missing.

By Arrow's cast: pyiceberg's makes a null list an empty one. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


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


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def has_key(keys: Any, key: Sequence[Any]) -> Any:
    """A mask of the rows whose columns `keys` have these values, nulls too."""
    wanted: Any = None
    for number, value in enumerate(key):
        column = keys.column(number)
        one = column.is_null() if value is None else pc.equal(column, pa.scalar(value, column.type))
        one = pc.fill_null(one, fill_value=False)
        wanted = one if wanted is None else pc.and_(wanted, one)
    return wanted.combine_chunks()

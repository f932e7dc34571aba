"""Schemas of Iceberg tables: of a new table, and what an existing one can take. Pure.

new field                  added, null in the rows before
field that is gone         stays, null from now on
int -> long, float -> double, decimal with more digits      widened
a narrower type            the table keeps the wider one
all else                   refused, with all such fields named, before anything is written
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StructType,
)

from strandline.spark_lake.table.errors import TableRefused

# Columns that engines make of a table's metadata. Java's library reads no table that has its own.
RESERVED_NAMES = frozenset(
    [
        "_deleted",
        "_file",
        "_last_updated_sequence_number",
        "_partition",
        "_pos",
        "_row_id",
        "_spec_id",
    ]
)


def iceberg_schema(schema: Any) -> Schema:
    """The Iceberg schema of a `pyarrow.Schema`.

    Raises TableRefused for types that Iceberg lacks, and for names that it keeps for itself.
    """
    if reserved := RESERVED_NAMES.intersection(schema.names):
        raise TableRefused(
            f"Iceberg keeps the name {', '.join(sorted(reserved))} for itself, and Spark and Trino"
            " read no table with such a column: give a column of the record another name"
            " (--column PART=NAME), or leave the field out of valueSchema"
        )
    numbers = itertools.count(1)
    try:
        return pyarrow_to_schema(pa.schema([_numbered(one, numbers) for one in schema]))
    except (UnsupportedPyArrowTypeException, TypeError, ValueError) as error:
        raise TableRefused(f"Iceberg has no type for a column: {error}") from error


def check_schema(existing: Schema, schema: Schema, *, table: str) -> bool:
    """Whether the table must be widened for rows of `schema`.

    Raises TableRefused with all fields that it can never take.
    """
    found = list(_differences(existing.as_struct(), schema.as_struct(), ""))
    refused = [one for one in found if one]
    if refused:
        raise TableRefused(
            f"table {table} cannot take these fields: {'; '.join(refused)}. Nothing was written:"
            " read them as the table has them (--option valueSchema), or make another table"
        )
    return bool(found)


def _differences(existing: IcebergType, new: IcebergType, path: str) -> Iterator[str]:
    """One text for each difference: empty if the table can be widened by it."""
    match existing, new:
        case StructType(), StructType():
            for one in new.fields:
                known = existing.field_by_name(one.name)
                if known is None:
                    yield from _added(existing, one.name, path)
                    continue
                yield from _differences(known.field_type, one.field_type, f"{path}{one.name}.")
        case ListType(), ListType():
            yield from _differences(existing.element_type, new.element_type, f"{path}element.")
        case MapType(), MapType():
            # The key of a map cannot change in Iceberg.
            if existing.key_type != new.key_type and not _widens(new.key_type, existing.key_type):
                yield _refusal(existing.key_type, new.key_type, f"{path}key.")
            yield from _differences(existing.value_type, new.value_type, f"{path}value.")
        case _:
            if _widens(new, existing):
                return
            yield "" if _widens(existing, new) else _refusal(existing, new, path)


def _added(existing: StructType, name: str, path: str) -> Iterator[str]:
    """A new field; names that differ in case alone are one column to most engines."""
    others = [one.name for one in existing.fields if one.name.lower() == name.lower()]
    yield f"{path}{name} beside {others[0]}, which differs in case alone" if others else ""


def _widens(narrow: IcebergType, wide: IcebergType) -> bool:
    """Whether values of `narrow` are values of `wide`, by Iceberg's rules for schema evolution."""
    match narrow, wide:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return narrow.scale == wide.scale and narrow.precision <= wide.precision
    return narrow == wide


def _refusal(existing: IcebergType, new: IcebergType, path: str) -> str:
    return f"{path.removesuffix('.')} is {_named(existing)} in the table, {_named(new)} here"


def _named(one: IcebergType) -> str:
    match one:
        case StructType():
            return "a struct"
        case ListType():
            return "a list"
        case MapType():
            return "a map"
    return str(one)


def _numbered(one: Any, numbers: Iterator[int]) -> Any:
    """The field with field ids, which pyiceberg wants; the catalog assigns others."""
    kind = one.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(part, numbers) for part in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, numbers))
    elif pa.types.is_map(kind):
        kind = pa.map_(_numbered(kind.key_field, numbers), _numbered(kind.item_field, numbers))
    metadata = {b"PARQUET:field_id": str(next(numbers)).encode()}
    return pa.field(one.name, kind, nullable=one.nullable, metadata=metadata)

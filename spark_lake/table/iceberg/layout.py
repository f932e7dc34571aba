"""Layout of a new Iceberg table: partitions, order within files, Parquet settings. Pure.

Transforms are written as in Spark's SQL: `day(_timestamp)`, `bucket(16, _key)`,
`truncate(4, origin)`, `origin`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import DoubleType, FloatType

from strandline.storage.errors import InvalidConfig

_TIMES: Mapping[str, Transform[int, int]] = {
    "year": YearTransform(),
    "month": MonthTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
}
_CALL = re.compile(r"(\w+)\((?:\s*(\d{1,9})\s*,)?\s*([^,()]+?)\s*(?:,\s*(\d{1,9})\s*)?\)")
_EXAMPLES = "day(_timestamp), bucket(16, _key), truncate(4, origin), or a column"
# Ids of partition fields begin here in Iceberg.
_FIRST_PARTITION_FIELD = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The layout that a new table gets; an existing one keeps its own, but for a given order."""

    partition_by: tuple[str, ...] = ()
    # (column, "ascending" or "descending")
    sort_columns: tuple[tuple[str, str], ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def spec(self, schema: Schema) -> PartitionSpec:
        """Raises InvalidConfig."""
        fields = [
            _partition_field(text, schema, _FIRST_PARTITION_FIELD + number)
            for number, text in enumerate(self.partition_by)
        ]
        if len({one.source_id for one in fields}) < len(fields):
            raise InvalidConfig("--partition-by uses a column twice, which pyiceberg cannot write")
        return PartitionSpec(*fields)

    def check_order(self, *schemas: Schema) -> None:
        """Raises InvalidConfig for a column to sort by that none of the schemas has."""
        for column, _ in self.sort_columns:
            known = [one for one in schemas if column in one.column_names]
            _sortable(column, (known or schemas)[0])

    def order(self, schema: Schema) -> SortOrder:
        """Raises InvalidConfig."""
        return SortOrder(
            *(
                SortField(
                    source_id=_sortable(column, schema),
                    transform=IdentityTransform(),
                    direction=SortDirection.DESC if way == "descending" else SortDirection.ASC,
                    null_order=NullOrder.NULLS_LAST,
                )
                for column, way in self.sort_columns
            )
        )


def sort_order_id(metadata: TableMetadata) -> int | None:
    """What a data file in the order of `sorted_by` says of it; None if it is not quite the table's.

    Rows without a value come last in our files; Spark's default puts them first.
    """
    fields = _order(metadata).fields
    if not sorted_by(metadata) or any(one.null_order is not NullOrder.NULLS_LAST for one in fields):
        return None
    return metadata.default_sort_order_id


def sorted_by(metadata: TableMetadata) -> tuple[tuple[str, str], ...]:
    """The order of a table's files by columns, as `sort_columns`.

    Empty if it has none, or one by transforms or parts of structs, which other engines write.
    """
    schema = metadata.schema()
    known = {one.field_id: one.name for one in schema.fields}
    order = _order(metadata)
    if any(
        one.source_id not in known or not isinstance(one.transform, IdentityTransform)
        for one in order.fields
    ):
        return ()
    return tuple(
        (
            known[one.source_id],
            "descending" if one.direction is SortDirection.DESC else "ascending",
        )
        for one in order.fields
    )


def _order(metadata: TableMetadata) -> SortOrder:
    return next(
        one for one in metadata.sort_orders if one.order_id == metadata.default_sort_order_id
    )


def sort_columns(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """From texts `column` or `column desc`. Raises InvalidConfig."""
    found = []
    for text in given:
        column, _, way = text.strip().partition(" ")
        if way.strip().lower() not in ("", "asc", "desc"):
            raise InvalidConfig(f"--sort-by {text!r} must be COLUMN or COLUMN desc")
        found.append((column, "descending" if way.strip().lower() == "desc" else "ascending"))
    return tuple(found)


def _partition_field(text: str, schema: Schema, field_id: int) -> PartitionField:
    call = _CALL.fullmatch(text.strip())
    name, number, column = "", None, text.strip()
    if call is not None:
        name, column = call[1].lower(), call[3]
        number = call[2] or call[4]
    transform = _transform(text, name.removesuffix("s"), None if number is None else int(number))
    source_id = _source(column, schema, "--partition-by")
    kind = schema.find_field(source_id).field_type
    # Of floating-point numbers NaN equals nothing, and -0.0 equals 0.0: nobody could say which
    # partition a row is in.
    if isinstance(kind, FloatType | DoubleType):
        raise InvalidConfig(
            f"--partition-by {text!r}: {column} is {kind}, and no table is partitioned by"
            " floating-point numbers; choose a column of another type"
        )
    if not transform.can_transform(kind):
        raise InvalidConfig(
            f"--partition-by {text!r}: {column} is {kind}, which {name or 'a partition'} cannot"
            " take; choose another column or transform"
        )
    suffix = f"_{name.removesuffix('s')}" if name else ""
    return PartitionField(
        source_id=source_id, field_id=field_id, transform=transform, name=f"{column}{suffix}"
    )


def _transform(text: str, name: str, number: int | None) -> Transform[int, int]:
    if name in _TIMES and number is None:
        return _TIMES[name]
    if name == "bucket" and number:
        return BucketTransform(number)
    if name == "truncate" and number:
        return TruncateTransform(number)
    if name in ("", "identity") and number is None:
        return IdentityTransform()
    raise InvalidConfig(f"--partition-by {text!r} must be one of {_EXAMPLES}")


def _sortable(column: str, schema: Schema) -> int:
    field = schema.find_field(_source(column, schema, "--sort-by"))
    if not field.field_type.is_primitive:
        raise InvalidConfig(f"--sort-by {column}: rows are sorted by columns of one value each")
    return field.field_id


def _source(column: str, schema: Schema, option: str) -> int:
    """The id of a column; fields of structs are none."""
    known = {one.name: one.field_id for one in schema.fields}
    if column not in known:
        raise InvalidConfig(f"{option}: there is no column {column}; there are {', '.join(known)}")
    return known[column]

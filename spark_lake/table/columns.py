"""Columns of a table: those of the record, under names that can be chosen, and the value's.

    _topic_id  _partition  _offset  _timestamp  _key  _headers  | origin  dest  dep_time ...
    the record                                                    fields of the decoded value

A value that is no struct (valueFormat raw or string) is one column. A null value has nulls in all
of its columns. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa

from strandline.spark_lake.options.given_options import nearest
from strandline.spark_lake.table.errors import TableRefused
from strandline.storage.errors import InvalidConfig

TOPIC_ID = "topic_id"
VALUE = "value"
# The parts of a record and the columns of the lake that they come from, with their names.
DEFAULT_NAMES: Mapping[str, str] = {
    TOPIC_ID: "_topic_id",
    "partition": "_partition",
    "offset": "_offset",
    "timestamp": "_timestamp",
    "key": "_key",
    "headers": "_headers",
}
# Parts that a table has only if a name is given.
OPTIONAL_PARTS = ("topic", "timestampType", VALUE)
# The commit's offsets are worth nothing without them.
NEEDED_PARTS = (TOPIC_ID, "partition", "offset")


def column_names(given: Sequence[str]) -> dict[str, str]:
    """Names by part from texts `part=name`; an empty name leaves a part out.

    Raises InvalidConfig.
    """
    names = dict(DEFAULT_NAMES)
    parts = (*DEFAULT_NAMES, *OPTIONAL_PARTS)
    for text in given:
        part, sign, name = text.partition("=")
        if not sign or part not in parts:
            raise InvalidConfig(
                f"--column {text!r} must be PART=NAME; the nearest part is {nearest(part, parts)},"
                f" the parts are {', '.join(parts)}"
            )
        if name:
            names[part] = name
        elif part in NEEDED_PARTS:
            raise InvalidConfig(f"--column {text!r}: no table can do without {part}")
        else:
            names.pop(part, None)
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """Converter of the lake's batches of one topic to rows of the table; picklable."""

    topic_id: UUID
    names: Mapping[str, str]
    # Of the lake's column `value`.
    value_type: Any

    @property
    def lake_columns(self) -> tuple[str, ...]:
        """What the lake must read."""
        parts = [part for part in self.names if part not in (TOPIC_ID, VALUE)]
        return (*parts, "value")

    def schema(self, lake_schema: Any) -> Any:
        """The `pyarrow.Schema` of the rows. Raises TableRefused for two columns of one name."""
        fields = [
            pa.field(name, pa.string() if part == TOPIC_ID else lake_schema.field(part).type)
            for part, name in self.names.items()
            if part != VALUE
        ]
        fields += self._value_fields()
        names = [one.name for one in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TableRefused(
                f"the table would have two columns named {', '.join(twice)}: a field of the value"
                " has the name of a column of the record; rename that with --column PART=NAME"
            )
        return pa.schema(fields)

    def rows(self, batch: Any, schema: Any) -> Any:
        """A `pyarrow.RecordBatch` of `schema` from one of the lake."""
        count = batch.num_rows
        arrays = [
            pa.repeat(pa.scalar(str(self.topic_id)), count)
            if part == TOPIC_ID
            else batch.column(part)
            for part in self.names
            if part != VALUE
        ]
        value = batch.column("value")
        arrays += value.flatten() if pa.types.is_struct(value.type) else [value]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _value_fields(self) -> list[Any]:
        if pa.types.is_struct(self.value_type):
            return [pa.field(one.name, one.type) for one in self.value_type]
        return [pa.field(self.names.get(VALUE, VALUE), self.value_type)]

"""Columns of a table: those of the record, under names that can be chosen, and the value's.

    _topic_id  _topic_partition  _offset  _timestamp  _key  _headers  | origin  dest  dep_time ...
    the record                                                           fields of the decoded value

The second table, for values that do not parse, has the record, `_value` and `_reason`.
A value that is no struct (valueFormat raw or string) is one column. A null value has nulls in all
of its columns. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark_lake.options.given_options import nearest
from strandline.spark_lake.options.options import CORRUPT_COLUMN, REASON_COLUMN
from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.offsets import Mode
from strandline.spark_lake.table.upsert import DELETED
from strandline.storage.errors import CorruptRecords, InvalidConfig

TOPIC_ID = "topic_id"
VALUE = "value"
# The parts of a record and the columns of the lake that they come from, with their names.
DEFAULT_NAMES: Mapping[str, str] = {
    TOPIC_ID: "_topic_id",
    "partition": "_topic_partition",
    "offset": "_offset",
    "timestamp": "_timestamp",
    "key": "_key",
    "headers": "_headers",
}
# Parts that a table has only if a name is given.
OPTIONAL_PARTS = ("topic", "timestampType", VALUE)
# Of Debezium's envelope.
PAYLOAD = "payload"
AFTER = "after"
OPERATION = "op"
# Of the second table: the bytes, and what is wrong with them.
REJECTED_VALUE = "_value"
REJECTED_REASON = "_reason"
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
    mode: Mode = Mode.APPEND

    def schema(self, lake_schema: Any) -> Any:
        """The `pyarrow.Schema` of the rows. Raises TableRefused for two columns of one name."""
        return _checked([*self._record_fields(lake_schema), *self._value_fields()])

    def rejected_schema(self, lake_schema: Any) -> Any:
        """The schema of the second table. Raises TableRefused for two columns of one name."""
        more = [pa.field(REJECTED_VALUE, pa.binary()), pa.field(REJECTED_REASON, pa.string())]
        return _checked([*self._record_fields(lake_schema), *more])

    def _record_fields(self, lake_schema: Any) -> list[Any]:
        return [
            pa.field(name, pa.string() if part == TOPIC_ID else lake_schema.field(part).type)
            for part, name in self.names.items()
            if part != VALUE
        ]

    def rows(self, batch: Any, schema: Any) -> Any:
        """A `pyarrow.RecordBatch` of `schema` from one of the lake."""
        return self._rows(batch, batch.column("value"), schema)

    def changes(self, batch: Any, schema: Any) -> Any:
        """The rows, and a column DELETED: which of them delete their key.

        Raises CorruptRecords for an event of Debezium that is of no row.
        """
        value = batch.column("value")
        deleted = value.is_null()
        if self.mode is Mode.DEBEZIUM:
            envelope = _member(value, PAYLOAD) if _has(value.type, PAYLOAD) else value
            value, op = _member(envelope, AFTER), _member(envelope, OPERATION)
            deleted = pc.or_(deleted, pc.fill_null(pc.equal(op, "d"), fill_value=False))
            strange = pc.and_(value.is_null(), pc.invert(deleted))
            if pc.any(strange).as_py():
                row = pc.index(strange, value=True).as_py()
                raise CorruptRecords(
                    f"the event at offset {batch.column('offset')[row]} of partition"
                    f" {batch.column('partition')[row]} has op {op[row]} and no row: leave that"
                    " offset out"
                )
        return self._rows(batch, value, schema).append_column(DELETED, deleted)

    def _rows(self, batch: Any, value: Any, schema: Any) -> Any:
        values = value.flatten() if pa.types.is_struct(value.type) else [value]
        return pa.RecordBatch.from_arrays([*self._record_arrays(batch), *values], schema=schema)

    def rejected_rows(self, batch: Any, schema: Any) -> Any:
        """Rows of the second table, whose schema this is, from those that do not parse."""
        values = [batch.column(CORRUPT_COLUMN), batch.column(REASON_COLUMN)]
        return pa.RecordBatch.from_arrays([*self._record_arrays(batch), *values], schema=schema)

    def _record_arrays(self, batch: Any) -> list[Any]:
        return [
            pa.repeat(pa.scalar(str(self.topic_id)), batch.num_rows)
            if part == TOPIC_ID
            else batch.column(part)
            for part in self.names
            if part != VALUE
        ]

    def _value_fields(self) -> list[Any]:
        kind = self.value_type
        if self.mode is Mode.DEBEZIUM:
            envelope = kind.field(PAYLOAD).type if _has(kind, PAYLOAD) else kind
            if not (_has(envelope, AFTER) and _has(envelope, OPERATION)):
                raise InvalidConfig(
                    "--mode debezium needs values with the fields after and op, or with a payload"
                    " that has them, such as valueSchema 'op STRING, after STRUCT<id: BIGINT>'"
                )
            kind = envelope.field(AFTER).type
        if pa.types.is_struct(kind):
            return [pa.field(one.name, one.type) for one in kind]
        return [pa.field(self.names.get(VALUE, VALUE), kind)]


def _has(kind: Any, name: str) -> bool:
    return bool(pa.types.is_struct(kind) and kind.get_field_index(name) >= 0)


def _member(value: Any, name: str) -> Any:
    """A field of a struct, null where the struct is null."""
    return value.flatten()[value.type.get_field_index(name)]


def _checked(fields: list[Any]) -> Any:
    names = [one.name for one in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TableRefused(
            f"the table would have two columns named {', '.join(twice)}: a field of the value"
            " has the name of a column of the record; rename that with --column PART=NAME"
        )
    return pa.schema(fields)

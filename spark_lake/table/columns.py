"""Columns of a table: those of the record, under names that can be chosen, and the value's.

    _topic_id  _topic_partition  _offset  _timestamp  _key  _headers  | origin  dest  dep_time ...
    the record                                                           fields of the decoded value

The second table, for values that do not parse and records that cannot be rows, has the record,
`_value` and `_reason`. A value that is no struct (valueFormat raw or string) is one column. A null
value has nulls in all of its columns. Pure.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark_lake.options.given_options import nearest
from strandline.spark_lake.options.options import RAW_COLUMN, REASON_COLUMN
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

    topic: str
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
        """The rows, and a column DELETED: which of them delete their key."""
        value, deleted = self._row(batch), batch.column("value").is_null()
        if self.mode is Mode.DEBEZIUM:
            deleted = pc.or_(deleted, self._is_delete(batch))
        return self._rows(batch, value, schema).append_column(DELETED, deleted)

    def _row(self, batch: Any) -> Any:
        """What becomes columns: the value, or what Debezium's envelope has in it."""
        value = batch.column("value")
        return _member(_envelope(value), AFTER) if self.mode is Mode.DEBEZIUM else value

    def _is_delete(self, batch: Any) -> Any:
        op = _member(_envelope(batch.column("value")), OPERATION)
        return pc.fill_null(pc.equal(op, "d"), fill_value=False)

    def _rows(self, batch: Any, value: Any, schema: Any) -> Any:
        values = value.flatten() if pa.types.is_struct(value.type) else [value]
        return pa.RecordBatch.from_arrays([*self._record_arrays(batch), *values], schema=schema)

    def reasons(self, batch: Any) -> Any | None:
        """Why the table cannot have rows, as texts, null for a row that it can; None: all."""
        found = batch.column(REASON_COLUMN) if REASON_COLUMN in batch.schema.names else None
        if self.mode is Mode.DEBEZIUM:
            found = _joined(found, self._of_no_row(batch))
        if self.mode is not Mode.APPEND and batch.column("key").null_count:
            text = "it has no key, and an upsert needs one"
            found = _joined(found, _only(batch.column("key").is_null(), text))
        if "timestamp" in self.names:
            found = _joined(found, _too_far(batch.column("timestamp"), "the timestamp"))
        value = self._row(batch)
        if pa.types.is_struct(value.type):
            for field, column in zip(value.type, value.flatten(), strict=True):
                found = _joined(found, _too_far(column, f"a time in field {field.name}"))
        return None if found is None or found.null_count == len(found) else found

    def accepted(self, batch: Any) -> Any:
        """The rows that the table can have."""
        reasons = self.reasons(batch)
        return batch if reasons is None else batch.filter(reasons.is_null())

    def _of_no_row(self, batch: Any) -> Any | None:
        """Reasons of events that are of no row, such as truncate (t) and message (m)."""
        has_row = pc.or_(self._row(batch).is_valid(), batch.column("value").is_null())
        strange = pc.invert(pc.or_(has_row, self._is_delete(batch)))
        if not pc.any(strange).as_py():
            return None
        op = _member(_envelope(batch.column("value")), OPERATION).cast(pa.string())
        text = pc.fill_null(
            pc.binary_join_element_wise("op", op, "has no row", " "),
            "it has no op and no after where the schema of the values has them: in payload, or not",
        )
        return _only(strange, text)

    def refusal(self, batch: Any, reasons: Any) -> CorruptRecords:
        """The error of the first row that the table cannot have."""
        row = pc.index(reasons.is_valid(), value=True).as_py()
        return CorruptRecords(
            f"the record at offset {batch.column('offset')[row]} of {self.topic} partition"
            f" {batch.column('partition')[row]} cannot be in the table: {reasons[row]};"
            " --on-error reject adds such records to the second table"
        )

    def rejected_rows(self, batch: Any, reasons: Any, schema: Any) -> Any:
        """Rows of the second table, whose schema this is."""
        raw = batch.column(RAW_COLUMN)
        arrays = [
            _without_far(one) if pa.types.is_timestamp(one.type) else one
            for one in self._record_arrays(batch)
        ]
        return pa.RecordBatch.from_arrays([*arrays, raw, reasons], schema=schema)

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


def _only(mask: Any, text: Any) -> Any:
    """The text in the rows of the mask, and null in all others."""
    return pc.if_else(mask, text, pa.scalar(None, pa.string()))


def _joined(found: Any | None, more: Any | None) -> Any | None:
    """The reasons of both; of a row with two the first one."""
    if found is None or more is None:
        return more if found is None else found
    return pc.coalesce(found, more)


def _too_far(column: Any, what: str) -> Any | None:
    """Reasons of the rows whose times the libraries of tables cannot hold; None if there is none.

    Kafka's and Arrow's times are numbers of 64 bits. Python's, and many engines', have these years.
    """
    if not _has_times(column.type) or not _has_far(column):
        return None
    text = f"{what} is not in the years 1 to 9999"
    rows = (text if _has_far(column.slice(row, 1)) else None for row in range(len(column)))
    return pa.array(rows, pa.string())


def _has_times(kind: Any) -> bool:
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return True
    return any(_has_times(one.type) for one in _parts(kind))


def _has_far(column: Any) -> bool:
    """Whether there is such a time, at any depth."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return bool(pc.any(_is_far(column)).as_py())
    if pa.types.is_struct(kind):
        return any(map(_has_far, column.flatten()))
    return bool(kind.num_fields) and _has_far(column.flatten())


def _is_far(column: Any) -> Any:
    kind = column.type
    first, last = dt.date.min, dt.date.max
    if pa.types.is_timestamp(kind):
        zone = dt.UTC if kind.tz else None
        first, last = (one.replace(tzinfo=zone) for one in (dt.datetime.min, dt.datetime.max))
    return pc.or_(
        pc.less(column, pa.scalar(first, kind)), pc.greater(column, pa.scalar(last, kind))
    )


def _without_far(column: Any) -> Any:
    return pc.if_else(_is_far(column), pa.scalar(None, column.type), column)


def _envelope(value: Any) -> Any:
    """Debezium's, with or without the schema beside it."""
    return _member(value, PAYLOAD) if _has(value.type, PAYLOAD) else value


def _checked(fields: list[Any]) -> Any:
    if empty := sorted(_empty(fields, "")):
        raise TableRefused(
            f"{', '.join(empty)} is a record or message without fields, and Parquet has no such"
            " column: leave it out of the schema of the values (valueSchema, valueDescriptors)"
        )
    if twice := sorted(_twice(fields, "")):
        raise TableRefused(
            f"the table would have two columns named {', '.join(twice)} (in most engines case does"
            " not matter): if a field of the value has the name of a column of the record, rename"
            " that with --column PART=NAME; if the value has both, leave one out of valueSchema"
        )
    return pa.schema(fields)


def _empty(fields: Sequence[Any], path: str) -> Iterator[str]:
    """Names of structs without fields, at any depth."""
    for one in fields:
        name = f"{path}{one.name}"
        if pa.types.is_struct(one.type) and not one.type.num_fields:
            yield name
        yield from _empty(_parts(one.type), f"{name}.")


def _twice(fields: Sequence[Any], path: str) -> Iterator[str]:
    """Names of which there is another one, at any depth; one for both if they are equal."""
    names = [one.name.lower() for one in fields]
    yield from {f"{path}{one.name}" for one in fields if names.count(one.name.lower()) > 1}
    for one in fields:
        yield from _twice(_parts(one.type), f"{path}{one.name}.")


def _parts(kind: Any) -> list[Any]:
    return [kind.field(number) for number in range(kind.num_fields)]

"""Decoder of JSON objects; Arrow parses all values of a batch at once.

Arrow reads a stream of objects in which a newline is like any other space. So that one value is one
row, each must begin with `{` and end with `}`. Then two values cannot become one (after a whole
member only `,` or `}` may follow, and strings hold no raw newline), and a value with two objects
makes one row too many, which the row count shows.

Arrow's reader refuses times with more than six decimal places, as .NET, Go and Java write them.
Values that it refused are read again with the times as texts, which are then cut.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from strandline.spark_lake.values.decoders.decoder import UnparsableValue
from strandline.spark_lake.values.schema.registry import FRAME_BYTES
from strandline.storage.errors import InvalidConfig

_SPACES = " \t\r\n"
# More than six decimal places of a second; a time of day with a zone.
_BEYOND_MICROSECONDS = r"(:\d\d\.\d{6})\d+"
# Arrow's text about a value of another kind than its column's.
_CHANGED = re.compile(r"JSON parse error: Column\(/(.*)\) changed from (\w+) to (\w+) in row \d+")
_ZONED = r"\d:\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"


class JsonValues:
    """Decoder of objects with these columns; others are ignored, missing ones are null."""

    def __init__(self, kind: Any, *, framed: bool = False) -> None:
        """Raises InvalidConfig for a type that cannot hold JSON values."""
        self._type = kind
        self._framed = framed
        # Arrow's JSON reader expects days since 1970 for a date; producers write texts.
        self._parsed_type = _parsed(kind)
        self._schema = pa.schema(list(self._parsed_type))
        self._with_texts = pa.schema(list(_parsed(kind, times=pa.string())))

    @property
    def type(self) -> Any:
        return self._type

    def decode(self, values: Any) -> Any:
        present = values if values.null_count == 0 else values.drop_null()
        if not len(present):
            return pa.nulls(len(values), self._type)
        if self._framed:
            # The schema id is unused: the option gives the columns.
            if not pc.all(pc.starts_with(present, b"\x00")).as_py():
                raise UnparsableValue("it does not begin with 0 and a schema id")
            present = pc.binary_slice(present, FRAME_BYTES)
        try:
            texts = pc.utf8_trim(present.cast(pa.string()), characters=_SPACES)
        except pa.ArrowInvalid as error:
            raise UnparsableValue("it is no UTF-8") from error
        framed = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
        if pc.all(framed).as_py() is not True:
            raise UnparsableValue("it is no JSON object")
        rows = self._rows(_lines(texts), len(present))
        return rows if values.null_count == 0 else _spread(rows, values)

    def decode_fields(self, values: Any) -> Any:
        return self._members(values, self._type, ())[0]

    def _members(self, values: Any, kind: Any, path: tuple[str, ...]) -> tuple[Any, Any]:
        """The struct at a path, and a mask of the rows in which one of its fields parses."""
        arrays, parses = [], np.zeros(len(values), dtype=np.bool_)
        for field in kind:
            array, parsed = self._field(values, field, path)
            arrays.append(array)
            parses |= parsed
        null = pa.array(~parses | np.asarray(values.is_null()))
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=null), parses

    def _field(self, values: Any, field: Any, path: tuple[str, ...]) -> tuple[Any, Any]:
        """The field of the struct at a path, and a mask of the rows in which it parses."""
        kind = pa.struct([field])
        for name in reversed(path):
            kind = pa.struct([pa.field(name, kind)])
        alone = JsonValues(kind, framed=self._framed)
        parts, parses = [], np.ones(len(values), dtype=np.bool_)
        # Slices to decode, the next one last: (first row, rows).
        todo = [(0, len(values))]
        while todo:
            start, length = todo.pop()
            piece = values.slice(start, length)
            try:
                found = alone.decode(piece)
                for _ in (*path, field.name):
                    (found,) = found.flatten()
                parts.append(found)
            except UnparsableValue:
                if length > 1:
                    half = length // 2
                    todo += [(start + half, length - half), (start, half)]
                elif pa.types.is_struct(field.type):
                    found, parsed = self._members(piece, field.type, (*path, field.name))
                    parts.append(found)
                    parses[start] = parsed[0]
                else:
                    parts.append(pa.nulls(1, field.type))
                    parses[start] = False
        return pa.concat_arrays(parts), parses

    def _rows(self, text: Any, count: int) -> Any:
        try:
            return _struct(text, count, self._schema).cast(self._type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if self._with_texts == self._schema:
                raise self._refusal(error, text, count) from error
            try:
                return _timed(_struct(text, count, self._with_texts), self._type).cast(self._type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise self._refusal(error, text, count) from error

    def _refusal(self, error: Exception, text: Any, count: int) -> UnparsableValue:
        """Names the field, which Arrow does only for a value of another kind."""
        said = str(error)
        if found := _CHANGED.fullmatch(said):
            field, wanted, given = found.groups()
            wanted = wanted.replace("_", " ")
            return UnparsableValue(f"field {field}: it is {given}, the schema has {wanted}")
        if count > 1 or said.startswith("JSON parse error"):
            return UnparsableValue(said)
        fields = list(self._type)
        if len(fields) == 1:
            return UnparsableValue(f"field {fields[0].name}: {said}")
        half = len(fields) // 2
        for part in (fields[:half], fields[half:]):
            try:
                JsonValues(pa.struct(part)).decode(pa.array([text.to_pybytes()], pa.binary()))
            except UnparsableValue as inside:
                return inside
        return UnparsableValue(said)


def _lines(texts: Any) -> Any:
    """The `pyarrow.Buffer` of all texts of an array, one in a line."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return pc.binary_join(whole, "\n")[0].as_buffer()


def _struct(text: Any, count: int, schema: Any) -> Any:
    """Returns the objects as rows of the schema. Raises UnparsableValue, or an error of Arrow."""
    table = json.read_json(
        pa.BufferReader(text),
        read_options=json.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=json.ParseOptions(
            explicit_schema=schema,
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != count:
        raise UnparsableValue("it holds more than one JSON object")
    columns = [column.combine_chunks() for column in table.columns]
    rows = pa.StructArray.from_arrays(columns, fields=list(schema))
    # Arrow's reader checks a decimal's scale, but not its number of digits.
    rows.validate(full=True)
    return rows


def _timed(values: Any, kind: Any) -> Any:
    """The same with texts converted to times where the type has one; UTC if there is no zone."""
    if pa.types.is_timestamp(kind):
        texts = pc.replace_substring_regex(values, _BEYOND_MICROSECONDS, r"\1")
        is_zoned = pc.match_substring_regex(texts, _ZONED)
        zoned = pc.if_else(is_zoned, texts, None).cast(kind)
        others = pc.if_else(is_zoned, None, texts).cast(pa.timestamp(kind.unit))
        return pc.coalesce(zoned, pc.assume_timezone(others, kind.tz))
    if pa.types.is_list(kind):
        items = _timed(values.values, kind.value_type)
        field = pa.field(kind.value_field.name, items.type)
        return pa.ListArray.from_arrays(
            values.offsets, items, type=pa.list_(field), mask=values.is_null()
        )
    if pa.types.is_struct(kind):
        parts = [_timed(values.field(n), one.type) for n, one in enumerate(kind)]
        fields = [pa.field(one.name, part.type) for one, part in zip(kind, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())
    return values


def _spread(rows: Any, values: Any) -> Any:
    """`rows` with a null inserted for each null of `values`."""
    valid = np.asarray(values.is_valid())
    places = np.where(valid, np.cumsum(valid) - 1, 0)
    return rows.take(pa.array(places, pa.int64(), mask=~valid))


def _parsed(kind: Any, *, times: Any = None) -> Any:
    """Returns the schema for Arrow's reader, with `times` instead of timestamps if given."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return times or kind
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _parsed(kind.value_type, times=times)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _parsed(field.type, times=times)) for field in kind])
    if pa.types.is_map(kind):
        raise InvalidConfig(
            "option valueSchema: valueFormat=json has no maps; name the members as a STRUCT, or"
            " read valueFormat=string and use from_json"
        )
    return kind

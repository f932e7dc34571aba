"""Logical types of Avro: those that make columns, and conversions of plain values to them. Pure.

    both schemas    date, timestamp-millis, timestamp-micros, decimal    kept if the reader has any
                    uuid, time-*, local-timestamp-*, others              left out: plain values
    the writer's    of a field that is plain in the reader's             left out: plain values
    a row           a number where the reader has a time                 the time that it means
                    bytes where the reader has a decimal                 the decimal they mean
                    text where the reader has bytes                      a default: a byte a letter

fastavro follows the *writer's* logical types. A field that became `timestamp-millis` later is still
a number, which Arrow would take for microseconds; bytes that became a decimal are still bytes.
Default bytes are texts with one letter per byte, of which Arrow would make UTF-8.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Collection, Mapping
from typing import Any

LOGICAL_TYPES = frozenset({"date", "timestamp-millis", "timestamp-micros", "decimal"})

# Conversion of one value of fastavro; None if there is nothing to convert.
Fix = Callable[[Any], Any] | None

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIMES: Mapping[tuple[str, str], Callable[[int], Any]] = {
    ("long", "timestamp-millis"): lambda number: _EPOCH + dt.timedelta(milliseconds=number),
    ("long", "timestamp-micros"): lambda number: _EPOCH + dt.timedelta(microseconds=number),
    ("int", "date"): lambda number: (_EPOCH + dt.timedelta(days=number)).date(),
}


def logical_types(schema: Any) -> frozenset[str]:
    """Returns the logical types to keep: all of LOGICAL_TYPES if the schema has any, else none."""
    return LOGICAL_TYPES if _has(schema) else frozenset()


def _has(schema: Any) -> bool:
    is_logical = isinstance(schema, dict) and schema.get("logicalType") in LOGICAL_TYPES
    return is_logical or any(map(_has, parts_of(schema)))


def parts_of(schema: Any) -> list[Any]:
    """Returns the schemas within a parsed schema; none are within a name."""
    if not isinstance(schema, dict):
        return schema if isinstance(schema, list) else []
    if schema["type"] in ("record", "error"):
        return [one["type"] for one in schema["fields"]]
    return [schema[name] for name in ("type", "items", "values") if name in schema]


def without_logical(schema: Any, kept: Collection[str]) -> Any:
    """Returns the schema without all logical types except `kept`."""
    if isinstance(schema, list):
        return [without_logical(one, kept) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: without_logical(part, kept) if name in ("type", "items", "values") else part
        for name, part in schema.items()
        if name != "logicalType" or part in kept
    }
    if "fields" in made:
        made["fields"] = [
            {**one, "type": without_logical(one.get("type"), kept)} for one in _fields(schema)
        ]
    return made


def as_wanted(writer: Any, reader: Any, named: Mapping[str, Any]) -> Any:
    """The writer's schema without the logical types that the reader's schema lacks at that place.

    Else fastavro would make times for a column of numbers. `named` has the reader's named types.
    """
    if isinstance(reader, str):
        reader = named.get(reader, reader)
    if isinstance(reader, list):
        # Only unions of one type and null make a column.
        reader = next((one for one in reader if one != "null"), "null")
        return as_wanted(writer, reader, named)
    if isinstance(reader, dict) and isinstance(reader["type"], dict | list):
        return as_wanted(writer, reader["type"], named)
    if isinstance(writer, list):
        return [as_wanted(one, reader, named) for one in writer]
    if not isinstance(writer, dict):
        return writer
    if isinstance(writer.get("type"), dict | list):
        return {**writer, "type": as_wanted(writer["type"], reader, named)}
    kept = reader if isinstance(reader, dict) else {}
    made = {
        name: as_wanted(part, kept.get(name, part), named) if name in ("items", "values") else part
        for name, part in writer.items()
        if name != "logicalType" or "logicalType" in kept
    }
    if "fields" in made:
        wanted = {name: one for one in _fields(kept) for name in _names(one)}
        made["fields"] = [
            {**one, "type": as_wanted(one.get("type"), wanted[one["name"]]["type"], named)}
            if one.get("name") in wanted
            else one
            for one in _fields(writer)
        ]
    return made


def named_types(schema: Any) -> dict[str, Any]:
    """Returns the records, enums and fixed types of a parsed schema by name."""
    found = {schema["name"]: schema} if isinstance(schema, dict) and "name" in schema else {}
    for part in parts_of(schema):
        found |= named_types(part)
    return found


def _names(one: Mapping[str, Any]) -> list[str]:
    return [one["name"], *one.get("aliases", ())]


def fixer(schema: Any, named: dict[str, Fix]) -> Fix:
    """Returns the conversion for a parsed, not recursive schema; None if it needs none."""
    if isinstance(schema, list):
        # Only unions of one type and null make a column.
        inside = next((found for one in schema if (found := fixer(one, named))), None)
        return None if inside is None else _unless_null(inside)
    if isinstance(schema, str):
        return _if_bytes({}) if schema == "bytes" else named.get(schema)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return fixer(kind, named)
    match kind:
        case "record":
            named[schema["name"]] = _record(schema, named)
            return named[schema["name"]]
        case "array":
            item = fixer(schema["items"], named)
            return None if item is None else _each(item)
        case "map":
            item = fixer(schema["values"], named)
            return None if item is None else _each_value(item)
        case "bytes" | "fixed":
            fix = _if_bytes(schema)
            if "name" in schema:
                named[schema["name"]] = fix
            return fix
    time = _TIMES.get((kind, schema.get("logicalType", "")))
    return None if time is None else _if_number(time)


def _record(schema: Any, named: dict[str, Fix]) -> Fix:
    fields = _fields(schema)
    fixes = {one["name"]: fix for one in fields if (fix := fixer(one["type"], named)) is not None}
    defaults = {one["name"]: one["default"] for one in fields if "default" in one}

    def fixed(row: Any) -> Any:
        # A default record may omit fields that have defaults.
        if len(row) < len(fields):
            row = {**defaults, **row}
        return {**row, **{name: fix(row[name]) for name, fix in fixes.items()}}

    return fixed if fixes or defaults else None


def _unless_null(fix: Callable[[Any], Any]) -> Fix:
    return lambda value: None if value is None else fix(value)


def _if_number(time: Callable[[int], Any]) -> Fix:
    return lambda value: time(value) if type(value) is int else value


def _if_bytes(schema: Mapping[str, Any]) -> Fix:
    def fixed(value: Any) -> Any:
        if type(value) is str:
            value = value.encode("latin-1")
        if type(value) is not bytes:
            return value
        if schema.get("logicalType") != "decimal":
            return value
        digits = int.from_bytes(value, "big", signed=True)
        return decimal.Decimal(digits).scaleb(-int(schema.get("scale", 0)))

    return fixed


def _each(fix: Callable[[Any], Any]) -> Fix:
    return lambda values: [fix(one) for one in values]


def _each_value(fix: Callable[[Any], Any]) -> Fix:
    return lambda values: {key: fix(one) for key, one in values.items()}


def _fields(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = schema.get("fields", [])
    return [one for one in fields if isinstance(one, dict)] if isinstance(fields, list) else []

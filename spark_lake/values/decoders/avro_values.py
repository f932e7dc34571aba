"""Decoder of Avro values, with one schema for all or with the schema that each value names.

Values that were written with the reader's schema become columns in one compiled loop
(`avro_columns`). fastavro reads all others row by row into the reader's schema, by Avro's own
resolution (defaults, promotions, other orders).

fastavro takes logical types from the writer's schema; the columns have those of the reader's. So
both schemas lose the types that make no column of their own (`avro_logical_types`). Numbers that
were written before their field became a time are converted afterwards, as are default bytes.
"""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark_lake.values.columns.avro_bounds import (
    NOTHING_LISTED,
    contains_itself,
    lists_nothing,
)
from strandline.spark_lake.values.columns.avro_columns import AvroColumns
from strandline.spark_lake.values.decoders.decoder import UnparsableValue
from strandline.spark_lake.values.schema.avro_logical_types import (
    as_wanted,
    fixer,
    logical_types,
    named_types,
    without_logical,
)
from strandline.spark_lake.values.schema.ddl import list_of, map_of, timestamp
from strandline.spark_lake.values.schema.references import avro_text
from strandline.spark_lake.values.schema.registry import FRAME_BYTES, RegisteredSchema, Registry
from strandline.storage.errors import InvalidConfig
from strandline.storage.extras import how_to_install

DEPTH_MAX = 32
# Spark's limit for decimals.
DIGITS_MAX = 38
# No record of Kafka is larger.
FIXED_BYTES_MAX = 2**31 - 1
# Limit for fastavro's text about two incompatible schemas.
MISMATCH_CHARS = 200
# Writer's schemas that a task keeps.
WRITERS_MAX = 1000
# Errors of the parser for JSON that is no schema.
BAD_SCHEMA = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


class AvroValues:
    """Decoder of values of `schema` (Avro's JSON); with a registry, each has its writer's."""

    def __init__(self, schema: str, registry: Registry | None) -> None:
        """Raises InvalidConfig for a schema that is invalid, or makes no column."""
        try:
            # Full names everywhere, so that references are found.
            parsed = _parsed(json.loads(schema))
            self._type = arrow_type(parsed, {})
            if lists_nothing(parsed, {}):
                raise InvalidConfig(f"option valueSchema {NOTHING_LISTED}")
        except BAD_SCHEMA as error:
            raise InvalidConfig(
                f"option valueSchema is no Avro schema that stands alone: {_reason(error)}"
            ) from error
        self._logical = logical_types(parsed)
        self._reader_schema = _parsed(without_logical(json.loads(schema), self._logical))
        self._fix = fixer(self._reader_schema, {})
        self._named = named_types(self._reader_schema)
        self._reader = _Writer(schema=self._reader_schema, read=_fastavro().schemaless_reader)
        self._registry = registry
        self._writer_of = lru_cache(WRITERS_MAX)(self._fetched)
        self._columns = AvroColumns.of(self._reader_schema, self._type)

    @property
    def type(self) -> Any:
        return self._type

    def decode(self, values: Any) -> Any:
        skip = self._frame_bytes(values)
        if self._columns is not None and skip is not None:
            decoded = self._columns.decode(values, skip=skip)
            if decoded is not None:
                return decoded
        rows = [None if value is None else self._row(value) for value in values.to_pylist()]
        try:
            return pa.array(rows, self._type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise UnparsableValue(str(error)) from error

    def _frame_bytes(self, values: Any) -> int | None:
        """Returns the bytes before each value; None unless all values have the reader's schema."""
        if self._registry is None:
            return 0
        frames = pc.unique(pc.binary_slice(values, 0, FRAME_BYTES)).drop_null()
        if len(frames) != 1:
            return None
        writer = self._writer(frames[0].as_py())
        return FRAME_BYTES if writer.schema == self._reader_schema else None

    def _row(self, value: bytes) -> Any:
        writer, stream = self._reader, io.BytesIO(value)
        if self._registry is not None:
            writer = self._writer(value)
            stream.seek(FRAME_BYTES)
        try:
            row = writer.read(stream, writer.schema, self._reader_schema)
            row = self._fix(row) if self._fix is not None else row
        except _fastavro().read.SchemaResolutionError as error:
            # The text holds both schemas in full.
            told = textwrap.shorten(str(error), MISMATCH_CHARS, placeholder=" ...")
            raise UnparsableValue(
                f"{_name_of(writer.schema)} cannot be read as {_name_of(self._reader_schema)}:"
                f" {told}"
            ) from error
        except Exception as error:  # nearly any error, for damaged bytes
            raise UnparsableValue(f"{type(error).__name__}: {error}") from error
        if stream.tell() != len(value):
            raise UnparsableValue(f"{len(value) - stream.tell()} bytes are left behind it")
        return row

    def _writer(self, value: bytes) -> _Writer:
        writer = self._writer_of(framed_id(value))
        if isinstance(writer, UnparsableValue):
            raise writer
        return writer

    def _fetched(self, schema_id: int) -> _Writer | UnparsableValue:
        """Returns the schema of this id, or the reason that its values do not parse."""
        assert self._registry is not None
        try:
            found = self._registry.by_id(schema_id)
        except InvalidConfig:
            return UnparsableValue(f"its schema {schema_id} is not in the registry")
        if found.kind.upper() != "AVRO":
            # {"type": "string"} is also a JSON schema, whose values are encoded otherwise.
            return UnparsableValue(f"its schema {schema_id} is {found.kind.lower()}")
        try:
            text = avro_text(self._registry, found, _parsed)
            written = without_logical(json.loads(text), self._logical)
            parsed = _parsed(as_wanted(written, self._reader_schema, self._named))
        except InvalidConfig as error:
            return UnparsableValue(f"its schema {schema_id} refers to others: {error}")
        except BAD_SCHEMA as error:
            return UnparsableValue(
                f"its schema {schema_id} in the registry is no Avro schema that stands alone:"
                f" {_reason(error)}"
            )
        if lists_nothing(parsed, {}):
            return UnparsableValue(f"its schema {schema_id} {NOTHING_LISTED}")
        if not contains_itself(parsed, ()):
            return _Writer(schema=parsed, read=_fastavro().schemaless_reader)
        try:
            from fastavro._read_py import schemaless_reader
        except ImportError:
            return UnparsableValue(f"its schema {schema_id} contains itself")
        # The compiled reader does not bound nesting: 100 KB of it end the process.
        return _Writer(schema=parsed, read=schemaless_reader)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """A parsed writer's schema, and the function that reads its values."""

    schema: Any
    read: Callable[[io.BytesIO, Any, Any], Any]


def _name_of(schema: Any) -> str:
    """Returns a short name of a parsed schema."""
    if isinstance(schema, list):
        return f"a union of {len(schema)} types"
    return str(schema.get("name", schema["type"])) if isinstance(schema, dict) else str(schema)


def _reason(error: Exception) -> str:
    return f"{error} is missing" if type(error) is KeyError else str(error)


def schema_of_registry(registry: Registry, found: RegisteredSchema) -> str:
    """Self-contained Avro JSON, for `AvroValues`. Raises InvalidConfig, TierUnavailable."""
    try:
        return avro_text(registry, found, _parsed)
    except BAD_SCHEMA as error:
        raise InvalidConfig(
            "the schema of the registry, with those it refers to, is no Avro schema:"
            f" {_reason(error)}"
        ) from error


def _parsed(schema: Any, known: dict[str, Any] | None = None) -> Any:
    """fastavro's parser. Raises one of BAD_SCHEMA."""
    fastavro = _fastavro()
    try:
        return fastavro.parse_schema(schema, named_schemas=known)
    except fastavro.schema.SchemaParseException as error:
        raise ValueError(str(error)) from error


def framed_id(value: bytes) -> int:
    """Returns the schema id in front of a value. Raises UnparsableValue if there is none."""
    if len(value) < FRAME_BYTES or value[0] != 0:
        raise UnparsableValue("it does not begin with 0 and a schema id")
    return int.from_bytes(value[1:FRAME_BYTES], "big")


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise InvalidConfig(
            "valueFormat=avro needs fastavro on the driver and the executors:"
            f" {how_to_install('values')}"
        ) from error
    return fastavro


def arrow_type(schema: Any, named: dict[str, Any], depth: int = 0) -> Any:
    """The Arrow type of a parsed schema; as Spark's from_avro maps it. Raises InvalidConfig."""
    if depth > DEPTH_MAX:
        raise InvalidConfig(f"option valueSchema is nested more than {DEPTH_MAX} deep")
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise InvalidConfig(
                "a union of several types makes no column; give a reader schema without it"
                " (option valueSchema), or read valueFormat=raw"
            )
        return arrow_type(branches[0], named, depth + 1)
    if isinstance(schema, str):
        if schema in named:
            if named[schema] is None:
                raise InvalidConfig(
                    f"{schema} contains itself; give a reader schema without it (option"
                    " valueSchema), or read valueFormat=raw"
                )
            return named[schema]
        schema = {"type": schema}
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return arrow_type(kind, named, depth + 1)
    logical = _logical(kind, schema)
    if logical is not None:
        return logical
    match kind:
        case "record":
            named[schema["name"]] = None
            fields = [_field(one, named, depth + 1) for one in schema["fields"]]
            if len({one.name for one in fields}) < len(fields):
                raise InvalidConfig(
                    f"option valueSchema: {schema['name']} has two fields of one name"
                )
            named[schema["name"]] = pa.struct(fields)
            return named[schema["name"]]
        case "array":
            return list_of(arrow_type(schema["items"], named, depth + 1))
        case "map":
            return map_of(pa.string(), arrow_type(schema["values"], named, depth + 1))
        case "enum" | "fixed":
            size = schema.get("size", 0)
            if type(size) is not int or not 0 <= size <= FIXED_BYTES_MAX:
                raise InvalidConfig(f"option valueSchema: {schema['name']} has the size {size!r}")
            named[schema["name"]] = pa.string() if kind == "enum" else pa.binary()
            return named[schema["name"]]
    simple = {
        "boolean": pa.bool_,
        "int": pa.int32,
        "long": pa.int64,
        "float": pa.float32,
        "double": pa.float64,
        "bytes": pa.binary,
        "string": pa.string,
    }
    if kind not in simple:
        raise InvalidConfig(
            f"the Avro type {kind} makes no column; give a reader schema without it (option"
            " valueSchema)"
        )
    return simple[kind]()


def _field(one: Any, named: dict[str, Any], depth: int) -> Any:
    try:
        return pa.field(one["name"], arrow_type(one["type"], named, depth))
    except InvalidConfig as error:
        raise InvalidConfig(f"field {one['name']}: {error}") from error


def _logical(kind: str, schema: Any) -> Any:
    match kind, schema.get("logicalType"):
        case "int", "date":
            return pa.date32()
        case "long", "timestamp-millis" | "timestamp-micros":
            return timestamp()
        case "bytes" | "fixed", "decimal":
            precision = int(schema["precision"])
            if precision > DIGITS_MAX:
                raise InvalidConfig(
                    f"a decimal of {precision} digits makes no column, which has {DIGITS_MAX} at"
                    " most; leave the logicalType out of the reader schema (option valueSchema) to"
                    " have the bytes"
                )
            return pa.decimal128(precision, int(schema.get("scale", 0)))
        case "int" | "long", str(name) if name.startswith(("time-", "local-timestamp-")):
            raise InvalidConfig(
                f"Avro's {schema['logicalType']} makes no column of Spark; leave the logicalType"
                " out of the reader schema (option valueSchema) to have the number"
            )
    return None

"""Decoding of a batch's values into one typed column, with a policy for unparsable values.

    binary column  --ValueDecoder.decode-->  typed column        the usual case: all rows at once
                   --Unparsable-->  halves, halves of halves     until each unparsable row is alone
    policy   fail     the query ends with an error that names the offset
             null     null
             field    null in the fields that do not parse (`FieldDecoder`)
             corrupt  null, and the bytes in a column `_corrupt` (for tables, why in `_reason`)

A null value (a tombstone) is null and parses. The same decoder reads the halves, so rows do not
depend on their neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark_lake.options.options import CORRUPT_COLUMN, REASON_COLUMN
from strandline.spark_lake.options.value_options import ValueErrors
from strandline.spark_lake.values.schema.registry import FRAME_BYTES
from strandline.storage.errors import CorruptRecords

# A reason may quote its value, which may be a megabyte.
REASON_CHARS_MAX = 1000
# Where field by field is decoded: few rows, if few do not parse, and several, if all have one wrong
# field.
FIELD_ROWS = 256


class UnparsableValue(Exception):
    """At least one value of the column does not parse; the message is about one of them."""


class UnparsableRecord(CorruptRecords):
    """A value does not parse, and the policy is to fail; the message says what to do."""


class ValueDecoder(Protocol):
    """Decoder of one format with one schema; used by one thread."""

    @property
    def type(self) -> Any:
        """The `pyarrow.DataType` of the column."""
        ...

    def decode(self, values: Any) -> Any:
        """Returns a `pyarrow.Array` of `type` for a binary one. Raises UnparsableValue."""
        ...


@runtime_checkable
class FieldDecoder(ValueDecoder, Protocol):
    """Decoder of a format that says where a field ends, also of one that does not parse."""

    def decode_fields(self, values: Any) -> Any:
        """The same, with null for what does not parse: a field, or a value without any other."""
        ...


class TextValues:
    """Decoder of UTF-8 texts into a string column."""

    @property
    def type(self) -> Any:
        return pa.string()

    def decode(self, values: Any) -> Any:
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise UnparsableValue("it is no UTF-8") from error


class ValueColumns:
    """Replaces the column `value` of record batches, and adds the column `_corrupt` if wanted."""

    def __init__(
        self,
        decoder: ValueDecoder,
        errors: ValueErrors,
        columns: Sequence[str],
        schema: Any,
        *,
        has_registry: bool = False,
    ) -> None:
        self._decoder = decoder
        self._errors = errors
        self._columns = tuple(columns)
        self._schema = schema
        self._has_registry = has_registry

    def apply(self, batch: Any) -> Any:
        """Returns the batch with decoded values. Raises UnparsableRecord, if that is the policy."""
        raw = batch.column("value")
        bad: dict[int, str] = {}
        decoded = self._decoded(raw, bad, batch)
        arrays = []
        for column in self._columns:
            if column == "value":
                arrays.append(decoded)
            elif column == CORRUPT_COLUMN:
                arrays.append(_only(raw, list(bad)))
            elif column == REASON_COLUMN:
                arrays.append(_reasons(bad, len(raw)))
            else:
                arrays.append(batch.column(column))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _decoded(self, raw: Any, bad: dict[int, str], batch: Any) -> Any:
        parts: list[Any] = []
        # Slices to decode, the next one last: (first row, rows).
        todo = [(0, len(raw))]
        while todo:
            start, length = todo.pop()
            piece = raw.slice(start, length)
            try:
                parts.append(self._decoder.decode(piece))
            except UnparsableValue as error:
                if self._errors is ValueErrors.FIELD and length <= FIELD_ROWS:
                    assert isinstance(self._decoder, FieldDecoder), self._decoder
                    parts.append(self._decoder.decode_fields(piece))
                    continue
                if length > 1:
                    half = length // 2
                    todo += [(start + half, length - half), (start, half)]
                    continue
                hint = "" if self._has_registry else _framed_hint(raw[start].as_py())
                if self._errors is ValueErrors.FAIL:
                    raise _refused(batch, start, f"{error}{hint}") from error
                bad[start] = f"{error}{hint}"
                parts.append(pa.nulls(1, self._decoder.type))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _only(raw: Any, rows: Sequence[int]) -> Any:
    """Returns the values of these rows, and null in all others."""
    if not rows:
        return pa.nulls(len(raw), pa.binary())
    chosen = np.full(len(raw), fill_value=False)
    chosen[list(rows)] = True
    return pc.if_else(pa.array(chosen), raw, pa.scalar(None, pa.binary()))


def _reasons(bad: Mapping[int, str], count: int) -> Any:
    """Returns the reasons of these rows, and null in all others."""
    if not bad:
        return pa.nulls(count, pa.string())
    return pa.array([bad[n][:REASON_CHARS_MAX] if n in bad else None for n in range(count)])


def _framed_hint(value: bytes) -> str:
    """The hint for values of a registry's serializers that are read without the registry."""
    if len(value) <= FRAME_BYTES or value[0] != 0:
        return ""
    schema_id = int.from_bytes(value[1:FRAME_BYTES], "big")
    return (
        f" (it begins as a registry's values do, with schema {schema_id}: then give option"
        " schemaRegistry.url)"
    )


def _refused(batch: Any, row: int, error: str) -> UnparsableRecord:
    names = batch.schema.names
    where = f"at offset {batch.column('offset')[row]}" if "offset" in names else f"of row {row}"
    return UnparsableRecord(
        f"the value of the record {where} does not parse: {error}; option valueErrors=null or"
        " valueErrors=corrupt goes on without it, and valueErrors=field without the field of JSON"
        " (a table: --on-error reject)"
    )

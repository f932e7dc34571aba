"""Avro values as Arrow columns without a Python object per value: for schemas that allow it.

    schema  -> program      for the loop in `avro_kernel`, and a tree of what its columns become
    values  -> columns      one call for a batch; None where fastavro has to look

What the loop does not know (decimals, UUIDs, unions of one, values written with another schema)
and what it finds odd is read by fastavro, row by row. Both give the same, as a test holds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# A schema of more ops is read by fastavro: a type that is named often is laid out as often.
OPS_MAX = 4096
_SECOND_US = 1_000_000
_DAY_S = 86_400
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# What Python's dates can hold, and so fastavro.
_DAYS_MIN = -(_EPOCH.date() - dt.date.min).days
_DAYS_MAX = (dt.date.max - _EPOCH.date()).days


class _NotHere(Exception):
    """The schema has something that the loop does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What a column, or several, become: `kind` is an Arrow type."""

    op: int
    column: int
    kind: Any
    children: tuple[_Node, ...] = ()
    symbols: tuple[str, ...] = ()
    # Of a timestamp: microseconds in one of its numbers.
    scale: int = 1


@dataclass(slots=True, kw_only=True)
class _Program:
    ops: list[list[int]] = field(default_factory=list)
    # Of each column: whether lists may give it more rows than there are values, and has bytes.
    in_list: list[bool] = field(default_factory=list)
    has_bytes: list[bool] = field(default_factory=list)


class AvroColumns:
    """One schema; used by one thread."""

    def __init__(self, program: _Program, root: _Node) -> None:
        import numpy as np

        self._program = np.array(program.ops, np.int64)
        self._in_list = np.array(program.in_list)
        self._has_bytes = np.array(program.has_bytes)
        self._root = root

    @classmethod
    def of(cls, parsed: Any, kind: Any) -> AvroColumns | None:
        """For a schema as fastavro parsed it, and its type; None if it is not for the loop."""
        program = _Program()
        try:
            root = _compile(parsed, kind, program, {}, in_list=False)
        except _NotHere:
            return None
        return cls(program, root)

    def decode(self, values: Any, *, skip: int) -> Any:
        """An array of the type for a binary one; None if a value is odd."""
        import numpy as np
        import pyarrow as pa

        from strandline.spark_lake.values import avro_kernel

        rows = len(values)
        _, ends_buffer, content_buffer = values.buffers()
        ends = np.frombuffer(ends_buffer, np.int32)[values.offset : values.offset + rows + 1]
        content = np.frombuffer(content_buffer or b"", np.uint8)
        size_bytes = int(ends[-1] - ends[0])
        present = np.ones(rows, np.uint8)
        if values.null_count:
            present = np.asarray(values.is_valid()).astype(np.uint8)
        room = np.where(self._in_list, rows + size_bytes, rows).astype(np.int64)
        start = np.concatenate(([0], np.cumsum(room)[:-1]))
        text_start = np.cumsum(self._has_bytes * size_bytes) - self._has_bytes * size_bytes
        columns = _Columns(
            start=start,
            count=np.zeros(len(room), np.int64),
            numbers=np.empty(int(room.sum()), np.int64),
            valid=np.empty(int(room.sum()), np.uint8),
            text_start=text_start.astype(np.int64),
            text=np.empty(int(self._has_bytes.sum()) * size_bytes, np.uint8),
        )
        decoded = avro_kernel.decode_avro(
            content,
            ends,
            present,
            skip,
            self._program,
            start,
            room,
            columns.count,
            np.zeros(len(room), np.int64),
            columns.numbers,
            columns.valid,
            columns.text_start,
            columns.text,
        )
        if decoded < rows:
            return None
        try:
            return columns.array(self._root)
        except (pa.ArrowInvalid, _NotHere):  # text that is none, a date beyond Python's
            return None


# --- schemas ----------------------------------------------------------------------------------


def _compile(
    schema: Any, kind: Any, program: _Program, named: dict[str, Any], *, in_list: bool
) -> _Node:
    """Appends the ops of a schema. Raises _NotHere."""
    from strandline.spark_lake.values import avro_kernel as k

    if len(program.ops) > OPS_MAX:
        raise _NotHere
    if isinstance(schema, list):
        if len(schema) != 2 or schema.count("null") != 1:
            raise _NotHere
        null = schema.index("null")
        union = [k.UNION, -1, null, 0]
        program.ops.append(union)
        node = _compile(schema[1 - null], kind, program, named, in_list=in_list)
        union[k.END] = len(program.ops)
        return node
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    name = schema["type"]
    if isinstance(name, dict | list):
        return _compile(name, kind, program, named, in_list=in_list)
    if name in ("record", "enum", "fixed"):
        named[schema["name"]] = schema
    op = _op(name, schema)
    column = len(program.in_list)
    program.in_list.append(in_list)
    program.has_bytes.append(op in (k.BYTES, k.FIXED))
    own = [op, column, 0, 0]
    program.ops.append(own)
    children: list[_Node] = []
    if op == k.STRUCT:
        for one, part in zip(schema["fields"], kind, strict=True):
            children.append(_compile(one["type"], part.type, program, named, in_list=in_list))
    elif op == k.LIST:
        if name == "map":
            children.append(_compile("string", kind.key_type, program, named, in_list=True))
            children.append(
                _compile(schema["values"], kind.item_type, program, named, in_list=True)
            )
        else:
            children.append(
                _compile(schema["items"], kind.value_type, program, named, in_list=True)
            )
            if _may_be_empty(children[0], k):
                raise _NotHere
        program.ops.append([k.LIST_END, -1, 0, 0])
    own[k.ARGUMENT] = {k.FIXED: schema.get("size", 0), k.ENUM: len(schema.get("symbols", ()))}.get(
        op, 0
    )
    own[k.END] = len(program.ops)
    return _Node(
        op=op,
        column=column,
        kind=kind,
        children=tuple(children),
        symbols=tuple(schema.get("symbols", ())),
        scale=1000 if schema.get("logicalType") == "timestamp-millis" else 1,
    )


def _may_be_empty(item: _Node, k: Any) -> bool:
    """Whether an item may take no byte: then a few bytes could be any number of them."""
    return item.op in (k.STRUCT, k.FIXED) and not any(
        not _may_be_empty(child, k) for child in item.children
    )


def _op(name: str, schema: Mapping[str, Any]) -> int:
    from strandline.spark_lake.values import avro_kernel as k

    logical = schema.get("logicalType")
    match name, logical:
        case "int", "date":
            return k.INT
        case "long", "timestamp-millis" | "timestamp-micros":
            return k.LONG
    known = {
        "int": k.INT,
        "long": k.LONG,
        "boolean": k.BOOL,
        "float": k.FLOAT,
        "double": k.DOUBLE,
        "bytes": k.BYTES,
        "string": k.BYTES,
        "fixed": k.FIXED,
        "enum": k.ENUM,
        "record": k.STRUCT,
        "array": k.LIST,
        "map": k.LIST,
    }
    if name not in known or logical is not None:
        raise _NotHere
    return known[name]


# --- columns ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """What the loop filled, as `avro_kernel` describes it."""

    start: Any
    count: Any
    numbers: Any
    valid: Any
    text_start: Any
    text: Any

    def array(self, node: _Node) -> Any:
        """The Arrow array of a node. Raises ArrowInvalid, or _NotHere for what fastavro refuses."""
        import numpy as np
        import pyarrow as pa

        from strandline.spark_lake.values import avro_kernel as k

        start = int(self.start[node.column])
        rows = int(self.count[node.column])
        numbers = self.numbers[start : start + rows]
        valid = self.valid[start : start + rows]
        null_count = rows - int(np.count_nonzero(valid))
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if null_count else None
        kind = node.kind
        if node.op == k.STRUCT:
            children = [self.array(child) for child in node.children]
            return pa.Array.from_buffers(kind, rows, [bitmap], null_count, children=children)
        if node.op in (k.LIST, k.BYTES, k.FIXED):
            ends = np.zeros(rows + 1, np.int32)
            ends[1:] = numbers
            buffers = [bitmap, pa.py_buffer(ends)]
            if node.op == k.LIST:
                items = self._items(node)
                if pa.types.is_map(kind):
                    _check_keys(ends, items.field(0))
                return pa.Array.from_buffers(kind, rows, buffers, null_count, children=[items])
            first = int(self.text_start[node.column])
            content = self.text[first : first + int(ends[-1])]
            made = pa.Array.from_buffers(
                pa.binary(), rows, [*buffers, pa.py_buffer(content)], null_count
            )
            return made if kind == pa.binary() else made.cast(kind)
        if node.op == k.ENUM:
            indexes = pa.Array.from_buffers(
                pa.int32(), rows, [bitmap, pa.py_buffer(numbers.astype(np.int32))], null_count
            )
            symbols = pa.array(node.symbols, pa.string())
            return pa.DictionaryArray.from_arrays(indexes, symbols).dictionary_decode()
        return pa.Array.from_buffers(kind, rows, [bitmap, _data(node, numbers)], null_count)

    def _items(self, node: _Node) -> Any:
        import pyarrow as pa

        children = [self.array(child) for child in node.children]
        if len(children) == 1:
            return children[0]
        return pa.StructArray.from_arrays(
            children, fields=[node.kind.key_field, node.kind.item_field]
        )


def _data(node: _Node, numbers: Any) -> Any:
    """The buffer of numbers of a fixed width. Raises _NotHere."""
    import numpy as np
    import pyarrow as pa

    from strandline.spark_lake.values import avro_kernel as k

    if node.op == k.BOOL:
        return pa.py_buffer(np.packbits(numbers.astype(np.uint8), bitorder="little"))
    if node.op == k.FLOAT:
        return pa.py_buffer(numbers.astype(np.uint32))
    if pa.types.is_date(node.kind):
        _check_range(numbers, _DAYS_MIN, _DAYS_MAX)
    if pa.types.is_timestamp(node.kind):
        units = _DAY_S * _SECOND_US // node.scale
        _check_range(numbers, _DAYS_MIN * units, (_DAYS_MAX + 1) * units - 1)
        numbers = numbers * node.scale
    return pa.py_buffer(numbers.astype(np.int32) if node.op == k.INT else numbers.copy())


def _check_keys(ends: Any, keys: Any) -> None:
    """Raises _NotHere for a key that is twice in a map, where the last one counts."""
    import numpy as np

    places = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    codes = np.asarray(keys.dictionary_encode().indices).astype(np.int64)
    if len(np.unique(places * (len(keys) + 1) + codes)) < len(keys):
        raise _NotHere


def _check_range(numbers: Any, least: int, most: int) -> None:
    """Raises _NotHere: fastavro knows what to say."""
    if len(numbers) and (int(numbers.min()) < least or int(numbers.max()) > most):
        raise _NotHere

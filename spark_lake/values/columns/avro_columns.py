"""Decoder of Avro values into Arrow columns without a Python object per value.

    schema  -> program      for the loop in `avro_kernel`, and a tree of Arrow arrays to make
    values  -> columns      one call per batch; None if fastavro has to decode it

fastavro reads row by row what the loop does not support (decimals, UUIDs, unions of one, values
written with another schema) and what the loop rejects. A test checks that both give the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from strandline.spark_lake.values.columns import ops
from strandline.spark_lake.values.columns.value_columns import Columns, Layout, Node, Unsupported


class AvroColumns:
    """Compiled decoder of one Avro schema; used by one thread."""

    def __init__(self, layout: Layout, root: Node) -> None:
        self._layout = layout
        self._program = np.array(layout.ops, np.int64)
        self._root = root

    @classmethod
    def of(cls, parsed: Any, kind: Any) -> AvroColumns | None:
        """For a schema that fastavro parsed, and its type; None if the loop does not support it."""
        layout = Layout()
        try:
            root = _compile(parsed, kind, layout, {}, in_list=False)
        except Unsupported:
            return None
        return cls(layout, root)

    def decode(self, values: Any, *, skip: int) -> Any:
        """Decodes a binary array; None if the loop rejects a value."""
        from strandline.spark_lake.values.columns import avro_kernel

        made = Columns.of(values, self._layout)
        decoded = avro_kernel.decode_avro(made, skip, self._program)
        return made.whole_array(self._root, decoded)


# --- schemas ----------------------------------------------------------------------------------


def _compile(
    schema: Any, kind: Any, layout: Layout, named: dict[str, Any], *, in_list: bool
) -> Node:
    """Appends the ops of a schema to `layout`. Raises Unsupported."""

    if isinstance(schema, list):
        if len(schema) != 2 or schema.count("null") != 1:
            raise Unsupported
        null = schema.index("null")
        union = [ops.UNION, -1, null, 0]
        layout.ops.append(union)
        node = _compile(schema[1 - null], kind, layout, named, in_list=in_list)
        union[ops.END] = len(layout.ops)
        return node
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    name = schema["type"]
    if isinstance(name, dict | list):
        return _compile(name, kind, layout, named, in_list=in_list)
    if name in ("record", "enum", "fixed"):
        named[schema["name"]] = schema
    op = _op(name, schema)
    own = layout.add(op, in_list=in_list, has_bytes=op in (ops.BYTES, ops.FIXED))
    children: list[Node] = []
    if op == ops.STRUCT:
        for one, part in zip(schema["fields"], kind, strict=True):
            children.append(_compile(one["type"], part.type, layout, named, in_list=in_list))
    elif op == ops.LIST:
        if name == "map":
            children.append(_compile("string", kind.key_type, layout, named, in_list=True))
            children.append(_compile(schema["values"], kind.item_type, layout, named, in_list=True))
        else:
            children.append(_compile(schema["items"], kind.value_type, layout, named, in_list=True))
        layout.ops.append([ops.LIST_END, -1, 0, 0])
    sizes = {ops.FIXED: schema.get("size", 0), ops.ENUM: len(schema.get("symbols", ()))}
    own[ops.ARGUMENT] = sizes.get(op, 0)
    own[ops.END] = len(layout.ops)
    return Node(
        op=op,
        column=own[ops.COLUMN],
        kind=kind,
        children=tuple(children),
        symbols=tuple(schema.get("symbols", ())),
        scale=1000 if schema.get("logicalType") == "timestamp-millis" else 1,
    )


def _op(name: str, schema: Mapping[str, Any]) -> int:

    logical = schema.get("logicalType")
    match name, logical:
        case "int", "date":
            return ops.INT
        case "long", "timestamp-millis" | "timestamp-micros":
            return ops.LONG
    known = {
        "int": ops.INT,
        "long": ops.LONG,
        "boolean": ops.BOOL,
        "float": ops.FLOAT,
        "double": ops.DOUBLE,
        "bytes": ops.BYTES,
        "string": ops.BYTES,
        "fixed": ops.FIXED,
        "enum": ops.ENUM,
        "record": ops.STRUCT,
        "array": ops.LIST,
        "map": ops.LIST,
    }
    if name not in known or logical is not None:
        raise Unsupported
    return known[name]

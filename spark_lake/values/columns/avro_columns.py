"""Avro values as Arrow columns without a Python object per value: for schemas that allow it.

    schema  -> program      for the loop in `avro_kernel`, and a tree of what its columns become
    values  -> columns      one call for a batch; None where fastavro has to look

What the loop does not know (decimals, UUIDs, unions of one, values written with another schema)
and what it finds odd is read by fastavro, row by row. Both give the same, as a test holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.spark_lake.values.columns.value_columns import Columns, Layout, Node, NotHere


class AvroColumns:
    """One schema; used by one thread."""

    def __init__(self, layout: Layout, root: Node) -> None:
        import numpy as np

        self._layout = layout
        self._program = np.array(layout.ops, np.int64)
        self._root = root

    @classmethod
    def of(cls, parsed: Any, kind: Any) -> AvroColumns | None:
        """For a schema as fastavro parsed it, and its type; None if it is not for the loop."""
        layout = Layout()
        try:
            root = _compile(parsed, kind, layout, {}, in_list=False)
        except NotHere:
            return None
        return cls(layout, root)

    def decode(self, values: Any, *, skip: int) -> Any:
        """An array of the type for a binary one; None if a value is odd."""
        from strandline.spark_lake.values.columns import avro_kernel

        made = Columns.of(values, self._layout)
        decoded = avro_kernel.decode_avro(
            made.content,
            made.ends,
            made.present,
            skip,
            self._program,
            made.start,
            made.room,
            made.count,
            made.items,
            made.numbers,
            made.valid,
            made.text_start,
            made.text,
        )
        return made.whole_array(self._root, decoded)


# --- schemas ----------------------------------------------------------------------------------


def _compile(
    schema: Any, kind: Any, layout: Layout, named: dict[str, Any], *, in_list: bool
) -> Node:
    """Appends the ops of a schema. Raises NotHere."""
    from strandline.spark_lake.values.columns import avro_kernel as k

    if isinstance(schema, list):
        if len(schema) != 2 or schema.count("null") != 1:
            raise NotHere
        null = schema.index("null")
        union = [k.UNION, -1, null, 0]
        layout.ops.append(union)
        node = _compile(schema[1 - null], kind, layout, named, in_list=in_list)
        union[k.END] = len(layout.ops)
        return node
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    name = schema["type"]
    if isinstance(name, dict | list):
        return _compile(name, kind, layout, named, in_list=in_list)
    if name in ("record", "enum", "fixed"):
        named[schema["name"]] = schema
    op = _op(name, schema)
    own = layout.add(op, in_list=in_list, has_bytes=op in (k.BYTES, k.FIXED))
    children: list[Node] = []
    if op == k.STRUCT:
        for one, part in zip(schema["fields"], kind, strict=True):
            children.append(_compile(one["type"], part.type, layout, named, in_list=in_list))
    elif op == k.LIST:
        if name == "map":
            children.append(_compile("string", kind.key_type, layout, named, in_list=True))
            children.append(_compile(schema["values"], kind.item_type, layout, named, in_list=True))
        else:
            children.append(_compile(schema["items"], kind.value_type, layout, named, in_list=True))
            if _may_be_empty(children[0], k):
                raise NotHere
        layout.ops.append([k.LIST_END, -1, 0, 0])
    own[k.ARGUMENT] = {k.FIXED: schema.get("size", 0), k.ENUM: len(schema.get("symbols", ()))}.get(
        op, 0
    )
    own[k.END] = len(layout.ops)
    return Node(
        op=op,
        column=own[k.COLUMN],
        kind=kind,
        children=tuple(children),
        symbols=tuple(schema.get("symbols", ())),
        scale=1000 if schema.get("logicalType") == "timestamp-millis" else 1,
    )


def _may_be_empty(item: Node, k: Any) -> bool:
    """Whether an item may take no byte: then a few bytes could be any number of them."""
    return item.op in (k.STRUCT, k.FIXED) and not any(
        not _may_be_empty(child, k) for child in item.children
    )


def _op(name: str, schema: Mapping[str, Any]) -> int:
    from strandline.spark_lake.values.columns import avro_kernel as k

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
        raise NotHere
    return known[name]

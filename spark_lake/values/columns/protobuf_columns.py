"""Decoder of Protobuf messages into Arrow columns without a Python object per message.

    descriptor -> tables     for the loop in `protobuf_kernel`, and a tree of Arrow arrays to make
    values     -> columns    one call per batch; None if Protobuf's parser has to decode it

A test checks that both give the same, except for the order of a map's entries: that of the message
here, and arbitrary in Protobuf's parser.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from strandline.spark_lake.values.columns import ops
from strandline.spark_lake.values.columns.value_columns import Columns, Layout, Node, Unsupported

_TIMESTAMP = "google.protobuf.Timestamp"


class ProtobufColumns:
    """Compiled decoder of one message type; used by one thread."""

    def __init__(self, compiler: _Compiler, root: Node) -> None:

        self._layout = compiler.layout
        self._program = np.array(compiler.layout.ops, np.int64)
        sizes = [len(one) for one in compiler.messages]
        lasts = np.cumsum(sizes)
        self._messages = np.stack([lasts - sizes, lasts], axis=1).astype(np.int64)
        rows = [row for one in compiler.messages for row in one]
        self._fields = np.array(rows, np.int64).reshape(-1, ops.FIELD_SIZE)
        self._fields_max = max(1, *sizes)
        self._root = root

    @classmethod
    def of(cls, descriptor: Any, kind: Any) -> ProtobufColumns | None:
        """For a message type and its Arrow type; None if the loop does not support it."""

        compiler = _Compiler()
        try:
            own = compiler.layout.add(ops.STRUCT, in_list=False, has_bytes=False)
            children, _ = compiler.message(descriptor, kind, in_list=False)
            own[ops.END] = len(compiler.layout.ops)
        except Unsupported:
            return None
        return cls(compiler, Node(op=ops.STRUCT, column=0, kind=kind, children=children))

    def decode(self, values: Any, *, skip: int) -> Any:
        """Decodes a binary array; None if the loop rejects a message."""
        from strandline.spark_lake.values.columns import protobuf_kernel

        made = Columns.of(values, self._layout)
        decoded = protobuf_kernel.decode_protobuf(
            made, skip, self._messages, self._fields, self._fields_max, self._program
        )
        return made.whole_array(self._root, decoded)


class _Compiler:
    """Compiler of a message type into tables; each use of a nested type has columns of its own."""

    def __init__(self) -> None:
        self.layout = Layout()
        self.messages: list[list[list[int]]] = []

    def message(
        self, descriptor: Any, kind: Any, *, in_list: bool, is_entry: bool = False
    ) -> tuple[tuple[Node, ...], int]:
        """The nodes of a message's fields, and its index among the messages. Raises Unsupported."""
        place = len(self.messages)
        rows: list[list[int]] = []
        self.messages.append(rows)
        types = [kind.key_type, kind.item_type] if is_entry else [part.type for part in kind]
        children: list[Node] = []
        for one, type_ in zip(descriptor.fields, types, strict=True):
            row, node = self._field(one, type_, in_list=in_list, is_entry=is_entry)
            rows.append(row)
            children.append(node)
        return tuple(children), place

    def _field(
        self, one: Any, kind: Any, *, in_list: bool, is_entry: bool
    ) -> tuple[list[int], Node]:

        oneof = one.containing_oneof.index if one.containing_oneof is not None else -1
        at = len(self.layout.ops)
        is_map = one.message_type is not None and one.message_type.GetOptions().map_entry
        if is_map or one.is_repeated:
            own = self.layout.add(ops.LIST, in_list=in_list, has_bytes=False)
            if is_map:
                children, child = self.message(one.message_type, kind, in_list=True, is_entry=True)
                wire = ops.MESSAGE
            else:
                wire, child, item = self._single(one, kind.value_type, in_list=True)
                children = (item,)
            self.layout.ops.append([ops.LIST_END, -1, 0, 0])
            own[ops.END] = len(self.layout.ops)
            node = Node(op=ops.LIST, column=own[ops.COLUMN], kind=kind, children=children)
            return [one.number, wire, at, child, ops.MAP if is_map else ops.REPEATED, oneof], node
        wire, child, node = self._single(one, kind, in_list=in_list)
        what = ops.OPTIONAL if one.has_presence else ops.PLAIN
        if is_entry:
            what = ops.NEEDED if wire in (ops.MESSAGE, ops.TIMESTAMP) else ops.PLAIN
        return [one.number, wire, at, child, what, oneof], node

    def _single(self, one: Any, kind: Any, *, in_list: bool) -> tuple[int, int, Node]:
        """Returns the wire format of one value, the index of its message or -1, and its node."""

        wire, op = _wire_and_op(one)
        own = self.layout.add(op, in_list=in_list, has_bytes=op == ops.BYTES)
        child = -1
        children: tuple[Node, ...] = ()
        if op == ops.STRUCT:
            children, child = self.message(one.message_type, kind, in_list=in_list)
        own[ops.END] = len(self.layout.ops)
        names: list[tuple[int, str]] = []
        if one.enum_type is not None:
            if one.enum_type.is_closed:
                raise Unsupported
            names = sorted((n, v.name) for n, v in one.enum_type.values_by_number.items())
        node = Node(
            op=op,
            column=own[ops.COLUMN],
            kind=kind,
            children=children,
            symbols=tuple(name for _, name in names),
            codes=tuple(number for number, _ in names),
        )
        assert wire != ops.MESSAGE or child >= 0, one.full_name
        return wire, child, node


def _wire_and_op(one: Any) -> tuple[int, int]:
    """Raises Unsupported for a group."""

    if one.type == one.TYPE_MESSAGE:
        if one.message_type.full_name == _TIMESTAMP:
            return ops.TIMESTAMP, ops.LONG
        return ops.MESSAGE, ops.STRUCT
    known = {
        one.TYPE_INT32: (ops.INT32, ops.INT),
        one.TYPE_INT64: (ops.INT64, ops.LONG),
        one.TYPE_UINT32: (ops.UINT32, ops.LONG),
        one.TYPE_UINT64: (ops.INT64, ops.LONG),
        one.TYPE_SINT32: (ops.SINT32, ops.INT),
        one.TYPE_SINT64: (ops.SINT64, ops.LONG),
        one.TYPE_FIXED32: (ops.FIXED32, ops.LONG),
        one.TYPE_FIXED64: (ops.FIXED64, ops.LONG),
        one.TYPE_SFIXED32: (ops.SFIXED32, ops.INT),
        one.TYPE_SFIXED64: (ops.FIXED64, ops.LONG),
        one.TYPE_FLOAT: (ops.FIXED32, ops.FLOAT),
        one.TYPE_DOUBLE: (ops.FIXED64, ops.DOUBLE),
        one.TYPE_BOOL: (ops.BOOLEAN, ops.BOOL),
        one.TYPE_ENUM: (ops.INT32, ops.ENUM),
        one.TYPE_STRING: (ops.TEXT, ops.BYTES),
        one.TYPE_BYTES: (ops.TEXT, ops.BYTES),
    }
    if one.type not in known:
        raise Unsupported
    return known[one.type]

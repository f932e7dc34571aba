"""Columns that the compiled loops for Avro and Protobuf fill, and their Arrow arrays.

    Layout    the ops of a schema for the loop, and its columns
    Node      the Arrow array that one column becomes, or several
    Columns   the memory of one batch: a loop fills it, `array` reads it

`avro_kernel` describes how columns lie in memory; `ops` has the kinds of columns.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from strandline.spark_lake.values.columns import ops

if TYPE_CHECKING:
    from strandline.storage.records.kernels.parts import Bytes, Int32s, Int64s

_SECOND_US = 1_000_000
_DAY_S = 86_400
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# The range of Python's dates, and so of the row-by-row reader.
_DAYS_MIN = -(_EPOCH.date() - dt.date.min).days
_DAYS_MAX = (dt.date.max - _EPOCH.date()).days
# A schema of more ops is read row by row: each use of a named type has ops of its own.
OPS_MAX = 4096


class Unsupported(Exception):
    """A schema or value that the compiled loops leave to the row-by-row reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An Arrow array to be made of one column, or of several; `kind` is its type."""

    op: int
    column: int
    kind: Any
    children: tuple[Node, ...] = ()
    symbols: tuple[str, ...] = ()
    # The number of each symbol, ascending; its index if empty.
    codes: tuple[int, ...] = ()
    # Microseconds per unit of a timestamp.
    scale: int = 1


@dataclass(slots=True, kw_only=True)
class Layout:
    """The ops and columns of a schema while it is compiled."""

    ops: list[list[int]] = field(default_factory=list)
    # For each column: whether it is in a list (more rows than values), and whether it has bytes.
    in_list: list[bool] = field(default_factory=list)
    has_bytes: list[bool] = field(default_factory=list)

    def add(self, op: int, *, in_list: bool, has_bytes: bool) -> list[int]:
        """The row of a new op with a column of its own. Raises Unsupported for one too many."""
        if len(self.ops) >= OPS_MAX:
            raise Unsupported
        row = [op, len(self.in_list), 0, 0]
        self.in_list.append(in_list)
        self.has_bytes.append(has_bytes)
        self.ops.append(row)
        return row


class Columns(NamedTuple):
    """The buffers of one batch of values, and the Arrow arrays made from them."""

    content: Bytes
    ends: Int32s
    present: Bytes
    start: Int64s
    room: Int64s
    counts: Int64s
    items: Int64s
    numbers: Int64s
    valid: Bytes
    text_start: Int64s
    text: Bytes

    @classmethod
    def of(cls, values: Any, layout: Layout) -> Columns:
        """Empty columns with room for the binary array `values`."""
        rows = len(values)
        _, ends_buffer, content_buffer = values.buffers()
        ends = np.frombuffer(ends_buffer, np.int32)[values.offset : values.offset + rows + 1]
        size_bytes = int(ends[-1] - ends[0]) if rows else 0
        present = np.ones(rows, np.uint8)
        if values.null_count:
            present = np.asarray(values.is_valid()).astype(np.uint8)
        has_bytes = np.array(layout.has_bytes, np.int64)
        room = np.where(np.array(layout.in_list), rows + size_bytes, rows).astype(np.int64)
        return cls(
            content=np.frombuffer(content_buffer or b"", np.uint8),
            ends=ends,
            present=present,
            start=np.cumsum(room) - room,
            room=room,
            counts=np.zeros(len(room), np.int64),
            items=np.zeros(len(room), np.int64),
            numbers=np.empty(int(room.sum()), np.int64),
            valid=np.empty(int(room.sum()), np.uint8),
            text_start=(np.cumsum(has_bytes) - has_bytes) * size_bytes,
            text=np.empty(int(has_bytes.sum()) * size_bytes, np.uint8),
        )

    def whole_array(self, root: Node, decoded: int) -> Any:
        """Returns the Arrow array of all values; the loop decoded the first `decoded` of them.

        None if the loop stopped before the last value, or Arrow refuses one: text that is not
        UTF-8, a date beyond Python's, an enum's number without a name.
        """
        if decoded < len(self.present):
            return None
        try:
            return self.array(root)
        except (pa.ArrowInvalid, Unsupported):
            return None

    def array(self, node: Node) -> Any:
        """Returns the Arrow array of a node. Raises ArrowInvalid, or Unsupported."""

        start = int(self.start[node.column])
        rows = int(self.counts[node.column])
        numbers = self.numbers[start : start + rows]
        valid = self.valid[start : start + rows]
        null_count = rows - int(np.count_nonzero(valid))
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if null_count else None
        kind = node.kind
        if node.op == ops.STRUCT:
            children = [self.array(child) for child in node.children]
            return pa.Array.from_buffers(kind, rows, [bitmap], null_count, children=children)
        if node.op in (ops.LIST, ops.BYTES, ops.FIXED):
            ends = np.zeros(rows + 1, np.int32)
            ends[1:] = numbers
            buffers = [bitmap, pa.py_buffer(ends)]
            if node.op == ops.LIST:
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
        if node.op == ops.ENUM:
            places = _places(node, numbers, valid)
            indexes = pa.Array.from_buffers(
                pa.int32(), rows, [bitmap, pa.py_buffer(places.astype(np.int32))], null_count
            )
            symbols = pa.array(node.symbols, pa.string())
            return pa.DictionaryArray.from_arrays(indexes, symbols).dictionary_decode()
        return pa.Array.from_buffers(kind, rows, [bitmap, _data(node, numbers)], null_count)

    def _items(self, node: Node) -> Any:
        children = [self.array(child) for child in node.children]
        if len(children) == 1:
            return children[0]
        return pa.StructArray.from_arrays(
            children, fields=[node.kind.key_field, node.kind.item_field]
        )


def _data(node: Node, numbers: Any) -> Any:
    """Returns the Arrow buffer of fixed-width values. Raises Unsupported."""

    if node.op == ops.BOOL:
        return pa.py_buffer(np.packbits(numbers.astype(np.uint8), bitorder="little"))
    if node.op == ops.FLOAT:
        return pa.py_buffer(numbers.astype(np.uint32))
    if pa.types.is_decimal(node.kind):  # unsigned 64 bits, in 128
        wide = np.zeros((len(numbers), 2), np.int64)
        wide[:, 0] = numbers
        return pa.py_buffer(wide)
    if pa.types.is_date(node.kind):
        _check_range(numbers, _DAYS_MIN, _DAYS_MAX)
    if pa.types.is_timestamp(node.kind):
        units = _DAY_S * _SECOND_US // node.scale
        _check_range(numbers, _DAYS_MIN * units, (_DAYS_MAX + 1) * units - 1)
        numbers = numbers * node.scale
    return pa.py_buffer(numbers.astype(np.int32) if node.op == ops.INT else numbers.copy())


def _places(node: Node, numbers: Any, valid: Any) -> Any:
    """Returns the symbol index of each number. Raises Unsupported for a number without a name."""
    if not node.codes:
        return numbers
    codes = np.array(node.codes, np.int64)
    places = np.minimum(np.searchsorted(codes, numbers), len(codes) - 1)
    if ((codes[places] != numbers) & (valid != 0)).any():
        raise Unsupported
    return places


def _check_keys(ends: Any, keys: Any) -> None:
    """Raises Unsupported for a map with a duplicate key: the last one counts."""
    places = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    codes = np.asarray(keys.dictionary_encode().indices).astype(np.int64)
    if len(np.unique(places * (len(keys) + 1) + codes)) < len(keys):
        raise Unsupported


def _check_range(numbers: Any, least: int, most: int) -> None:
    """Raises Unsupported for a value out of range: the row-by-row reader has the error text."""
    if len(numbers) and (int(numbers.min()) < least or int(numbers.max()) > most):
        raise Unsupported

"""Generates the encode function of a message class in one version.

    def encode(o):
        out = bytearray()
        out += pack_iq(o.a, o.b)
        ...nested loops, no calls...
        return [out]

Records are not copied into `out`: it is closed, the records follow it in the list unchanged, and a
new `out` begins. Encoding trusts the handler: a value that does not fit is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as PackedStruct
from typing import cast

from strandline.broker.protocol.codec.source import Source, is_uuid, tagged_fields, wire_fields
from strandline.broker.protocol.schema import primitives
from strandline.broker.protocol.schema.schema import (
    ArrayOf,
    Field,
    Fixed,
    Struct,
    StructOf,
    WireType,
    byte_string,
    optional_uuid,
    record_parts,
    records,
    string,
    uuid_,
)


class EncoderSource(Source):
    """The Python source of a function that encodes one version of one message."""

    has_records = False

    def write(self, cls: type[Struct]) -> str:
        self.line("out = bytearray()")
        self.struct(cls, "o")
        if self.has_records:
            self.lines.insert(0, "    parts = []")
            self.line("if out: parts.append(out)")
            self.line("return parts")
        else:
            self.line("return [out]")
        return "def encode(o):\n" + "\n".join(self.lines) + "\n"

    def struct(self, cls: type[Struct], source: str) -> None:
        for group in self.runs(wire_fields(cls, self.version, flexible=self.flexible)):
            if isinstance(group[0].kind, Fixed):
                kinds = [cast("Fixed[object]", row.kind) for row in group]
                code = "".join(kind.code for kind in kinds)
                arguments = ", ".join(self.raw(row.kind, f"{source}.{row.name}") for row in group)
                self.line(f"out += {self.packer(code)}({arguments})")
            else:
                value = self.fresh("v")
                self.line(f"{value} = {source}.{group[0].name}")
                self.value(group[0], value, source)
        if self.flexible:
            self.tags(cls, source)

    def raw(self, kind: WireType[object], value: str) -> str:
        if kind is optional_uuid:
            self.names["ZERO_UUID"] = uuid_.zero
            return f"({value} or ZERO_UUID).bytes"
        return f"{value}.bytes" if kind is uuid_ else value

    def value(self, row: Field, value: str, source: str) -> None:
        if row.kind is record_parts:
            self.record_parts(value, source)
        else:
            self.one(row.kind, value, row.is_nullable(self.version) or row.kind is records)

    def one(
        self, kind: WireType[object], value: str, nullable: bool, *, is_tagged: bool = False
    ) -> None:
        """Emits the encoding of the variable `value`."""
        if isinstance(kind, Fixed):
            self.line(f"out += {self.packer(kind.code)}({self.raw(kind, value)})")
            return
        if nullable:
            self.line(f"if {value} is None:")
            self.line("    out.append(0)" if is_tagged else f"    {self.null(kind)}")
            self.line("else:")
            self.depth += 1
        if isinstance(kind, StructOf):
            if nullable:
                self.line("out.append(1)")
            self.struct(kind.struct, value)
        elif isinstance(kind, ArrayOf):
            self.array(kind, value)
        else:
            self.sized(kind, value)
        if nullable:
            self.depth -= 1

    def null(self, kind: WireType[object]) -> str:
        if isinstance(kind, StructOf):
            return "out.append(255)"
        if self.flexible:
            return "out.append(0)"
        return r"out += b'\xff\xff'" if kind is string else r"out += b'\xff\xff\xff\xff'"

    def length(self, n: str, kind: WireType[object]) -> None:
        """Emits the length or count held by the variable `n`."""
        if self.flexible:
            slow = self.use("compact_string_length" if kind is string else "uvarint")
            self.line(f"if {n} < 127: out.append({n} + 1)")
            self.line(f"else: out += {slow}({n} + 1)")
        else:
            self.line(f"out += {self.packer('h' if kind is string else 'i')}({n})")

    def sized(self, kind: WireType[object], value: str) -> None:
        n = self.fresh("n")
        if kind is string:
            raw = self.fresh("r")
            self.line(f"{raw} = {value}.encode(); {n} = len({raw})")
            self.length(n, kind)
            self.line(f"out += {raw}")
            return
        assert kind is byte_string or kind is records, kind
        self.line(f"{n} = len({value})")
        self.length(n, kind)
        if kind is records:
            self.has_records = True
            self.line(f"parts.append(out); parts.append({value}); out = bytearray()")
        else:
            self.line(f"out += {value}")

    def record_parts(self, value: str, source: str) -> None:
        """Emits records stored elsewhere: their size is known, their bytes are not touched."""
        self.has_records = True
        n = self.fresh("n")
        self.line(f"{n} = {source}.records_bytes")
        self.length(n, records)
        self.line(f"if {value}: parts.append(out); parts += {value}; out = bytearray()")

    def array(self, kind: ArrayOf[object], value: str) -> None:
        n, element = self.fresh("n"), kind.element
        self.line(f"{n} = len({value})")
        self.length(n, kind)
        if isinstance(element, Fixed) and not is_uuid(element):
            self.names["pack_many"] = _pack_many
            self.line(f"if {n}: out += pack_many({element.code!r}, {value})")
            return
        item = self.fresh("i")
        self.line(f"for {item} in {value}:")
        self.depth += 1
        self.one(element, item, False)
        self.depth -= 1

    def tags(self, cls: type[Struct], source: str) -> None:
        """Emits tagged fields, each only if it differs from its default."""
        rows = tagged_fields(cls, self.version, flexible=self.flexible)
        if not rows:
            self.line("out.append(0)")
            return
        absent = [self.is_default(cls, row, f"{source}.{row.name}") for row in rows]
        self.line(f"if {' and '.join(absent)}: out.append(0)")
        self.line("else:")
        self.depth += 1
        present: list[str] = []
        for condition in absent:
            present.append(self.fresh("h"))
            self.line(f"{present[-1]} = not ({condition})")
        self.line(f"out.append({' + '.join(present)})")
        for row, mark in zip(rows, present, strict=True):
            self.tag(row, mark, source)
        self.depth -= 1

    def is_default(self, cls: type[Struct], row: Field, value: str) -> str:
        if isinstance(row.kind, StructOf) and row.is_nullable(self.version):
            # Kafka reads a tagged struct that is absent as one with all its defaults, not as null.
            return "False"
        if row.default is None:
            return f"{value} is None"
        if row.default == ():
            return f"not {value}"
        name = f"default_{cls.__name__}_{row.name}"
        self.names[name] = row.default
        return f"{value} == {name}"

    def tag(self, row: Field, mark: str, source: str) -> None:
        outer, value = self.fresh("w"), self.fresh("v")
        self.line(f"if {mark}:")
        self.depth += 1
        self.line(f"{outer} = out; out = bytearray(); {value} = {source}.{row.name}")
        self.one(
            row.kind,
            value,
            row.is_nullable(self.version),
            is_tagged=isinstance(row.kind, StructOf),
        )
        self.line(
            f"{outer} += {primitives.uvarint(row.tag or 0)!r} + {self.use('uvarint')}(len(out))"
        )
        self.line(f"{outer} += out; out = {outer}")
        self.depth -= 1


def _pack_many(code: str, values: Sequence[object]) -> bytes:
    return PackedStruct(f">{len(values)}{code}").pack(*values)

"""Writes, for one message class and version, one flat function that decodes and one that encodes.

Interpreting a field table costs a method call per field; a function written out for one version
costs what hand-written code does. It is made on first use (1 to 3 ms) and kept for ever; there are
about as many as there are versions that somebody really speaks.

    def decode(data, p, limit):                 def encode(o):
        x1, x2 = unpack_iq(data, p); p += 12        out = bytearray()
        n3 = data[p]; p += 1                        out += pack_iq(o.a, o.b)
        ...nested loops, no calls...                ...
        return o, p                                 return [out]

Decoding trusts nothing: `struct` and indexing raise at the end of the data, slices are compared
with `limit`, a count is believed only if the bytes that are left can hold so many elements of the
smallest size, so that memory follows what was sent and not what was announced.

Encoding trusts the handler: a value that does not fit is a mistake of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct as PackedStruct
from typing import TypeAlias, cast

from strandline.broker.protocol import primitives
from strandline.broker.protocol.schema import (
    ArrayOf,
    Field,
    Fixed,
    Part,
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

Decoder: TypeAlias = Callable[[memoryview, int, int], tuple[Struct, int]]
Encoder: TypeAlias = Callable[[Struct], list[Part]]


def make_decoder(cls: type[Struct], version: int, *, flexible: bool) -> Decoder:
    """The decode function of `cls` in `version`: (data, position, limit) to (struct, position)."""
    return cast("Decoder", _build(_DecoderSource(version, flexible), cls, "decode"))


def make_encoder(cls: type[Struct], version: int, *, flexible: bool) -> Encoder:
    """The encode function of `cls` in `version`: struct to buffers and untouched parts."""
    return cast("Encoder", _build(_EncoderSource(version, flexible), cls, "encode"))


def source_of(cls: type[Struct], version: int, *, flexible: bool, direction: str) -> str:
    """The generated text, for reading it."""
    maker = _DecoderSource if direction == "decode" else _EncoderSource
    return maker(version, flexible).write(cls)


def _build(source: _Source, cls: type[Struct], name: str) -> object:
    text = source.write(cls)
    code = compile(text, f"<{name} {cls.__name__} v{source.version}>", "exec")
    exec(code, source.names)
    return source.names[name]


def wire_fields(cls: type[Struct], version: int, *, flexible: bool) -> list[Field]:
    """The untagged fields that `version` carries, in wire order."""
    return [row for row in cls.fields.values() if row.is_in(version) and not _is_tag(row, flexible)]


def tagged_fields(cls: type[Struct], version: int, *, flexible: bool) -> list[Field]:
    """The tagged fields of `version`, by tag."""
    rows = [row for row in cls.fields.values() if row.is_in(version) and _is_tag(row, flexible)]
    return sorted(rows, key=lambda row: row.tag or 0)


def _is_tag(row: Field, flexible: bool) -> bool:
    return row.tag is not None and flexible


def size_bytes_min(kind: WireType[object], version: int, *, flexible: bool) -> int:
    """The fewest bytes a value of `kind` can take."""
    if isinstance(kind, Fixed):
        return kind.size_bytes
    if isinstance(kind, StructOf):
        rows = wire_fields(kind.struct, version, flexible=flexible)
        fixed = sum(
            1
            if isinstance(row.kind, StructOf) and row.is_nullable(version)
            else size_bytes_min(row.kind, version, flexible=flexible)
            for row in rows
        )
        # An element without any byte would let a count of two thousand million pass.
        return max(1, fixed + (1 if flexible else 0))
    if flexible:
        return 1
    return 2 if kind is string else 4


def _is_uuid(kind: WireType[object]) -> bool:
    return kind is uuid_ or kind is optional_uuid


class _Source:
    """Lines of a function and the names it may use."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.names: dict[str, object] = {}
        self.depth = 1
        self.counter = 0

    def write(self, cls: type[Struct]) -> str:
        raise NotImplementedError

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def use(self, name: str) -> str:
        """A helper from `primitives`, made visible to the function."""
        self.names[name] = getattr(primitives, name)
        return name

    def unpacker(self, code: str) -> str:
        name = "unpack_" + code.replace("?", "B")
        self.names[name] = PackedStruct(">" + code).unpack_from
        return name

    def packer(self, code: str) -> str:
        name = "pack_" + code.replace("?", "B")
        self.names[name] = PackedStruct(">" + code).pack
        return name

    def runs(self, rows: Sequence[Field]) -> list[list[Field]]:
        """Neighbours of fixed width together, every other field alone."""
        groups: list[list[Field]] = []
        for row in rows:
            if groups and isinstance(row.kind, Fixed) and isinstance(groups[-1][0].kind, Fixed):
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups


# --- decoding --------------------------------------------------------------------------------


class _DecoderSource(_Source):
    def write(self, cls: type[Struct]) -> str:
        target = self.struct(cls)
        self.line(f"return {target}, p")
        return "def decode(data, p, limit):\n" + "\n".join(self.lines) + "\n"

    def struct(self, cls: type[Struct]) -> str:
        """Emits the decoding of one struct; the variable that holds it."""
        values: dict[str, str] = {}
        for group in self.runs(wire_fields(cls, self.version, flexible=self.flexible)):
            if isinstance(group[0].kind, Fixed):
                self.fixed_run(group, values)
            else:
                where = f"{cls.__name__}.{group[0].name}"
                nullable = group[0].is_nullable(self.version)
                values[group[0].name] = self.value(group[0].kind, where, nullable)
                if group[0].kind is record_parts:
                    values["records_bytes"] = self.line_total(values[group[0].name])
        if self.flexible:
            self.tags(cls, values)
        target = self.fresh("o")
        self.names[cls.__name__] = cls
        self.names["new"] = object.__new__
        self.line(f"{target} = new({cls.__name__})")
        for name, row in cls.fields.items():
            self.line(f"{target}.{name} = {values.get(name) or self.default(cls, row)}")
        return target

    def line_total(self, parts: str) -> str:
        """Emits the size of decoded records: `record_parts` has its total beside it."""
        total = self.fresh("z")
        self.line(f"{total} = len({parts}[0]) if {parts} else 0")
        return total

    def default(self, cls: type[Struct], row: Field) -> str:
        if row.default is None or row.default is True or row.default is False:
            return repr(row.default)
        if type(row.default) is int:
            return repr(row.default)
        name = f"default_{cls.__name__}_{row.name}"
        self.names[name] = row.default
        return name

    def fixed_run(self, group: Sequence[Field], values: dict[str, str]) -> None:
        kinds = [cast("Fixed[object]", row.kind) for row in group]
        code = "".join(kind.code for kind in kinds)
        for row in group:
            values[row.name] = self.fresh("x")
        targets = ", ".join(values[row.name] for row in group)
        self.line(f"{targets}{',' if len(group) == 1 else ''} = {self.unpacker(code)}(data, p)")
        self.line(f"p += {sum(kind.size_bytes for kind in kinds)}")
        for row, kind in zip(group, kinds, strict=True):
            if _is_uuid(kind):
                self.line(f"{values[row.name]} = {self.use('uuid_of')}({values[row.name]})")

    def value(self, kind: WireType[object], where: str, nullable: bool) -> str:
        """Emits the decoding of one value; the variable that holds it."""
        if isinstance(kind, Fixed):
            target = self.fresh("x")
            self.line(f"{target}, = {self.unpacker(kind.code)}(data, p); p += {kind.size_bytes}")
            if _is_uuid(kind):
                self.line(f"{target} = {self.use('uuid_of')}({target})")
            return target
        if isinstance(kind, StructOf):
            return self.nullable_struct(kind.struct) if nullable else self.struct(kind.struct)
        if isinstance(kind, ArrayOf):
            return self.array(kind, where, nullable)
        return self.sized(kind, where, nullable)

    def nullable_struct(self, cls: type[Struct]) -> str:
        """A byte in front says whether the struct is there (KIP-893)."""
        target = self.fresh("s")
        self.line(f"{target} = None")
        mark = self.fresh("m")
        self.line(f"{mark} = data[p]; p += 1")
        self.line(f"if {mark} < 128:")
        self.depth += 1
        self.line(f"{target} = {self.struct(cls)}")
        self.depth -= 1
        return target

    def length(self, *, short: bool) -> str:
        """Emits the reading of a length or count; -1 is null."""
        n = self.fresh("n")
        if self.flexible:
            self.line(f"{n} = data[p] - 1; p += 1")
            self.line(
                f"if {n} > 126: {n}, p = {self.use('long_uvarint')}(data, p, {n} + 1); {n} -= 1"
            )
        elif short:
            self.line(f"{n}, = {self.unpacker('h')}(data, p); p += 2")
        else:
            self.line(f"{n}, = {self.unpacker('i')}(data, p); p += 4")
        return n

    def sized(self, kind: WireType[object], where: str, nullable: bool) -> str:
        target, end = self.fresh("v"), self.fresh("e")
        n = self.length(short=kind is string)
        self.line(f"if {n} < 0:")
        if nullable or kind is records or kind is record_parts:
            self.line(f"    {target} = {'()' if kind is record_parts else 'None'}")
        else:
            self.line(f"    {self.use('raise_null')}({where!r})")
        self.line("else:")
        self.depth += 1
        self.line(f"{end} = p + {n}")
        self.line(f"if {end} > limit: {self.use('raise_short')}()")
        if kind is string:
            if self.flexible:
                limit = primitives.STRING_BYTES_MAX
                self.line(f"if {n} > {limit}: {self.use('raise_length')}({where!r}, {n})")
            # Kafka replaces bytes that are not UTF-8 as well; the name then simply is not found.
            self.line(f"{target} = str(data[p:{end}], 'utf-8', 'replace')")
        elif kind is record_parts:
            self.line(f"{target} = [data[p:{end}]] if {n} else ()")
        else:
            self.line(f"{target} = data[p:{end}]")
        self.line(f"p = {end}")
        self.depth -= 1
        return target

    def array(self, kind: ArrayOf[object], where: str, nullable: bool) -> str:
        target = self.fresh("a")
        n = self.length(short=False)
        smallest = size_bytes_min(kind.element, self.version, flexible=self.flexible)
        self.line(f"if {n} < 0:")
        self.line(
            f"    {target} = None" if nullable else f"    {self.use('raise_null')}({where!r})"
        )
        self.line(f"elif {n} == 0: {target} = ()")
        self.line("else:")
        self.depth += 1
        self.line(f"if {n} * {smallest} > limit - p: {self.use('raise_count')}({where!r}, {n})")
        self.elements(kind.element, target, n, where)
        self.depth -= 1
        return target

    def elements(self, element: WireType[object], target: str, n: str, where: str) -> None:
        if isinstance(element, Fixed) and not _is_uuid(element):
            self.names["unpack_many"] = _unpack_many
            self.line(f"{target} = unpack_many({element.code!r}, {n}, data, p)")
            self.line(f"p += {n} * {element.size_bytes}")
            return
        add = self.fresh("add")
        self.line(f"{target} = []; {add} = {target}.append")
        self.line(f"for _ in range({n}):")
        self.depth += 1
        self.line(f"{add}({self.value(element, where, False)})")
        self.depth -= 1

    def tags(self, cls: type[Struct], values: dict[str, str]) -> None:
        count = self.fresh("t")
        rows = tagged_fields(cls, self.version, flexible=self.flexible)
        for row in rows:
            values[row.name] = self.fresh("g")
            self.line(f"{values[row.name]} = {self.default(cls, row)}")
        self.line(f"{count} = data[p]; p += 1")
        if not rows:
            self.line(f"if {count}: p = {self.use('skip_tags')}(data, p, {count}, limit)")
            return
        self.line(f"if {count}:")
        self.depth += 1
        self.tag_loop(cls, rows, values, count)
        self.depth -= 1

    def tag_loop(
        self, cls: type[Struct], rows: Sequence[Field], values: dict[str, str], count: str
    ) -> None:
        tag, end, previous = self.fresh("tag"), self.fresh("e"), self.fresh("b")
        self.line(f"if {count} > 127: {count}, p = {self.use('long_uvarint')}(data, p, {count})")
        self.line(f"{previous} = -1")
        self.line(f"for _ in range({count}):")
        self.depth += 1
        self.line(f"{tag}, {end}, p = {self.use('tag_header')}(data, p, limit)")
        self.line(f"if {tag} <= {previous}: {self.use('raise_tag')}({tag})")
        self.line(f"{previous} = {tag}")
        for row in rows:
            self.line(f"if {tag} == {row.tag}:")
            self.depth += 1
            where = f"{cls.__name__}.{row.name}"
            value = self.value(row.kind, where, row.is_nullable(self.version))
            self.line(f"{values[row.name]} = {value}")
            self.line(f"if p != {end}: {self.use('raise_tag')}({tag})")
            self.depth -= 1
        self.line(f"p = {end}")
        self.depth -= 1


def _unpack_many(code: str, count: int, data: memoryview, position: int) -> list[object]:
    return list(PackedStruct(f">{count}{code}").unpack_from(data, position))


# --- encoding --------------------------------------------------------------------------------


class _EncoderSource(_Source):
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

    def one(self, kind: WireType[object], value: str, nullable: bool) -> None:
        """Emits the encoding of the variable `value`."""
        if isinstance(kind, Fixed):
            self.line(f"out += {self.packer(kind.code)}({self.raw(kind, value)})")
            return
        if nullable:
            self.line(f"if {value} is None:")
            self.line(f"    {self.null(kind)}")
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
        """Records that are somewhere else: their size is known, their bytes are not touched."""
        self.has_records = True
        n = self.fresh("n")
        self.line(f"{n} = {source}.records_bytes")
        self.length(n, records)
        self.line(f"if {value}: parts.append(out); parts += {value}; out = bytearray()")

    def array(self, kind: ArrayOf[object], value: str) -> None:
        n, element = self.fresh("n"), kind.element
        self.line(f"{n} = len({value})")
        self.length(n, kind)
        if isinstance(element, Fixed) and not _is_uuid(element):
            self.names["pack_many"] = _pack_many
            self.line(f"if {n}: out += pack_many({element.code!r}, {value})")
            return
        item = self.fresh("i")
        self.line(f"for {item} in {value}:")
        self.depth += 1
        self.one(element, item, False)
        self.depth -= 1

    def tags(self, cls: type[Struct], source: str) -> None:
        """A tagged field is sent only if it differs from its default."""
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
        self.one(row.kind, value, row.is_nullable(self.version))
        self.line(
            f"{outer} += {primitives.uvarint(row.tag or 0)!r} + {self.use('uvarint')}(len(out))"
        )
        self.line(f"{outer} += out; out = {outer}")
        self.depth -= 1


def _pack_many(code: str, values: Sequence[object]) -> bytes:
    return PackedStruct(f">{len(values)}{code}").pack(*values)

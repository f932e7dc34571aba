"""Generates the decode function of a message class in one version.

    def decode(data, p, limit):
        x1, x2 = unpack_iq(data, p); p += 12
        n3 = data[p] - 1; p += 1
        ...nested loops, no calls...
        return o, p

It trusts nothing: `struct` and indexing raise at the end of the data, ends of slices are compared
with `limit`, a count is accepted only if the remaining bytes can hold so many elements of the
smallest size. So memory depends on the bytes sent, not on announced counts. Since an element as an
object is a hundred times its smallest size, the elements of all arrays of a request together are
bounded (`Request.elements_max`), and decoding stops where a count exceeds the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as PackedStruct
from typing import cast

from strandline.broker.protocol.codec.source import (
    Source,
    is_uuid,
    size_bytes_min,
    tagged_fields,
    wire_fields,
)
from strandline.broker.protocol.schema import primitives
from strandline.broker.protocol.schema.schema import (
    ArrayOf,
    Field,
    Fixed,
    Request,
    Struct,
    StructOf,
    WireType,
    byte_string,
    record_parts,
    records,
    string,
)


class DecoderSource(Source):
    """The Python source of a function that decodes one version of one message."""

    # Whether the elements of all arrays together are bounded.
    is_counted = False

    def write(self, cls: type[Struct]) -> str:
        if issubclass(cls, Request):
            self.is_counted = True
            self.line(f"left = {cls.elements_max}")
        target = self.struct(cls)
        self.line(f"return {target}, p")
        return "def decode(data, p, limit):\n" + "\n".join(self.lines) + "\n"

    def struct(self, cls: type[Struct]) -> str:
        """Emits the decoding of one struct; returns the variable that holds it."""
        values: dict[str, str] = {}
        for group in self.runs(wire_fields(cls, self.version, flexible=self.flexible)):
            if isinstance(group[0].kind, Fixed):
                self.fixed_run(group, values)
            else:
                where = f"{cls.__name__}.{group[0].name}"
                nullable = group[0].is_nullable(self.version)
                values[group[0].name] = self.value(group[0].kind, where, nullable)
                if group[0].kind is record_parts:
                    parts, values["records_bytes"] = values[group[0].name], self.fresh("z")
                    self.line(f"{values['records_bytes']} = len({parts}[0]) if {parts} else 0")
        if self.flexible:
            self.tags(cls, values)
        target = self.fresh("o")
        self.names[cls.__name__] = cls
        self.names["new"] = object.__new__
        self.line(f"{target} = new({cls.__name__})")
        for name, row in cls.fields.items():
            self.line(f"{target}.{name} = {values.get(name) or self.default(cls, row)}")
        return target

    def default(self, cls: type[Struct], row: Field) -> str:
        if row.default is None or type(row.default) in (bool, int):
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
            if is_uuid(kind):
                self.line(f"{values[row.name]} = {self.use('uuid_of')}({values[row.name]})")

    def value(self, kind: WireType[object], where: str, nullable: bool) -> str:
        """Emits the decoding of one value; returns the variable that holds it."""
        if isinstance(kind, Fixed):
            target = self.fresh("x")
            self.line(f"{target}, = {self.unpacker(kind.code)}(data, p); p += {kind.size_bytes}")
            if is_uuid(kind):
                self.line(f"{target} = {self.use('uuid_of')}({target})")
            return target
        if isinstance(kind, StructOf):
            return self.nullable_struct(kind.struct) if nullable else self.struct(kind.struct)
        if isinstance(kind, ArrayOf):
            return self.array(kind, where, nullable)
        return self.sized(kind, where, nullable)

    def nullable_struct(self, cls: type[Struct], *, is_tagged: bool = False) -> str:
        """Emits the decoding of a leading byte that tells whether the struct exists (KIP-893): one
        with the sign bit is null; in a tagged field 0 is.
        """
        target = self.fresh("s")
        self.line(f"{target} = None")
        mark = self.fresh("m")
        self.line(f"{mark} = data[p]; p += 1")
        self.line(f"if {mark}:" if is_tagged else f"if {mark} < 128:")
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
            # Kafka replaces invalid UTF-8 as well; the name is then simply unknown.
            self.line(f"{target} = str(data[p:{end}], 'utf-8', 'replace')")
        elif kind is record_parts:
            self.line(f"{target} = [data[p:{end}]] if {n} else ()")
        elif kind is byte_string:
            self.line(f"{target} = bytes(data[p:{end}])")
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
        if self.is_counted:
            self.charge(n)
        self.elements(kind.element, target, n, where)
        self.depth -= 1
        return target

    def charge(self, n: str) -> None:
        """Emits the subtraction of `n` from the elements that the request may still have."""
        self.line(f"left -= {n}")
        self.line(f"if left < 0: {self.use('raise_flood')}()")

    def elements(self, element: WireType[object], target: str, n: str, where: str) -> None:
        if isinstance(element, Fixed) and not is_uuid(element):
            self.names["unpack_many"] = _unpack_many
            self.line(f"{target} = unpack_many({element.code!r}, {n}, data, p)")
            self.line(f"p += {n} * {element.size_bytes}")
            return
        self.line(f"{target} = []")
        self.line(f"for _ in range({n}):")
        self.depth += 1
        self.line(f"{target}.append({self.value(element, where, False)})")
        self.depth -= 1

    def tags(self, cls: type[Struct], values: dict[str, str]) -> None:
        count = self.fresh("t")
        rows = tagged_fields(cls, self.version, flexible=self.flexible)
        for row in rows:
            values[row.name] = self.fresh("g")
            self.line(f"{values[row.name]} = {self.default(cls, row)}")
        self.line(f"{count} = data[p]; p += 1")
        if not rows:
            if self.is_counted:
                skip = self.use("skip_counted_tags")
                self.line(f"if {count}: left, p = {skip}(data, p, {count}, limit, left)")
            else:
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
        if self.is_counted:
            self.charge(count)
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
            nullable = row.is_nullable(self.version)
            if nullable and isinstance(row.kind, StructOf):
                value = self.nullable_struct(row.kind.struct, is_tagged=True)
            else:
                value = self.value(row.kind, where, nullable)
            self.line(f"{values[row.name]} = {value}")
            self.line(f"if p != {end}: {self.use('raise_tag')}({tag})")
            self.depth -= 1
        self.line(f"p = {end}")
        self.depth -= 1


def _unpack_many(code: str, count: int, data: memoryview, position: int) -> list[object]:
    return list(PackedStruct(f">{count}{code}").unpack_from(data, position))

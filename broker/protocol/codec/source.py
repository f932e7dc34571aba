"""Builder of a function's source, and the field tables that both directions use.

    fields of a version = untagged fields in wire order, then tagged fields by tag

Neighbouring fields of fixed width form a run: one `struct` call reads or writes them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as PackedStruct

from strandline.broker.protocol.schema import primitives
from strandline.broker.protocol.schema.schema import (
    Field,
    Fixed,
    Struct,
    StructOf,
    WireType,
    optional_uuid,
    string,
    uuid_,
)


def wire_fields(cls: type[Struct], version: int, *, flexible: bool) -> list[Field]:
    """Returns the untagged fields of `version`, in wire order."""
    return [row for row in cls.fields.values() if row.is_in(version) and not _is_tag(row, flexible)]


def tagged_fields(cls: type[Struct], version: int, *, flexible: bool) -> list[Field]:
    """Returns the tagged fields of `version`, by tag."""
    rows = [row for row in cls.fields.values() if row.is_in(version) and _is_tag(row, flexible)]
    return sorted(rows, key=lambda row: row.tag or 0)


def _is_tag(row: Field, flexible: bool) -> bool:
    return row.tag is not None and flexible


def size_bytes_min(kind: WireType[object], version: int, *, flexible: bool) -> int:
    """Returns the smallest size of a value of `kind`."""
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
        # An element of zero bytes would allow a count of two thousand million.
        return max(1, fixed + (1 if flexible else 0))
    if flexible:
        return 1
    return 2 if kind is string else 4


def is_uuid(kind: WireType[object]) -> bool:
    return kind is uuid_ or kind is optional_uuid


class Source:
    """The lines of a function and the names that it may use."""

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
        """Makes a helper from `primitives` visible to the function."""
        self.names[name] = getattr(primitives, name)
        return name

    def unpacker(self, code: str) -> str:
        name = "unpack_" + code.replace("?", "bool")
        self.names[name] = PackedStruct(">" + code).unpack_from
        return name

    def packer(self, code: str) -> str:
        name = "pack_" + code.replace("?", "bool")
        self.names[name] = PackedStruct(">" + code).pack
        return name

    def runs(self, rows: Sequence[Field]) -> list[list[Field]]:
        """Groups neighbouring fields of fixed width; every other field is alone."""
        groups: list[list[Field]] = []
        for row in rows:
            if groups and isinstance(row.kind, Fixed) and isinstance(groups[-1][0].kind, Fixed):
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups

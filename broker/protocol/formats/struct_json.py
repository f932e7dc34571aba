"""Structs as JSON, as Kafka's generated JsonConverters write and read them.

    topic_id  ->  "topicId"               uuid   base64url without padding, 22 characters
    tagged field at its default: absent   bytes  base64

A field that the version does not carry is absent, and has its default after decoding.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import TypeAlias, TypeVar, cast

from strandline.broker.protocol.codec.source import is_uuid
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import (
    ArrayOf,
    Field,
    Fixed,
    Struct,
    StructOf,
    WireType,
    boolean,
    byte_string,
    float64,
    string,
    uint16,
)

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
_Write: TypeAlias = Callable[[object], Json]
_Read: TypeAlias = Callable[[Json], object]

S = TypeVar("S", bound=Struct)
T = TypeVar("T")


def to_json(value: Struct, version: int) -> dict[str, Json]:
    """Returns the fields of `version`."""
    found: dict[str, Json] = {}
    for name, row, write, _ in _rows(type(value), version):
        field = getattr(value, row.name)
        if row.tag is None or not _is_default(field, row):
            found[name] = None if field is None else write(field)
    return found


def from_json(cls: type[S], version: int, found: Mapping[str, Json]) -> S:
    """Decodes the fields of `version`; ignores unknown ones, as Kafka. Raises MalformedRequest."""
    values = dict(_defaults(cls))
    for name, row, _, read in _rows(cls, version):
        field = found.get(name)
        if field is not None:
            try:
                values[row.name] = read(field)
            except (TypeError, ValueError, binascii.Error) as error:
                raise MalformedRequest(f"{cls.__name__}: {name} is {field!r:.80}") from error
        elif name in found and row.is_nullable(version):
            values[row.name] = None
        elif name in found or row.tag is None:
            raise MalformedRequest(f"{cls.__name__}: {name} is missing or null")
    return cls(**values)


@cache
def _defaults(cls: type[Struct]) -> Mapping[str, object]:
    return {row.name: row.default for row in cls.fields.values()}


@cache
def _rows(cls: type[Struct], version: int) -> tuple[tuple[str, Field, _Write, _Read], ...]:
    return tuple(
        (_camel_case(row.name), row, *_converters(row.kind, version))
        for row in cls.fields.values()
        if row.is_in(version)
    )


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _is_default(value: object, row: Field) -> bool:
    return not value if row.default == () and value is not None else value == row.default


def _converters(kind: WireType[object], version: int) -> tuple[_Write, _Read]:
    if isinstance(kind, StructOf):
        cls = kind.struct
        return (
            lambda value: to_json(_of(Struct, value), version),
            lambda found: from_json(cls, version, _of(dict, found)),
        )
    if isinstance(kind, ArrayOf):
        write, read = _converters(kind.element, version)
        return (
            lambda values: list(map(write, _of(Sequence, values))),  # type: ignore[type-abstract]
            lambda found: list(map(read, _of(list, found))),
        )
    if is_uuid(kind):
        return cast("_Write", _uuid_to_text), cast("_Read", _uuid_from_text)
    if kind is byte_string:
        return _bytes_to_text, lambda found: base64.b64decode(_of(str, found), validate=True)
    if kind is string:
        return _same, lambda found: _of(str, found)
    assert isinstance(kind, Fixed), kind
    if kind is boolean:
        return _same, lambda found: _of(bool, found)
    if kind is float64:
        return _same, lambda found: float(
            _of(int, found) if type(found) is int else _of(float, found)
        )
    bits = 8 * kind.size_bytes
    return _same, _reader_of(
        range(2**bits) if kind is uint16 else range(-(2 ** (bits - 1)), 2 ** (bits - 1))
    )


def _same(value: object) -> Json:
    return cast("Json", value)


def _of(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} expected")
    return value


def _reader_of(numbers: range) -> _Read:
    def read(found: Json) -> int:
        if type(found) is not int or found not in numbers:
            raise ValueError("not an integer of this width")
        return found

    return read


# Each partition of a topic has the topic's id, and records of one topic are neighbours.
@lru_cache(maxsize=1000)
def _uuid_to_text(value: object) -> str:
    return base64.urlsafe_b64encode(_of(uuid.UUID, value).bytes)[:22].decode()


@lru_cache(maxsize=1000)
def _uuid_from_text(found: Json) -> uuid.UUID:
    text = _of(str, found)
    if len(text) != 22:
        raise ValueError("not a UUID in 22 characters")
    return uuid.UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))


def _bytes_to_text(value: object) -> str:
    return base64.b64encode(_of(bytes, value)).decode()

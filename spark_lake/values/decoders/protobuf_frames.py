"""The registry's prefix of a Protobuf message: the schema id, and the message within its file.

    value   0x00 | schema id u32 | indexes (zigzag varints, the count first; 0 alone is the first)

The indexes are those of the *writer's* file, where messages may have another order than in the
reader's. So the file of each id is fetched once, and the wanted message is found in it by its name;
the package does not matter. A value whose indexes name another message does not parse: almost any
bytes would make a row, of fields that mean something else.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow.compute as pc

from strandline.spark_lake.values.decoders.avro_values import WRITERS_MAX, framed_id
from strandline.spark_lake.values.decoders.decoder import UnparsableValue
from strandline.spark_lake.values.schema.registry import FRAME_BYTES, Registry
from strandline.storage.errors import InvalidConfig

# Nesting of messages.
INDEXES_MAX = 64


class ProtobufFrames:
    """Reader of the prefixes of one message; `names` are its enclosing messages and itself."""

    def __init__(self, registry: Registry, names: Sequence[str]) -> None:
        self._registry = registry
        self._names = tuple(names)
        self._place_of = lru_cache(WRITERS_MAX)(self._fetched)

    def common_bytes(self, values: Any) -> int | None:
        """The size of the prefix; None unless all values have the same one, of the wanted message.

        Raises what `Registry.by_id` raises if the registry does not answer.
        """
        ids = pc.unique(pc.binary_slice(values, 0, FRAME_BYTES)).drop_null().to_pylist()
        try:
            written = {_written(self._place(framed_id(one))) for one in ids}
        except UnparsableValue:
            return None
        if len(written) > 1:
            return None
        wanted = written.pop() if written else b""
        size = FRAME_BYTES + len(wanted)
        frames = pc.unique(pc.binary_slice(values, FRAME_BYTES, size)).drop_null().to_pylist()
        return size if all(one == wanted for one in frames) else None

    def unframed(self, value: bytes) -> bytes:
        """Returns the bytes of the message. Raises UnparsableValue if it is another message."""
        schema_id = framed_id(value)
        place = self._place(schema_id)
        indexes, position = _indexes(value)
        if indexes != place:
            raise UnparsableValue(
                f"it is message {_shown(indexes)} of its file, and {'.'.join(self._names)} is"
                f" {_shown(place)} there (schema {schema_id})"
            )
        return value[position:]

    def _place(self, schema_id: int) -> tuple[int, ...]:
        place = self._place_of(schema_id)
        if isinstance(place, UnparsableValue):
            raise place
        return place

    def _fetched(self, schema_id: int) -> tuple[int, ...] | UnparsableValue:
        """The message's indexes in that file, or the reason that its values do not parse."""
        from google.protobuf import descriptor_pb2

        try:
            found = self._registry.by_id(schema_id, serialized=True)
        except InvalidConfig:
            return UnparsableValue(f"its schema {schema_id} is not in the registry")
        if found.kind.upper() != "PROTOBUF":
            return UnparsableValue(f"its schema {schema_id} is {found.kind.lower()}")
        try:
            content = base64.b64decode(found.text, validate=True)
            inside = descriptor_pb2.FileDescriptorProto.FromString(content).message_type
        except Exception as error:  # binascii.Error, and the DecodeError of Protobuf
            return UnparsableValue(
                f"its schema {schema_id} in the registry is no Protobuf file:"
                f" {type(error).__name__}: {error}"
            )
        place: list[int] = []
        for name in self._names:
            known = [one.name for one in inside]
            if name not in known:
                wanted = ".".join(self._names)
                return UnparsableValue(f"its schema {schema_id} has no message {wanted}")
            place.append(known.index(name))
            inside = inside[place[-1]].nested_type
        return tuple(place)


def _indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Returns the message indexes after the schema id, and the position after them."""
    count, position = _varint(value, FRAME_BYTES)
    if not 0 <= count <= INDEXES_MAX:
        raise UnparsableValue(f"it names {count} message indexes")
    indexes: list[int] = []
    for _ in range(count):
        index, position = _varint(value, position)
        indexes.append(index)
    return tuple(indexes or [0]), position


def _written(indexes: tuple[int, ...]) -> bytes:
    # The first message of a file has the short form: one 0 for count and index.
    return b"\0" if indexes == (0,) else b"".join(map(_zigzag, (len(indexes), *indexes)))


def _shown(indexes: tuple[int, ...]) -> str:
    return ".".join(map(str, indexes))


def _zigzag(number: int) -> bytes:
    """Encodes a count or an index, which is not negative."""
    left = number << 1
    written = bytearray()
    while left > 0x7F:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*written, left])


def _varint(value: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while position < len(value) and shift < 35:
        byte = value[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
    raise UnparsableValue("it ends inside its message indexes")

"""Values in Protobuf, with a descriptor set (`protoc --descriptor_set_out --include_imports`).

Messages become columns in one compiled loop (`protobuf_columns`); what the loop leaves alone is
read by Protobuf's own parser, row by row. Columns are mapped as Spark's from_protobuf does: enums
become their names, a message that is not set is null, `google.protobuf.Timestamp` is a timestamp.
With a registry, a frame stands in front of the message: schema id, then the indexes of the message
in its file. A value whose indexes name another message does not parse: it would make a row, and
almost any bytes would, of fields that mean something else.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strandline.spark_lake.values.avro_values import framed_id
from strandline.spark_lake.values.ddl import list_of, map_of, timestamp
from strandline.spark_lake.values.decoder import UnparsableValue
from strandline.spark_lake.values.protobuf_columns import ProtobufColumns
from strandline.spark_lake.values.registry import FRAME_BYTES
from strandline.storage.errors import InvalidConfig

_TIMESTAMP = "google.protobuf.Timestamp"
# Names between a file and a message in it.
INDEXES_MAX = 64


class ProtobufValues:
    """Messages of the type `message` in `descriptors`, the bytes of a FileDescriptorSet."""

    def __init__(self, descriptors: bytes, message: str, *, framed: bool) -> None:
        """Raises InvalidConfig if the message is not in the set, or contains itself."""
        self._descriptor, self._make = _load(descriptors, message)
        self._type = _struct(self._descriptor, ())
        self._framed = framed
        self._indexes = _indexes_of(self._descriptor)
        self._columns = ProtobufColumns.of(self._descriptor, self._type)

    @property
    def type(self) -> Any:
        return self._type

    def decode(self, values: Any) -> Any:
        import pyarrow as pa

        skip = _frame_bytes(values, self._indexes) if self._framed else 0
        if self._columns is not None and skip is not None:
            decoded = self._columns.decode(values, skip=skip)
            if decoded is not None:
                return decoded
        rows = [None if value is None else self._row(value) for value in values.to_pylist()]
        try:
            return pa.array(rows, self._type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise UnparsableValue(str(error)) from error

    def _row(self, value: bytes) -> Any:
        message = self._make()
        try:
            message.ParseFromString(self._unframed(value) if self._framed else value)
            return _row(message)
        except UnparsableValue:
            raise
        except Exception as error:  # its DecodeError, a time beyond its own bounds, anything
            raise UnparsableValue(f"{type(error).__name__}: {error}") from error

    def _unframed(self, value: bytes) -> bytes:
        indexes, content = _unframed(value)
        if indexes != self._indexes:
            raise UnparsableValue(
                f"it is message {'.'.join(map(str, indexes))} of its file, and"
                f" {self._descriptor.full_name} is {'.'.join(map(str, self._indexes))}"
            )
        return content


def read_descriptors(text: str) -> bytes:
    """A descriptor set as an option gives it: a file's name, or base64. Raises InvalidConfig."""
    path = Path(text.removeprefix("file://"))
    try:
        if path.is_absolute():
            return path.read_bytes()
        return base64.b64decode(text, validate=True)
    except (OSError, binascii.Error) as error:
        raise InvalidConfig(
            "option valueDescriptors must be the absolute name of a file on the driver, written by"
            f" protoc --include_imports --descriptor_set_out, or its bytes in base64: {error}"
        ) from error


def descriptors_of_file(serialized: str) -> bytes:
    """A set of the one file that a registry gives with `format=serialized`."""
    descriptor_pb2 = _protobuf()
    try:
        content = base64.b64decode(serialized, validate=True)
        one = descriptor_pb2.FileDescriptorProto.FromString(content)
    except Exception as error:  # binascii.Error, and the DecodeError of Protobuf
        raise InvalidConfig(
            f"the schema of the registry is no Protobuf file: {type(error).__name__}: {error}"
        ) from error
    return bytes(descriptor_pb2.FileDescriptorSet(file=[one]).SerializeToString())


def first_message(descriptors: bytes) -> str:
    """The full name of the first message of the last file: what a registry's subject means."""
    descriptor_pb2 = _protobuf()
    file = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
    if not file.message_type:
        raise InvalidConfig("the schema of the registry has no message")
    name = file.message_type[0].name
    return f"{file.package}.{name}" if file.package else str(name)


def _protobuf() -> Any:
    try:
        from google.protobuf import descriptor_pb2
    except ImportError as error:
        raise InvalidConfig(
            "valueFormat=protobuf needs protobuf: pip install 'strandline[values]' on the driver"
            " and the executors"
        ) from error
    return descriptor_pb2


def _load(descriptors: bytes, message: str) -> tuple[Any, Callable[[], Any]]:
    descriptor_pb2 = _protobuf()
    from google.protobuf import descriptor_pool, message_factory, timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        given = {file.name for file in files}
        if timestamp_pb2.DESCRIPTOR.name not in given:
            pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        for file in files:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(message)
    except KeyError as error:
        raise InvalidConfig(
            f"option valueMessage: the descriptors have no message {message}"
        ) from error
    except Exception as error:  # DecodeError and TypeError of damaged or incomplete sets
        raise InvalidConfig(f"option valueDescriptors cannot be read: {error}") from error
    return descriptor, message_factory.GetMessageClass(descriptor)


def _struct(descriptor: Any, above: tuple[str, ...]) -> Any:
    import pyarrow as pa

    if descriptor.full_name in above:
        raise InvalidConfig(
            f"option valueMessage: {descriptor.full_name} contains itself, which makes no column"
        )
    inside = (*above, descriptor.full_name)
    return pa.struct([pa.field(one.name, _field_type(one, inside)) for one in descriptor.fields])


def _field_type(one: Any, above: tuple[str, ...]) -> Any:
    import pyarrow as pa

    if _is_map(one):
        entry = one.message_type.fields_by_name
        return map_of(_single(entry["key"], above), _single(entry["value"], above))
    kind = _single(one, above)
    assert isinstance(kind, pa.DataType), one.name
    return list_of(kind) if one.is_repeated else kind


def _single(one: Any, above: tuple[str, ...]) -> Any:
    import pyarrow as pa

    if one.cpp_type == one.CPPTYPE_MESSAGE:
        if one.message_type.full_name == _TIMESTAMP:
            return timestamp()
        return _struct(one.message_type, above)
    return {
        one.CPPTYPE_INT32: pa.int32,
        one.CPPTYPE_INT64: pa.int64,
        one.CPPTYPE_UINT32: pa.int64,
        one.CPPTYPE_UINT64: lambda: pa.decimal128(20, 0),
        one.CPPTYPE_DOUBLE: pa.float64,
        one.CPPTYPE_FLOAT: pa.float32,
        one.CPPTYPE_BOOL: pa.bool_,
        one.CPPTYPE_ENUM: pa.string,
        one.CPPTYPE_STRING: pa.binary if one.type == one.TYPE_BYTES else pa.string,
    }[one.cpp_type]()


def _is_map(one: Any) -> bool:
    return one.message_type is not None and bool(one.message_type.GetOptions().map_entry)


def _row(message: Any) -> dict[str, Any]:
    return {one.name: _field(message, one) for one in message.DESCRIPTOR.fields}


def _field(message: Any, one: Any) -> Any:
    value = getattr(message, one.name)
    if _is_map(one):
        of = one.message_type.fields_by_name["value"]
        return [(key, _one(value[key], of)) for key in value]
    if one.is_repeated:
        return [_one(element, one) for element in value]
    if one.has_presence and not message.HasField(one.name):
        return None
    return _one(value, one)


def _one(value: Any, of: Any) -> Any:
    if of.cpp_type == of.CPPTYPE_MESSAGE:
        if of.message_type.full_name == _TIMESTAMP:
            return value.ToMicroseconds()
        return _row(value)
    if of.cpp_type == of.CPPTYPE_ENUM:
        known = of.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value


def _indexes_of(descriptor: Any) -> tuple[int, ...]:
    """The message among those of its file, and those it lies in."""
    outside = descriptor.containing_type
    if outside is not None:
        names = [one.name for one in outside.nested_types]
        return (*_indexes_of(outside), names.index(descriptor.name))
    file = _protobuf().FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    return ([one.name for one in file.message_type].index(descriptor.name),)


def _frame_bytes(values: Any, indexes: tuple[int, ...]) -> int | None:
    """What stands in front of each message; None unless all name the one that is wanted."""
    import pyarrow.compute as pc

    # One of its own is the first, and count and index are written as one 0.
    wanted = b"\0" if indexes == (0,) else b"".join(map(_zigzag, (len(indexes), *indexes)))
    size = FRAME_BYTES + len(wanted)
    frames = pc.unique(pc.binary_slice(values, 0, size)).drop_null().to_pylist()
    if all(one[:1] == b"\0" and one[FRAME_BYTES:] == wanted for one in frames):
        return size
    return None


def _unframed(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """The message indexes behind the schema id (zigzag varints, count first), and the rest."""
    framed_id(value)
    count, position = _varint(value, FRAME_BYTES)
    if not 0 <= count <= INDEXES_MAX:
        raise UnparsableValue(f"it names {count} message indexes")
    indexes: list[int] = []
    for _ in range(count):
        index, position = _varint(value, position)
        indexes.append(index)
    return tuple(indexes or [0]), value[position:]


def _zigzag(number: int) -> bytes:
    """A count or an index, which are not negative."""
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

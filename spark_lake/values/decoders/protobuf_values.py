"""Decoder of Protobuf values, with the descriptor set of `protoc --descriptor_set_out`.

Messages become columns in one compiled loop (`protobuf_columns`); Protobuf's own parser reads what
the loop rejects, row by row. Columns are mapped as by Spark's from_protobuf: enums become names, an
unset message is null, `google.protobuf.Timestamp` is a timestamp. With a registry, a prefix
names the message (`protobuf_frames`).
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.spark_lake.values.columns.protobuf_columns import ProtobufColumns
from strandline.spark_lake.values.decoders.decoder import UnparsableValue
from strandline.spark_lake.values.decoders.protobuf_frames import ProtobufFrames
from strandline.spark_lake.values.schema.ddl import list_of, map_of, timestamp
from strandline.spark_lake.values.schema.registry import Registry
from strandline.storage.errors import InvalidConfig
from strandline.storage.extras import how_to_install

_TIMESTAMP = "google.protobuf.Timestamp"
# Files that Protobuf bundles: users need not pass them, and registries do not refer to them.
_BUNDLED_FILES = tuple(
    f"google/protobuf/{name}.proto"
    for name in (
        *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context"),
        *("struct", "timestamp", "type", "wrappers"),
    )
)


class ProtobufValues:
    """Decoder of the type `message` in `descriptors`, the bytes of a FileDescriptorSet."""

    def __init__(self, descriptors: bytes, message: str, registry: Registry | None) -> None:
        """Raises InvalidConfig if the message is not in the set, or contains itself."""
        self._descriptor, self._make = _load(descriptors, message)
        self._type = _struct(self._descriptor, ())
        package = self._descriptor.file.package
        names = message.removeprefix(f"{package}." if package else "").split(".")
        self._frames = None if registry is None else ProtobufFrames(registry, names)
        self._columns = ProtobufColumns.of(self._descriptor, self._type)

    @property
    def type(self) -> Any:
        return self._type

    def decode(self, values: Any) -> Any:
        skip = 0 if self._frames is None else self._frames.common_bytes(values)
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
        content = value if self._frames is None else self._frames.unframed(value)
        try:
            message.ParseFromString(content)
            return _row(message)
        except Exception as error:  # DecodeError, a time out of range, or others
            raise UnparsableValue(f"{type(error).__name__}: {error}") from error


def read_descriptors(text: str) -> bytes:
    """Returns the descriptor set of an option: a file name, or base64. Raises InvalidConfig."""
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


def descriptors_of_file(serialized: str, *, imported: Sequence[tuple[str, str]] = ()) -> bytes:
    """Returns the descriptor set of a registry's file (`format=serialized`).

    The files that it imports precede it, under the names that it has for them.
    """
    files = [_file_of(text) for _, text in imported]
    for (name, _), one in zip(imported, files, strict=True):
        # The registry's own name is the same for all files.
        one.name = name
    files.append(_file_of(serialized))
    return bytes(_protobuf().FileDescriptorSet(file=files).SerializeToString())


def _file_of(serialized: str) -> Any:
    descriptor_pb2 = _protobuf()
    try:
        content = base64.b64decode(serialized, validate=True)
        return descriptor_pb2.FileDescriptorProto.FromString(content)
    except Exception as error:  # binascii.Error, and the DecodeError of Protobuf
        raise InvalidConfig(
            f"the schema of the registry is no Protobuf file: {type(error).__name__}: {error}"
        ) from error


def first_message(descriptors: bytes) -> str:
    """Returns the full name of the last file's first message, which a registry's subject means."""
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
            "valueFormat=protobuf needs protobuf on the driver and the executors:"
            f" {how_to_install('values')}"
        ) from error
    return descriptor_pb2


def _load(descriptors: bytes, message: str) -> tuple[Any, Callable[[], Any]]:
    descriptor_pb2 = _protobuf()
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        added = {file.name for file in files}
        for file in files:
            _add_bundled_files(pool, file, added)
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(message)
    except KeyError as error:
        raise InvalidConfig(
            f"option valueMessage: the descriptors have no message {message}"
        ) from error
    except Exception as error:  # DecodeError and TypeError of damaged or incomplete sets
        raise InvalidConfig(
            "the descriptors (of option valueDescriptors, or the registry's) cannot be read:"
            f" {error}; they must have what their files import (protoc --include_imports)"
        ) from error
    return descriptor, message_factory.GetMessageClass(descriptor)


def _add_bundled_files(pool: Any, file: Any, added: set[str]) -> None:
    """Adds Protobuf's own files that `file` imports; their imports come first."""
    for name in file.dependency:
        if name in _BUNDLED_FILES and name not in added:
            added.add(name)
            module = importlib.import_module(f"{name.removesuffix('.proto')}_pb2".replace("/", "."))
            own = type(file).FromString(module.DESCRIPTOR.serialized_pb)
            _add_bundled_files(pool, own, added)
            pool.Add(own)


def _struct(descriptor: Any, above: tuple[str, ...]) -> Any:
    if descriptor.full_name in above:
        raise InvalidConfig(
            f"option valueMessage: {descriptor.full_name} contains itself, which makes no column;"
            " give valueDescriptors whose messages lack the field, or read valueFormat=raw"
        )
    inside = (*above, descriptor.full_name)
    return pa.struct([pa.field(one.name, _field_type(one, inside)) for one in descriptor.fields])


def _field_type(one: Any, above: tuple[str, ...]) -> Any:
    if _is_map(one):
        entry = one.message_type.fields_by_name
        return map_of(_single(entry["key"], above), _single(entry["value"], above))
    kind = _single(one, above)
    assert isinstance(kind, pa.DataType), one.name
    return list_of(kind) if one.is_repeated else kind


def _single(one: Any, above: tuple[str, ...]) -> Any:
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

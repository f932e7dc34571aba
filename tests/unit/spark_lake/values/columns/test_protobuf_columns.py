"""The compiled loop over Protobuf messages gives what Protobuf gives, or leaves it to Protobuf."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from strandline.spark_lake.values.decoders.decoder import UnparsableValue
from strandline.spark_lake.values.decoders.protobuf_values import ProtobufValues
from tests.support.heavy import heavy

FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FIELD.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}


def wide_file() -> descriptor_pb2.FileDescriptorProto:
    """shop.Wide: each kind of field alone, optional, repeated, as a map's value and in a oneof."""
    file = descriptor_pb2.FileDescriptorProto(
        name="wide.proto",
        package="shop",
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("NONE", "GIFT", "LOAN")):
        kind.value.add(name=name, number=number)
    kind.value.add(name="LOST", number=-1)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    line.field.add(name="sizes", number=2, type=FIELD.TYPE_SINT32, label=FIELD.LABEL_REPEATED)
    wide = file.message_type.add(name="Wide")
    kinds: dict[str, tuple[int, str | None]] = {
        **{name: (number, None) for name, number in SCALARS.items()},
        "enum": (FIELD.TYPE_ENUM, ".shop.Kind"),
        "line": (FIELD.TYPE_MESSAGE, ".shop.Line"),
        "at": (FIELD.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
    }
    wide.oneof_decl.add(name="choice")
    for place, (name, (type_, type_name)) in enumerate(kinds.items()):

        def add(prefix: str, number: int, label: Any, **more: Any) -> Any:
            return wide.field.add(
                name=f"{prefix}_{name}",  # noqa: B023
                number=number + place,  # noqa: B023
                type=type_,  # noqa: B023
                label=label,
                type_name=type_name,  # noqa: B023
                **more,
            )

        add("one", 1, FIELD.LABEL_OPTIONAL)
        add("many", 31, FIELD.LABEL_REPEATED)
        add("choice", 101, FIELD.LABEL_OPTIONAL, oneof_index=0)
        entry = wide.nested_type.add(name=f"Map{name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
        entry.field.add(
            name="value", number=2, type=type_, label=FIELD.LABEL_OPTIONAL, type_name=type_name
        )
        wide.field.add(
            name=f"map_{name}",
            number=2001 + place,
            type=FIELD.TYPE_MESSAGE,
            label=FIELD.LABEL_REPEATED,
            type_name=f".shop.Wide.{entry.name}",
        )
    return file


DESCRIPTORS = descriptor_pb2.FileDescriptorSet(file=[wide_file()]).SerializeToString()


def decoders() -> tuple[ProtobufValues, ProtobufValues]:
    """One with the loop, one without."""
    slow = ProtobufValues(DESCRIPTORS, "shop.Wide", None)
    slow._columns = None
    return ProtobufValues(DESCRIPTORS, "shop.Wide", None), slow


def scalar(source: random.Random, name: str) -> Any:
    if name in ("double", "float"):
        return source.randrange(-1000, 1000) / 8
    if name == "bool":
        return source.random() < 0.5
    if name in ("string", "bytes"):
        text = "".join(source.choices("aüß€𐍈", k=source.randrange(5)))
        return text if name == "string" else text.encode()
    if name == "enum":
        return source.choice([-1, 0, 1, 2])
    bits = 64 if "64" in name else 32
    low = 0 if name.startswith(("u", "fixed")) else -(2 ** (bits - 1))
    return source.choice([low, low + 2**bits - 1, source.randrange(100), 0])


def fill(source: random.Random, message: Any, name: str) -> None:
    if name == "line":
        message.sku = scalar(source, "string")
        message.sizes.extend(scalar(source, "sint32") for _ in range(source.randrange(3)))
    else:
        message.seconds = source.randrange(-(10**10), 10**11)
        message.nanos = source.choice([0, 1999, 999_999_999])


def encoded(source: random.Random, decoder: ProtobufValues) -> bytes:
    message = decoder._make()
    names = [*SCALARS, "enum", "line", "at"]
    for name in source.sample(names, source.randrange(8)):
        is_message = name in ("line", "at")
        if source.random() < 0.6:
            if is_message:
                fill(source, getattr(message, f"one_{name}"), name)
                fill(source, getattr(message, f"many_{name}").add(), name)
            else:
                setattr(message, f"one_{name}", scalar(source, name))
                many = [scalar(source, name) for _ in range(source.randrange(4))]
                getattr(message, f"many_{name}").extend(many)
        target = getattr(message, f"map_{name}")
        for _ in range(source.randrange(3)):
            key = scalar(source, "string")
            if is_message:
                fill(source, target[key], name)
            else:
                target[key] = scalar(source, name)
    chosen = source.choice(names)
    if chosen in ("line", "at"):
        fill(source, getattr(message, f"choice_{chosen}"), chosen)
    else:
        setattr(message, f"choice_{chosen}", scalar(source, chosen))
    return bytes(message.SerializeToString())


def shown(rows: Any) -> Any:
    """With the entries of maps in order: Protobuf gives them in any. NaN is its text."""
    if rows is None:
        return None
    return repr(
        {
            name: sorted(value, key=repr) if name.startswith("map_") else value
            for name, value in rows.items()
        }
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_loop_gives_what_protobuf_gives(seed: int) -> None:
    source = random.Random(seed)
    fast, slow = decoders()
    rows = [encoded(source, slow) if source.random() < 0.9 else None for _ in range(100)]
    values = pa.array([b"in front", *rows, b""], pa.binary()).slice(1)
    assert fast._columns is not None
    decoded = fast._columns.decode(values, skip=0)
    assert decoded is not None
    decoded.validate(full=True)
    expected = slow.decode(values).to_pylist()
    assert [shown(row) for row in decoded.to_pylist()] == [shown(row) for row in expected]


@pytest.mark.parametrize("count", [200, heavy(800)])
def test_damaged_messages_are_refused_by_both_or_the_same_for_both(count: int) -> None:
    source = random.Random(5)
    fast, slow = decoders()
    outcomes = set()
    for _ in range(count):
        value = bytearray(encoded(source, slow) * source.choice([1, 1, 2]))
        for _ in range(source.randrange(3)):
            value[source.randrange(len(value))] = source.randrange(256)
        if source.random() < 0.3:
            del value[source.randrange(len(value)) :]
        array = pa.array([bytes(value)], pa.binary())
        found: list[Any] = []
        for decoder in (fast, slow):
            try:
                found.append(shown(decoder.decode(array).to_pylist()[0]))
            except UnparsableValue:
                found.append(UnparsableValue)
        assert found[0] == found[1]
        outcomes.add(found[0] is UnparsableValue)
    assert outcomes == {True, False}

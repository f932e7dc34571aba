"""Messages of a registry: which of its file a value is, and schemas that are none."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from strandline.storage.errors import InvalidConfig, ObjectCorrupt
from tests.unit.lake.fake_registry import FakeRegistry
from tests.unit.lake.test_lake_values import archive_of, framed, values_of

LATEST = "/subjects/t-value/versions/latest?format=serialized"


def shop() -> descriptor_pb2.FileDescriptorProto:
    """shop.Order with shop.Order.Line inside, and shop.Refund, all with one number."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    for message, name in (
        (order, "amount"),
        (order.nested_type.add(name="Note"), "page"),
        (order.nested_type.add(name="Line"), "count"),
        (file.message_type.add(name="Refund"), "back"),
    ):
        field = descriptor_pb2.FieldDescriptorProto
        message.field.add(name=name, number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    return file


def message_of(name: str, number: int) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(shop())
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()
    (field,) = made.DESCRIPTOR.fields
    setattr(made, field.name, number)
    return bytes(made.SerializeToString())


# As Confluent's serializers write them: zigzag varints, the count first, and 0 for the first.
FRAMES = {
    "shop.Order": (b"\x00", {"amount": 3}),
    "shop.Refund": (b"\x02\x02", {"back": 3}),
    "shop.Order.Line": (b"\x04\x00\x02", {"count": 3}),
}


@pytest.mark.parametrize("wanted", list(FRAMES))
@pytest.mark.parametrize("together", [True, False])
def test_only_the_message_that_is_wanted_makes_rows(
    tmp_path: Path,
    registry: FakeRegistry,
    wanted: str,
    together: bool,
) -> None:
    content = base64.b64encode(shop().SerializeToString()).decode()
    registry.answers[LATEST] = {"schemaType": "PROTOBUF", "schema": content}
    options: dict[str, Any] = {
        "valueFormat": "protobuf",
        "valueMessage": wanted,
        "registryurl": registry.url,
    }
    for name, (frame, row) in FRAMES.items():
        values = [framed(4, frame + message_of(name, 3))]
        if together:
            own = FRAMES[wanted]
            values.append(framed(4, own[0] + message_of(wanted, 3)))
        archive = archive_of(tmp_path / name, values)
        rows = values_of(archive, **options, valueErrors="null")
        assert rows[0] == (row if name == wanted else None)
        assert rows[1:] == [FRAMES[wanted][1]] * together
        if name != wanted:
            with pytest.raises(ObjectCorrupt, match=f"of its file, and {wanted} is"):
                values_of(archive, **options)


@pytest.mark.parametrize("schema", ["no base64!", base64.b64encode(b"\xff\xff").decode(), ""])
def test_what_is_no_protobuf_file_is_refused(
    tmp_path: Path,
    registry: FakeRegistry,
    schema: str,
) -> None:
    registry.answers[LATEST] = {"schemaType": "PROTOBUF", "schema": schema}
    archive = archive_of(tmp_path, [b"x"])
    with pytest.raises(InvalidConfig, match="the schema of the registry"):
        values_of(archive, valueFormat="protobuf", registryurl=registry.url)

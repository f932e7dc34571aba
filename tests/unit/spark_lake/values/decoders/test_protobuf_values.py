"""Messages of a registry: which of its file a value is, and schemas that are none."""

from __future__ import annotations

import base64
import decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from strandline.storage.errors import InvalidConfig, ObjectCorrupt
from tests.unit.spark_lake.fake_registry import FakeRegistry
from tests.unit.spark_lake.values.protobuf_files import BY_ID, LATEST, answer_of, order_file, shop
from tests.unit.spark_lake.values.valued_archive import MOMENT, archive_of, framed, values_of


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
    answer = answer_of(shop())
    registry.answers = {LATEST: answer, BY_ID.format(4): answer}
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
            with pytest.raises(ObjectCorrupt, match=f"of its file, and {wanted[5:]} is"):
                values_of(archive, **options)


def test_a_value_is_the_message_that_its_writers_schema_says(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    """A newer file has another order of messages; older values have the indexes of theirs."""
    older, newer = shop(), shop()
    newer.message_type.reverse()
    lacking = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop")
    for number, file in enumerate((older, newer, lacking), 1):
        registry.answers[BY_ID.format(number)] = answer_of(file)
        if file is newer:
            registry.answers[LATEST] = answer_of(file)
    registry.answers[BY_ID.format(4)] = {"schema": '"string"'}
    registry.answers[BY_ID.format(5)] = {"schemaType": "PROTOBUF", "schema": "no base64!"}
    order, refund = message_of("shop.Order", 3), message_of("shop.Refund", 5)
    values = [
        framed(1, b"\x00" + order),
        framed(1, b"\x02\x02" + refund),
        framed(2, b"\x02\x02" + order),
        framed(2, b"\x00" + refund),
        *(framed(number, b"\x00" + order) for number in (3, 4, 5, 6)),
        None,
    ]
    options: dict[str, Any] = {"valueFormat": "protobuf", "registryurl": registry.url}
    archive = archive_of(tmp_path / "all", values)
    rows = values_of(archive, **options, valueMessage="shop.Order", valueErrors="null")
    assert rows == [{"amount": 3}, None, {"amount": 3}, *[None] * 6]
    rows = values_of(archive, **options, valueMessage="shop.Refund", valueErrors="null")
    assert rows == [None, {"back": 5}, None, {"back": 5}, *[None] * 5]
    for number, says in (
        (1, r"message 1 of its file, and Order is 0 there \(schema 1\)"),
        (4, "schema 3 has no message Order"),
        (5, "schema 4 is avro"),
        (6, "schema 5 in the registry is no Protobuf file"),
        (7, "schema 6 is not in the registry"),
    ):
        alone = archive_of(tmp_path / str(number), [values[number]])
        with pytest.raises(ObjectCorrupt, match=says):
            values_of(alone, **options, valueMessage="shop.Order")


def test_indexes_count_the_entries_of_maps_where_the_registry_has_them(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    """A map's entry is a nested message: in front in what protoc made, last in a text's."""
    kind = descriptor_pb2.FieldDescriptorProto
    values = []
    for number, first in ((1, "FeesEntry"), (2, "Note")):
        file = shop()
        order = file.message_type[0]
        entry = descriptor_pb2.DescriptorProto(name="FeesEntry")
        entry.options.map_entry = True
        for tag, name in ((1, "key"), (2, "value")):
            entry.field.add(name=name, number=tag, type=kind.TYPE_INT32, label=kind.LABEL_OPTIONAL)
        order.nested_type.insert(0 if first == "FeesEntry" else 2, entry)
        order.field.add(
            name="fees",
            number=2,
            type=kind.TYPE_MESSAGE,
            type_name=".shop.Order.FeesEntry",
            label=kind.LABEL_REPEATED,
        )
        answer = answer_of(file)
        registry.answers |= {BY_ID.format(number): answer, LATEST: answer}
        places = [one.name for one in order.nested_type]
        values += [
            framed(number, bytes([4, 0, 2 * places.index(name)]) + message_of("shop.Order.Note", 3))
            for name in ("Note", "Line", "FeesEntry")
        ]
    rows = values_of(
        archive_of(tmp_path, values),
        valueFormat="protobuf",
        registryurl=registry.url,
        valueMessage="shop.Order.Line",
        valueErrors="null",
    )
    assert rows == [None, {"count": 3}, None] * 2


def test_files_that_come_with_protobuf_are_there_though_nobody_gives_them(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    """A registry knows them without a reference, and so does protoc without --include_imports."""
    file = shop()
    for number, name in enumerate(("wrappers.Int32Value", "duration.Duration", "type.Type"), 2):
        module, _, message = name.partition(".")
        file.dependency.append(f"google/protobuf/{module}.proto")
        file.message_type[0].field.add(
            name=module,
            number=number,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
            type_name=f".google.protobuf.{message}",
            label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        )
    registry.answers = {LATEST: answer_of(file), BY_ID.format(1): answer_of(file)}
    order = b"\x08\x03" + b"\x12\x02\x08\x05" + b"\x1a\x04\x08\x01\x10\x02"
    options = {"valueFormat": "protobuf", "registryurl": registry.url}
    (row,) = values_of(archive_of(tmp_path / "1", [framed(1, b"\0" + order)]), **options)
    assert row["amount"] == 3
    assert (row["wrappers"], row["duration"]) == ({"value": 5}, {"seconds": 1, "nanos": 2})
    assert row["type"] is None
    file.dependency.append("shop/customer.proto")
    registry.answers = {LATEST: answer_of(file)}
    with pytest.raises(InvalidConfig, match=r"customer\.proto.* must have what their files import"):
        values_of(archive_of(tmp_path / "2", [b""]), **options)


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


ORDER_COLUMNS = {
    "id": decimal.Decimal(2**63 + 5),
    "kind": "GIFT",
    "first": None,
    "lines": [{"sku": "a"}, {"sku": "b"}],
    "tags": [("x", 3)],
    "at": MOMENT,
    "raw": b"\x00\xff",
}


def test_protobuf_messages_become_columns(tmp_path: Path, order: bytes) -> None:
    files = descriptor_pb2.FileDescriptorSet(file=[order_file()])
    path = tmp_path / "shop.desc"
    path.write_bytes(files.SerializeToString())
    archive = archive_of(tmp_path / "archive", [order, None, b"\xff\xff"])
    for descriptors in (str(path), base64.b64encode(path.read_bytes()).decode()):
        rows = values_of(
            archive,
            valueFormat="protobuf",
            valueDescriptors=descriptors,
            valueMessage="shop.Order",
            valueErrors="null",
        )
        assert rows == [ORDER_COLUMNS, None, None]
    with pytest.raises(InvalidConfig, match=r"no message shop\.Ordr"):
        values_of(
            archive,
            valueFormat="protobuf",
            valueDescriptors=str(path),
            valueMessage="shop.Ordr",
        )


@pytest.mark.parametrize("registers_serialized", [False, True])
def test_protobuf_values_are_read_with_the_schema_of_a_registry(
    tmp_path: Path, order: bytes, registry: FakeRegistry, registers_serialized: bool
) -> None:
    """Apicurio fails to serialize what was registered in that form, and has it as it is."""
    serialized = base64.b64encode(order_file().SerializeToString()).decode()
    answer = {"id": 4, "schemaType": "PROTOBUF", "schema": serialized}
    for path in ("/subjects/t-value/versions/latest", "/schemas/ids/4"):
        if registers_serialized:
            registry.failures.add(f"{path}?format=serialized")
        registry.answers[path if registers_serialized else f"{path}?format=serialized"] = answer
    values = [framed(4, b"\x00" + order), framed(4, b"\x02\x00" + order), framed(4, b"\xff")]
    archive = archive_of(tmp_path, values)
    rows = values_of(archive, valueFormat="protobuf", registryurl=registry.url, valueErrors="null")
    assert rows == [ORDER_COLUMNS, ORDER_COLUMNS, None]

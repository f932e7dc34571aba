"""Values become columns: each format, with and without a registry, and what does not parse."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from strandline.spark_lake import scan
from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.spark_lake.values.decoders.avro_values import AvroValues
from strandline.spark_lake.values.decoders.decoder import UnparsableValue
from strandline.spark_lake.values.decoders.json_values import JsonValues
from strandline.spark_lake.values.schema import registry as registry_module
from strandline.spark_lake.values.schema.ddl import parse_columns
from strandline.storage.errors import AccessDenied, InvalidConfig, ObjectCorrupt, TierUnavailable
from strandline.storage.records.batch.record import Record, encode_batch
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder
from tests.unit.spark_lake.fake_registry import FakeRegistry

MOMENT = dt.datetime(2024, 2, 1, 10, 30, tzinfo=dt.UTC)


def archive_of(folder: Path, values: Sequence[bytes | None]) -> ArchiveBuilder:
    """Topic `t` with these values, at offsets 0, 1, ..."""
    archive = ArchiveBuilder(folder)
    archive.add_topic("t")
    records = [
        Record(offset=n, timestamp_ms=START_MS, key=b"k", value=value)
        for n, value in enumerate(values)
    ]
    archive.add_segment("t", [encode_batch(records[n : n + 3]) for n in range(0, len(records), 3)])
    return archive


def values_of(archive: ArchiveBuilder, **options: Any) -> list[Any]:
    named = {name.replace("registry", "schemaRegistry."): text for name, text in options.items()}
    return list(scan(archive.url, "t", options=named).read_all().column("value").to_pylist())


# --- JSON ------------------------------------------------------------------------------------

FLIGHT = "origin STRING, delay INT, day DATE, at TIMESTAMP, fare DECIMAL(6,2), legs ARRAY<BIGINT>"


def test_json_objects_become_columns(tmp_path: Path) -> None:
    full = {
        "origin": "JFK",
        "delay": -3,
        "day": "2024-02-01",
        "at": "2024-02-01T11:30:00+01:00",
        "fare": 12.5,
        "legs": [1, None],
        "spare": {"deep": [1]},
    }
    values = [json.dumps(full).encode(), None, b"{}", json.dumps(full, indent=2).encode(), b" {}\n"]
    rows = values_of(archive_of(tmp_path, values), valueFormat="json", valueSchema=FLIGHT)
    expected = {
        "origin": "JFK",
        "delay": -3,
        "day": dt.date(2024, 2, 1),
        "at": MOMENT,
        "fare": decimal.Decimal("12.50"),
        "legs": [1, None],
    }
    nothing = dict.fromkeys(expected)
    assert rows == [expected, None, nothing, expected, nothing]


BAD = [b"{", b"nonsense", b"", b'{"a":1}{"a":2}', b'{"a":"x"}', b'{"a":1.5}', b"[1]", b"\xff", b"3"]


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_such_object_is_refused_wherever_it_stands(bad: bytes) -> None:
    decoder = JsonValues(parse_columns("a INT", option="x"))
    for values in ([bad], [b'{"a":1}', bad, b"{}"]):
        with pytest.raises(UnparsableValue):
            decoder.decode(pa.array(values, pa.binary()))


def test_values_never_melt_into_each_other() -> None:
    decoder = JsonValues(parse_columns("a STRING, b INT", option="x"))
    for first, second in (
        (b'{"a":', b'"x"}{"a":"y"}'),
        (b'{"a":"}', b'{","b":1}'),
        (b'{"a":{}', b',"b":1}'),
        (b'{"b":1}{}', b""),
    ):
        with pytest.raises(UnparsableValue):
            decoder.decode(pa.array([first, second], pa.binary()))


def test_decimals_of_too_many_digits_do_not_parse(tmp_path: Path) -> None:
    """Arrow reads them, and Spark would take them for a number of its own."""
    texts = ['"1234.50"', '"123.45"', "123.4", '"123.456"', '"-999.99"', '"1e3"']
    archive = archive_of(tmp_path, [f'{{"a": [{text}]}}'.encode() for text in texts])
    rows = values_of(
        archive, valueFormat="json", valueSchema="a ARRAY<DECIMAL(5,2)>", valueErrors="null"
    )
    kept = [None, "123.45", "123.40", None, "-999.99", None]
    assert rows == [one and {"a": [decimal.Decimal(one)]} for one in kept]


@pytest.mark.parametrize("errors", ["null", "corrupt"])
def test_what_does_not_parse_costs_only_itself(tmp_path: Path, errors: str) -> None:
    values: list[bytes | None] = [json.dumps({"a": n}).encode() for n in range(40)]
    for place, bad in zip(range(1, 40, 4), BAD, strict=False):
        values[place] = bad
    values[2] = None
    archive = archive_of(tmp_path, values)
    options = {"valueFormat": "json", "valueSchema": "a INT", "valueErrors": errors}
    table = scan(archive.url, "t", options=options).read_all()
    places = list(range(1, 40, 4))[: len(BAD)]
    assert table.column("value").to_pylist() == [
        None if n in (2, *places) else {"a": n} for n in range(40)
    ]
    if errors == "corrupt":
        kept = [one for one in table.column("_corrupt").to_pylist() if one is not None]
        assert kept == BAD
    else:
        assert "_corrupt" not in table.column_names


def test_the_first_value_that_does_not_parse_is_named(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, [b"{}"] * 7 + [b"{"] + [b"{}"] * 3)
    with pytest.raises(ObjectCorrupt, match=r"at offset 7 does not parse.*valueErrors=null"):
        values_of(archive, valueFormat="json", valueSchema="a INT")


def test_columns_can_be_chosen_beside_decoded_values(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, [b'{"a":1}', b"{"])
    options = {"valueFormat": "json", "valueSchema": "a INT", "valueErrors": "corrupt"}
    only = scan(archive.url, "t", columns=["_corrupt", "offset"], options=options).read_all()
    assert only.to_pylist() == [
        {"_corrupt": None, "offset": 0},
        {"_corrupt": b"{", "offset": 1},
    ]
    found = scan(
        archive.url, "t", columns=["value"], filters=[("offset", "in", [0])], options=options
    ).read_all()
    assert found.to_pylist() == [{"value": {"a": 1}}]
    # Without the column nothing is parsed, and nothing can fail.
    strict = {"valueFormat": "json", "valueSchema": "a INT"}
    assert scan(archive.url, "t", columns=["offset"], options=strict).read_all().num_rows == 2


def test_text_that_is_no_utf_8_does_not_parse_and_null_stays_null(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, ["ключ".encode(), None, b"", b"\xff"])
    rows = values_of(archive, valueFormat="string", valueErrors="null")
    assert rows == ["ключ", None, "", None]
    with pytest.raises(ObjectCorrupt, match="offset 3 does not parse: it is no UTF-8"):
        values_of(archive, valueFormat="string")


# --- Avro ------------------------------------------------------------------------------------

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "lines", "type": {"type": "array", "items": "double"}},
    ],
}
OLD_ORDER = {**ORDER, "fields": [one for one in ORDER["fields"] if one["name"] != "note"]}  # type: ignore[index]
ORDER_ROW = {"id": 7, "note": "n", "kind": "B", "at": MOMENT, "tags": {"x": 1}, "lines": [0.5]}


def avro(row: dict[str, Any], schema: Any = ORDER) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def shown(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "tags": list(row["tags"].items())}


def test_avro_values_become_columns(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, [avro(ORDER_ROW), None, avro({**ORDER_ROW, "note": None})])
    rows = values_of(archive, valueFormat="avro", valueSchema=json.dumps(ORDER))
    assert rows == [shown(ORDER_ROW), None, shown({**ORDER_ROW, "note": None})]


@pytest.mark.parametrize("bad", [b"", b"\x0e", avro(ORDER_ROW) + b"x", b"\xff" * 30])
def test_damaged_avro_does_not_parse(bad: bytes) -> None:
    decoder = AvroValues(json.dumps(ORDER), None)
    with pytest.raises(UnparsableValue):
        decoder.decode(pa.array([bad], pa.binary()))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "no Avro schema"),
        ('["null", "int", "string"]', "union of several types"),
        ('{"type":"record","name":"R","fields":[{"name":"r","type":["null","R"]}]}', "itself"),
        ('{"type":"int","logicalType":"time-millis"}', "time-millis makes no column"),
        ('{"type":"long","logicalType":"local-timestamp-micros"}', "makes no column"),
        ('{"type":"bytes","logicalType":"decimal","precision":50}', "decimal of 50 digits"),
        ('{"type":"bytes","logicalType":"decimal"}', "'precision' is missing"),
        ('{"type":"fixed","name":"F","size":"x"}', "F has the size 'x'"),
        ('{"type":"fixed","name":"F","size":-1}', "F has the size -1"),
        ("5", "no Avro schema"),
        ("{}", "'type' is missing"),
        ('{"type":"record","name":"R","fields":[{"name":"f","type":"Q"}]}', "stands alone: Q"),
        (
            '{"type":"record","name":"R","fields":[{"name":"f","type":"int"},'
            '{"name":"f","type":"int"}]}',
            "R has two fields of one name",
        ),
    ],
)
def test_avro_schemas_that_make_no_columns_are_refused(schema: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        AvroValues(schema, None)


# --- a registry ------------------------------------------------------------------------------


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + payload


def test_each_avro_value_names_its_writers_schema(tmp_path: Path, registry: FakeRegistry) -> None:
    latest = {"id": 9, "schema": json.dumps(ORDER)}
    registry.answers = {
        "/subjects/t-value/versions/latest": latest,
        "/schemas/ids/8": {"schema": json.dumps(OLD_ORDER)},
        "/schemas/ids/9": {"schema": json.dumps(ORDER)},
    }
    old = {name: value for name, value in ORDER_ROW.items() if name != "note"}
    values = [framed(9, avro(ORDER_ROW)), framed(8, avro(old, OLD_ORDER)), framed(77, b""), b"x"]
    archive = archive_of(tmp_path, values * 5)
    options = {"valueFormat": "avro", "registryurl": registry.url, "valueErrors": "null"}
    rows = values_of(archive, **options)
    assert rows == [shown(ORDER_ROW), shown({**ORDER_ROW, "note": None}), None, None] * 5
    assert registry.asked.count("/schemas/ids/8") == 1


def test_a_registry_that_refuses_or_knows_nothing_is_explained(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    archive = archive_of(tmp_path, [b"x"])
    with pytest.raises(InvalidConfig, match=r"has no /subjects/t-value.*valueSubject"):
        values_of(archive, valueFormat="avro", registryurl=registry.url)
    latest = "/subjects/s/versions/latest"
    for path in (latest, latest + "?format=serialized"):
        registry.answers[path] = {"id": 1, "schema": json.dumps(ORDER)}
    registry.password = "me:secret"
    with pytest.raises(AccessDenied, match=r"schemaRegistry\.auth"):
        values_of(archive, valueFormat="avro", valueSubject="s", registryurl=registry.url)
    options = {"registryurl": registry.url, "registryauth": "me:secret", "valueSubject": "s"}
    with pytest.raises(ObjectCorrupt, match="offset 0 does not parse"):
        values_of(archive, valueFormat="avro", **options)
    with pytest.raises(InvalidConfig, match="the registry has avro"):
        values_of(archive, valueFormat="protobuf", **options)


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ([], "refused|reset|closed"),
        ([b""], "closed connection"),
        ([b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"], "HTTP 500"),
        ([OK + b'Content-Length: 90\r\n\r\n{"schema": "'], "IncompleteRead"),
        ([OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"], "IncompleteRead"),
        ([OK + b"\r\n<html>Sign in</html>"], "JSONDecodeError"),
        ([OK + b"\r\n[1, 2]"], "is this a schema registry"),
        ([OK + b'\r\n{"schema": {"type": "record"}}'], "is this a schema registry"),
        ([OK + b"\r\n", *[b"[" * 50_000] * 20], "RecursionError"),
        ([OK + b"\r\n", *[b" " * 100_000] * 20], "longer than 1000000 bytes"),
        ([OK + b"\r\n", *[b" "] * 100], "did not end within"),
        ([b"\x16\x03\x01 no HTTP"], "BadStatusLine|closed"),
    ],
    ids=[
        "away",
        "silent",
        "failing",
        "cut",
        "cut chunk",
        "a page",
        "a list",
        "an object",
        "deep",
        "endless",
        "dripping",
        "other protocol",
    ],
)
@pytest.mark.parametrize("errors", ["null", "corrupt"])
def test_a_registry_that_is_away_or_lies_is_an_error_and_makes_no_value_null(
    tmp_path: Path,
    registry: FakeRegistry,
    sent: list[bytes],
    says: str,
    errors: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "did not end" in says:
        monkeypatch.setattr(registry_module, "ANSWER_S_MAX", 0.1)
    monkeypatch.setattr(registry_module, "ANSWER_BYTES_MAX", 1_000_000)
    archive = archive_of(tmp_path, [framed(8, avro(ORDER_ROW)), None])
    if sent:
        registry.bytes_of_all = sent
    else:
        registry.server_close()
    given = {"valueFormat": "avro", "registryurl": registry.url, "valueErrors": errors}
    with pytest.raises(TierUnavailable, match=says) as caught:
        values_of(archive, valueSchema=json.dumps(ORDER), **given)
    assert f"{registry.url}/schemas/ids/8" in str(caught.value)
    with pytest.raises(TierUnavailable, match=says) as caught:
        values_of(archive, **given)
    assert f"{registry.url}/subjects/t-value/versions/latest" in str(caught.value)


def test_a_registry_that_sends_elsewhere_does_not_send_the_password_along(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    archive = archive_of(tmp_path, [framed(8, avro(ORDER_ROW))])
    given = {"valueFormat": "avro", "registryurl": registry.url, "registryauth": "me:secret"}
    other = registry.url.replace("127.0.0.1", "localhost")

    def answer(url: str) -> list[bytes]:
        found = f"HTTP/1.1 307 Over there\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n"
        return [found.encode()]

    registry.bytes_of_all = answer(f"{other}/subjects/t-value/versions/latest")
    with pytest.raises(InvalidConfig, match=rf"on to {other}/.*schemaRegistry\.url"):
        values_of(archive, **given)
    assert len(registry.asked) == 1
    # Within the host it goes round in circles, a few times.
    registry.bytes_of_all = answer("/again")
    with pytest.raises(TierUnavailable, match="HTTP 307"):
        values_of(archive, **given)
    assert "/again" in registry.asked, registry.asked


def test_framed_json_is_read_behind_its_frame(tmp_path: Path, registry: FakeRegistry) -> None:
    archive = archive_of(tmp_path, [framed(3, b'{"a":1}'), None])
    rows = values_of(archive, valueFormat="json", valueSchema="a INT", registryurl=registry.url)
    assert rows == [{"a": 1}, None]


# --- Protobuf --------------------------------------------------------------------------------


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """shop.Order, with most kinds of fields."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="GIFT", number=1)
    order = file.message_type.add(name="Order")
    line = file.message_type.add(name="Line")
    field = descriptor_pb2.FieldDescriptorProto
    line.field.add(name="sku", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    message, repeated = field.TYPE_MESSAGE, field.LABEL_REPEATED
    for number, (name, type_, label, type_name) in enumerate(
        [
            ("id", field.TYPE_UINT64, field.LABEL_OPTIONAL, ""),
            ("kind", field.TYPE_ENUM, field.LABEL_OPTIONAL, ".shop.Kind"),
            ("first", message, field.LABEL_OPTIONAL, ".shop.Line"),
            ("lines", message, repeated, ".shop.Line"),
            ("tags", message, repeated, ".shop.Order.TagsEntry"),
            ("at", message, field.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("raw", field.TYPE_BYTES, field.LABEL_OPTIONAL, ""),
        ],
        start=1,
    ):
        order.field.add(
            name=name, number=number, type=type_, label=label, type_name=type_name or None
        )
    return file


def order_message() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(order_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))()


@pytest.fixture
def order() -> bytes:
    message = order_message()
    message.id = 2**63 + 5
    message.kind = 1
    message.lines.add(sku="a")
    message.lines.add(sku="b")
    message.tags["x"] = 3
    message.at.FromDatetime(MOMENT.replace(tzinfo=None))
    message.raw = b"\x00\xff"
    return bytes(message.SerializeToString())


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


def test_protobuf_values_are_read_with_the_schema_of_a_registry(
    tmp_path: Path, order: bytes, registry: FakeRegistry
) -> None:
    serialized = base64.b64encode(order_file().SerializeToString()).decode()
    answer = {"id": 4, "schemaType": "PROTOBUF", "schema": serialized}
    for path in ("/subjects/t-value/versions/latest", "/schemas/ids/4"):
        registry.answers[f"{path}?format=serialized"] = answer
    values = [framed(4, b"\x00" + order), framed(4, b"\x02\x00" + order), framed(4, b"\xff")]
    archive = archive_of(tmp_path, values)
    rows = values_of(archive, valueFormat="protobuf", registryurl=registry.url, valueErrors="null")
    assert rows == [ORDER_COLUMNS, ORDER_COLUMNS, None]


# --- schemas ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a INT, b STRING",
        "`a b` bigint not null, c: decimal(12, 3)",
        "s STRUCT<x: DOUBLE, y: ARRAY<STRUCT<z: BOOLEAN>>>, m MAP<STRING, ARRAY<TINYINT>>",
        "d DATE, t TIMESTAMP, f float, h smallint, n binary, e decimal",
    ],
)
def test_column_types_are_sparks_to_the_letter(text: str) -> None:
    made = parse_columns(text, option="valueSchema")
    assert to_arrow_type(from_arrow_type(made), timezone="UTC").equals(made)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "a type is missing"),
        ("a INTEGR", "'integr' is no type"),
        ("a INT b", "'b' was not expected"),
        ("a ARRAY<INT", "'>' is expected where the end is"),
        ("a INT, a INT", "twice"),
        ("a DECIMAL(50)", "impossible"),
        ("a INT; b INT", "is no type"),
        ("x " + "ARRAY<" * 40 + "INT" + ">" * 40, "nested more than"),
    ],
)
def test_wrong_column_types_are_explained(text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        parse_columns(text, option="valueSchema")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"valueFormat": "jsn"}, "it may be raw or string or json"),
        ({"valueFormat": "json"}, "valueSchema is missing"),
        ({"valueFormat": "json", "valueSchema": "m MAP<STRING, INT>"}, "has no maps"),
        ({"valueFormat": "avro"}, r"needs option valueSchema or schemaRegistry\.url"),
        ({"valueFormat": "protobuf", "valueDescriptors": "/none"}, "valueDescriptors must be"),
        ({"valueSchema": "a INT"}, "means nothing with valueFormat=raw"),
        ({"valueFormat": "string", "valueMessage": "M"}, "goes with protobuf"),
        ({"valueErrors": "null"}, "means nothing with valueFormat=raw"),
        ({"valueFormat": "avro", "schemaRegistry.url": "registry:8081"}, "must be http://host"),
        ({"valueFormat": "avro", "schemaRegistry.url": "file:///etc"}, "must be http://host"),
    ],
)
def test_wrong_value_options_are_refused(
    tmp_path: Path, options: dict[str, str], says: str
) -> None:
    source = StrandlineDataSource({"path": str(tmp_path), "subscribe": "t", **options})
    with pytest.raises(InvalidConfig, match=says):
        source.schema()

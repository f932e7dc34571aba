"""Schemas of a registry that refer to others there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from strandline.storage.errors import InvalidConfig, ObjectCorrupt, TierUnavailable
from tests.unit.spark_lake.fake_registry import FakeRegistry
from tests.unit.spark_lake.values.protobuf_files import BY_ID, answer_of, shop
from tests.unit.spark_lake.values.protobuf_files import LATEST as LATEST_FILE
from tests.unit.spark_lake.values.valued_archive import archive_of, avro, framed, values_of

LATEST = "/subjects/t-value/versions/latest"
COUNTRY = {"type": "enum", "name": "Country", "namespace": "geo", "symbols": ["DE", "FR"]}
ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "geo",
    "fields": [
        {"name": "zip", "type": "string"},
        # Its namespace is the address's, wherever that is put.
        {"name": "country", "type": "Country"},
    ],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "home", "type": "geo.Address"},
        {"name": "sent_to", "type": {"type": "array", "items": ["null", "geo.Address"]}},
        {"name": "paid_in", "type": {"type": "map", "values": "geo.Country"}, "default": {}},
    ],
}
# The same in one piece: what a producer's serializer writes with.
WHOLE = json.loads(json.dumps(ORDER))
WHOLE["fields"][1]["type"] = json.loads(json.dumps(ADDRESS))
WHOLE["fields"][1]["type"]["fields"][1]["type"] = COUNTRY

HOME = {"zip": "80331", "country": "DE"}
ROW = {"id": 7, "home": HOME, "sent_to": [None, HOME], "paid_in": {"x": "FR"}}
SHOWN = {**ROW, "paid_in": [("x", "FR")]}


def reference(name: str, subject: str, version: int) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": version}


def answers() -> dict[str, Any]:
    """Order refers to Address and Country, and Address to Country."""
    of_country = reference("geo.Country", "geo/country", 3)
    order = {
        "schema": json.dumps(ORDER),
        "references": [reference("geo.Address", "geo.Address", 1), of_country],
    }
    return {
        LATEST: {"id": 9, **order},
        "/schemas/ids/9": order,
        "/subjects/geo.Address/versions/1": {
            "schema": json.dumps(ADDRESS),
            "references": [of_country],
        },
        "/subjects/geo%2Fcountry/versions/3": {"schema": json.dumps(COUNTRY)},
    }


def test_schemas_that_refer_to_others_are_read_with_them(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    """As the reader's schema, as a writer's alone, and as an older one beside it."""
    registry.answers = answers()
    narrow = {**ORDER, "fields": ORDER["fields"][:2]}
    older = {"schema": json.dumps(narrow), "references": registry.answers[LATEST]["references"]}
    registry.answers["/schemas/ids/8"] = older
    narrow_whole = {**WHOLE, "fields": WHOLE["fields"][:2]}
    archive = archive_of(tmp_path, [framed(9, avro(ROW, WHOLE)), None] * 3)
    options = {"valueFormat": "avro", "registryurl": registry.url}
    assert values_of(archive, **options) == [SHOWN, None] * 3
    # What never changes is asked for once.
    assert registry.asked.count("/subjects/geo%2Fcountry/versions/3") == 1
    given = {**options, "valueSchema": json.dumps(narrow_whole)}
    assert values_of(archive, **given) == [{"id": 7, "home": HOME}, None] * 3
    before = archive_of(tmp_path / "2", [framed(8, avro({"id": 1, "home": HOME}, narrow_whole))])
    with pytest.raises(ObjectCorrupt, match="sent_to"):
        values_of(before, **options)
    with_default = [{**ORDER["fields"][2], "default": []}, ORDER["fields"][3]]
    newer = {**ORDER, "fields": [*ORDER["fields"][:2], *with_default]}
    registry.answers[LATEST]["schema"] = json.dumps(newer)
    assert values_of(before, **options) == [{"id": 1, "home": HOME, "sent_to": [], "paid_in": []}]


def test_what_is_referred_to_and_missing_is_told(tmp_path: Path, registry: FakeRegistry) -> None:
    registry.answers = answers()
    archive = archive_of(tmp_path, [framed(9, avro(ROW, WHOLE))])
    options = {"valueFormat": "avro", "registryurl": registry.url}
    del registry.answers["/subjects/geo%2Fcountry/versions/3"]
    with pytest.raises(InvalidConfig, match="has no /subjects/geo%2Fcountry/versions/3"):
        values_of(archive, **options)
    given = {**options, "valueSchema": json.dumps(WHOLE)}
    with pytest.raises(ObjectCorrupt, match=r"schema 9 refers to others: .*geo%2Fcountry"):
        values_of(archive, **given)
    for said in ("geo.Address", [{"name": "geo.Address"}], [[]]):
        registry.answers[LATEST] = {"schema": json.dumps(ORDER), "references": said}
        with pytest.raises(TierUnavailable, match="is this a schema registry"):
            values_of(archive, **options)


@pytest.mark.parametrize("round_trip", [True, False])
def test_references_without_end_are_refused(
    tmp_path: Path, registry: FakeRegistry, round_trip: bool
) -> None:
    """Those that meet themselves are followed once; others until there are too many."""
    count = 2 if round_trip else 300
    for number in range(count):
        following = (number + 1) % count
        registry.answers[f"/subjects/s/versions/{number}"] = {
            "schema": json.dumps({**COUNTRY, "name": f"C{number}"}),
            "references": [reference(f"geo.C{following}", "s", following)],
        }
    registry.answers[LATEST] = {
        "schema": json.dumps({**ORDER, "fields": [{"name": "c", "type": "geo.C0"}]}),
        "references": [reference("geo.C0", "s", 0)],
    }
    archive = archive_of(tmp_path, [None])
    options = {"valueFormat": "avro", "registryurl": registry.url}
    if round_trip:
        assert values_of(archive, **options) == [None]
    else:
        with pytest.raises(InvalidConfig, match="refers to more than 200 others"):
            values_of(archive, **options)


def test_files_that_import_others_are_read_with_them(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    """The registry calls every file the same; the importing one has their names."""
    field = descriptor_pb2.FieldDescriptorProto
    money = descriptor_pb2.FileDescriptorProto(name="default", package="pay", syntax="proto3")
    money.message_type.add(name="Money").field.add(
        name="cents", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL
    )
    price = descriptor_pb2.FileDescriptorProto(name="default", package="pay", syntax="proto3")
    price.dependency.append("pay/money.proto")
    price.message_type.add(name="Price").field.add(
        name="net",
        number=1,
        type=field.TYPE_MESSAGE,
        type_name=".pay.Money",
        label=field.LABEL_OPTIONAL,
    )
    order = shop()
    order.name = "default"
    order.dependency.append("pay/price.proto")
    order.message_type[0].field.add(
        name="price",
        number=2,
        type=field.TYPE_MESSAGE,
        type_name=".pay.Price",
        label=field.LABEL_OPTIONAL,
    )
    refers = {"references": [reference("pay/price.proto", "price", 1)]}
    registry.answers = {
        LATEST_FILE: {**answer_of(order), **refers},
        BY_ID.format(1): {**answer_of(order), **refers},
        "/subjects/price/versions/1?format=serialized": {
            **answer_of(price),
            "references": [reference("pay/money.proto", "money", 1)],
        },
        "/subjects/money/versions/1?format=serialized": answer_of(money),
    }
    value = b"\x08\x03" + b"\x12\x04\x0a\x02\x08\x05"
    options = {"valueFormat": "protobuf", "registryurl": registry.url}
    rows = values_of(archive_of(tmp_path, [framed(1, b"\0" + value)]), **options)
    assert rows == [{"amount": 3, "price": {"net": {"cents": 5}}}]

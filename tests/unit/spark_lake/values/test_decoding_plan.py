"""Values become columns: each format, with and without a registry, and what does not parse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.spark_lake import scan
from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.storage.errors import InvalidConfig, ObjectCorrupt
from tests.unit.spark_lake.values.valued_archive import (
    BAD,
    archive_of,
    values_of,
)


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
    with pytest.raises(
        ObjectCorrupt, match=r"at offset 7 does not parse.*valueErrors=null"
    ) as told:
        values_of(archive, valueFormat="json", valueSchema="a INT")
    # What helps against a batch that is no batch.
    assert "checksum" not in str(told.value)


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

"""A schema registry: which schema a value names, and a registry that refuses, is away or lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.spark_lake.values.schema import registry as registry_module
from strandline.storage.errors import AccessDenied, InvalidConfig, ObjectCorrupt, TierUnavailable
from tests.unit.spark_lake.fake_registry import FakeRegistry
from tests.unit.spark_lake.values.valued_archive import (
    ORDER,
    ORDER_ROW,
    archive_of,
    avro,
    framed,
    shown,
    values_of,
)

OLD_ORDER = {**ORDER, "fields": [one for one in ORDER["fields"] if one["name"] != "note"]}  # type: ignore[index]


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
    with pytest.raises(AccessDenied, match=r"schemaRegistry\.userPassword"):
        values_of(archive, valueFormat="avro", valueSubject="s", registryurl=registry.url)
    options = {
        "registryurl": registry.url,
        "registryuserPassword": "me:secret",
        "valueSubject": "s",
    }
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
    given = {
        "valueFormat": "avro",
        "registryurl": registry.url,
        "registryuserPassword": "me:secret",
    }
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


def test_a_registry_that_fails_to_serialize_the_source_of_a_file_is_unavailable(
    registry: FakeRegistry,
) -> None:
    """It may be overloaded: the source of a file is nothing to give up for."""
    path = "/schemas/ids/4"
    registry.failures.add(f"{path}?format=serialized")
    source = 'syntax = "proto3"; message M {}'
    registry.answers[path] = {"schemaType": "PROTOBUF", "schema": source}
    with pytest.raises(TierUnavailable, match="HTTP 500"):
        registry_module.Registry(url=registry.url).fetch(path, serialized=True)

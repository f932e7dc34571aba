"""Records that parse and that no table can have: told by offset, or kept in the second table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from strandline.spark_lake.table.run import TableRequest, TableRun
from strandline.storage.errors import CorruptRecords, ObjectCorrupt
from strandline.storage.records.batch.record import Record
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
from tests.unit.spark_lake.table.rig import NoProgress, make_run
from tests.unit.spark_lake.table.test_delta import DELTA

pytestmark = pytest.mark.slow

REJECT = {"on_error": "reject"}
FORMATS: list[dict[str, Any]] = [{}, DELTA]
MICROSECONDS = START_MS * 1000
NANOSECONDS = START_MS * 1_000_000


def archive_with(
    folder: Path, records: Sequence[tuple[int, bytes | None, bytes | None]]
) -> ArchiveBuilder:
    """Topic `orders` with these timestamps, keys and values, at offsets 0, 1, ..."""
    archive = ArchiveBuilder(folder)
    archive.add_topic("orders")
    made = [
        Record(offset=n, timestamp_ms=timestamp_ms, key=key, value=value, headers=())
        for n, (timestamp_ms, key, value) in enumerate(records)
    ]
    archive.add_segment("orders", make_batches(made))
    return archive


def tables_of(
    archive: ArchiveBuilder, more: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of both tables."""
    place = archive.path.with_name("archive-tables") / "lake"
    if "format" in more:
        frames = [pl.read_delta(str(place / one)) for one in ("orders", "orders_rejected")]
    else:
        run = make_run(archive, **more)
        assert run.store.load() is not None
        assert run.rejected.load() is not None
        stores: list[Any] = [run.store, run.rejected]
        frames = [pl.DataFrame(one.loaded.scan().to_arrow()) for one in stores]
    first, second = (one.sort("_offset").to_dicts() for one in frames)
    return first, second


def run_of(archive: ArchiveBuilder, *, value_format: str, **more: Any) -> TableRun:
    """A table of values in JSON, or of their bytes."""
    options = {"valueFormat": value_format}
    if value_format == "json":
        options["valueSchema"] = "id BIGINT"
    request = TableRequest(
        remote=archive.url, topic="orders", table="lake.orders", options=options, **more
    )
    return TableRun(request)


@pytest.mark.parametrize("far_ms", [MICROSECONDS, NANOSECONDS, -NANOSECONDS])
@pytest.mark.parametrize("value_format", ["json", "raw"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_record_of_no_year_is_told_or_kept_without_its_time(
    tmp_path: Path, table_format: dict[str, Any], value_format: str, far_ms: int
) -> None:
    """Producers write microseconds, or nanoseconds, where milliseconds belong."""
    times = [START_MS, far_ms, START_MS + 1]
    archive = archive_with(tmp_path / "archive", [(one, b"k", b'{"id": 1}') for one in times])
    given = {"value_format": value_format, **table_format}
    with pytest.raises((CorruptRecords, ObjectCorrupt), match=r"offset 1\b") as told:
        run_of(archive, **given).sync(NoProgress())
    assert "--on-error reject" in str(told.value)
    run = run_of(archive, **given, **REJECT)
    report = run.sync(NoProgress())
    assert (report.rows, report.rejected_rows) == (2, 1)
    rows, (rejected,) = tables_of(archive, table_format)
    assert [row["_offset"] for row in rows] == [0, 2]
    assert (rejected["_offset"], rejected["_timestamp"]) == (1, None)
    assert rejected["_value"] == b'{"id": 1}'
    assert "years 1 to 9999" in rejected["_reason"]
    if not table_format:
        assert run.check(deep=True).findings == []


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_field_of_no_year_is_told_or_kept_with_its_bytes(
    tmp_path: Path, table_format: dict[str, Any]
) -> None:
    good = {"at": "2024-02-01T10:30:00Z", "in": {"t": None}, "times": []}
    # The last moment that there is, which databases write for "for ever".
    last = {**good, "at": "9999-12-31T23:59:59.999999Z"}
    far = "0000-01-01T00:00:00Z"
    values = [
        good,
        {**good, "at": far},
        {**good, "in": {"t": far}},
        {**good, "times": [None, good["at"], far]},
        last,
        {**good, "at": None, "times": None, "in": None},
    ]
    encoded = [json.dumps(one).encode() for one in values]
    archive = archive_with(tmp_path / "archive", [(START_MS, b"k", one) for one in encoded])
    schema = "at TIMESTAMP, `in` STRUCT<t: TIMESTAMP>, times ARRAY<TIMESTAMP>"
    with pytest.raises(CorruptRecords, match=r"offset 1 of orders partition 0.*field at"):
        make_run(archive, schema, **table_format).sync(NoProgress())
    report = make_run(archive, schema, **table_format, **REJECT).sync(NoProgress())
    assert (report.rows, report.rejected_rows) == (3, 3)
    rows, rejected = tables_of(archive, table_format)
    assert [row["_offset"] for row in rows] == [0, 4, 5]
    assert [row["_value"] for row in rejected] == encoded[1:4]
    assert all(row["_timestamp"] is not None for row in rejected)
    for row, name in zip(rejected, ("at", "in", "times"), strict=True):
        assert f"field {name} " in row["_reason"]


@pytest.mark.parametrize("value_format", ["json", "raw"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_record_without_a_key_is_told_or_kept_and_upserts_go_on(
    tmp_path: Path, table_format: dict[str, Any], value_format: str
) -> None:
    keys = [b"a", None, b"a", None]
    archive = archive_with(tmp_path / "archive", [(START_MS, one, b'{"id": 1}') for one in keys])
    given = {"value_format": value_format, "mode": "upsert", **table_format}
    with pytest.raises(CorruptRecords, match=r"offset 1 of orders .*no key.*--on-error reject"):
        run_of(archive, **given).sync(NoProgress())
    report = run_of(archive, **given, **REJECT).sync(NoProgress())
    assert (report.rows, report.rejected_rows) == (1, 2)
    rows, rejected = tables_of(archive, table_format)
    assert [row["_offset"] for row in rows] == [2]
    assert [(row["_offset"], row["_value"]) for row in rejected] == [
        (1, b'{"id": 1}'),
        (3, b'{"id": 1}'),
    ]


def test_events_of_debezium_without_a_row_are_told_or_kept_and_upserts_go_on(
    tmp_path: Path,
) -> None:
    """Truncate and message; an event whose `after` the schema does not have is one, too."""
    values: list[dict[str, Any] | None] = [
        {"op": "c", "after": {"id": 1}},
        {"op": "t", "after": None},
        {"op": "m", "message": {"prefix": "p"}},
        {"op": "u", "after": None},
        {"op": "u", "after": {"id": 2}},
        None,
    ]
    values.append({"payload": {"op": "c", "after": {"id": 3}}})
    keys = [b"a", None, b"m", b"a", b"b", b"c", b"d"]
    archive = archive_with(
        tmp_path / "archive",
        [
            (START_MS, key, None if one is None else json.dumps(one).encode())
            for key, one in zip(keys, values, strict=True)
        ],
    )
    schema = "op STRING, after STRUCT<id: BIGINT>"
    given = {"mode": "debezium"}
    with pytest.raises(CorruptRecords, match=r"offset 1 of orders .*op t .*--on-error reject"):
        make_run(archive, schema, **given).sync(NoProgress())
    report = make_run(archive, schema, **given, **REJECT).sync(NoProgress())
    assert (report.rows, report.rejected_rows) == (2, 4)
    rows, rejected = tables_of(archive, given)
    assert (
        "where the schema of the values has them: in payload, or not" in rejected.pop()["_reason"]
    )
    assert [(row["_key"], row["id"]) for row in rows] == [(b"a", 1), (b"b", 2)]
    assert [row["_value"] for row in rejected] == [json.dumps(one).encode() for one in values[1:4]]
    assert [row["_reason"][:5] for row in rejected] == ["op t ", "op m ", "op u "]

"""Partitions of rows that are hard to place: before 1970, long texts, empty texts."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import pytest
from deltalake import DeltaTable

from strandline.storage.records.batch.record import Record
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
from tests.unit.spark_lake.table.rig import iceberg, make_run, sync
from tests.unit.spark_lake.table.test_delta import DELTA
from tests.unit.spark_lake.table.test_upkeep import NOW

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000
FORMATS: list[dict[str, Any]] = [{}, DELTA]
# Longer than a folder's name may be: as it is, and with each byte written as %XX.
CITIES = ["Oslo", "x" * 300, "\u4e2d" * 30, "a/b", "", None]


def add(archive: ArchiveBuilder, *, base: int, times: Mapping[int, int] | None = None) -> None:
    """A record for each city; the times are those of offsets."""
    records = [
        Record(
            offset=base + number,
            timestamp_ms=(times or {}).get(base + number, START_MS),
            key=b"k",
            value=json.dumps({"id": base + number, "city": city}).encode(),
            headers=(),
        )
        for number, city in enumerate(CITIES)
    ]
    archive.add_segment("places", make_batches(records))


@pytest.fixture
def given(orders: ArchiveBuilder) -> dict[str, Any]:
    orders.add_topic("places")
    return {"topic": "places", "table": "lake.places", "schema": "id BIGINT, city STRING"}


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_row_of_before_1970_is_in_the_partition_of_its_day(
    orders: ArchiveBuilder, given: dict[str, Any], table_format: dict[str, Any]
) -> None:
    first, last = -DAY_MS - 1, -DAY_MS
    times = {0: first, 1: last, 2: last - 999, 3: -1, 4: 0, 5: -1000}
    add(orders, base=0, times=times)
    sync(orders, **given, **table_format)
    if table_format:
        found = DeltaTable(f"{orders.url}-tables/lake/places").to_pyarrow_table().to_pylist()
        assert all(row["_timestamp"].date() == row["_timestamp_day"] for row in found)
        return
    run = make_run(orders, **given)
    table = iceberg(run)
    rows = table.scan(row_filter="_timestamp < '1969-12-31T00:00:00+00:00'").to_arrow()
    assert sorted(rows.column("id").to_pylist()) == [0, 2]
    for file in run.upkeep().live_files():
        days = {row["_timestamp"].date() for b in run.upkeep().read(file) for row in b.to_pylist()}
        (day,) = file.key[1]
        assert days == {dt.date(1970, 1, 1) + dt.timedelta(days=day)}


def rows_of(orders: ArchiveBuilder, given: dict[str, Any]) -> dict[int, str | None]:
    """The city of each id, by an engine that is not ours."""
    if "format" in given:
        rows = DeltaTable(f"{orders.url}-tables/lake/places").to_pyarrow_table()
    else:
        rows = iceberg(make_run(orders, **given)).scan().to_arrow()
    return {row["id"]: row["city"] for row in rows.to_pylist()}


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_is_partitioned_by_texts_of_any_length(
    orders: ArchiveBuilder, given: dict[str, Any], table_format: dict[str, Any]
) -> None:
    """Longer ones than a file's name may be; and Delta has no empty text, but null."""
    given |= {"partition_by": ["city"], **table_format}
    for base in (0, len(CITIES)):
        add(orders, base=base)
        sync(orders, **given)
    wanted = {
        base + number: (city or None) if table_format else city
        for base in (0, len(CITIES))
        for number, city in enumerate(CITIES)
    }
    run = make_run(orders, **given)
    assert rows_of(orders, given) == wanted
    assert run.check(deep=True).findings == []
    assert run.maintain(None, NOW).rewritten_files
    assert rows_of(orders, given) == wanted
    assert run.check(deep=True).findings == []

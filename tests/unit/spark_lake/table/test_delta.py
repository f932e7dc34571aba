"""Delta tables keep the promises of Iceberg tables: each record once, whatever happens."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from strandline.spark_lake.table.delta import store as store_module
from strandline.spark_lake.table.delta.store import MAPPING_PROPERTY
from strandline.spark_lake.table.errors import TableRefused
from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.errors import InvalidConfig
from strandline.storage.records.batch.record import Record
from tests.support.heavy import all_but
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
from tests.unit.spark_lake.table.rig import (
    NoProgress,
    add_rows,
    data_files,
    every,
    make_run,
    sync,
    value_of,
)
from tests.unit.spark_lake.table.test_rejected import NUMBERED, parses
from tests.unit.spark_lake.table.test_upsert import SCHEMA as UPSERT_SCHEMA
from tests.unit.spark_lake.table.test_upsert import ChangingArchive

pytestmark = pytest.mark.slow

DELTA: dict[str, Any] = {"format": "delta"}
TABLE_POINTS = [point for point in CRASH_POINTS if point.startswith("table.")]


def table_of(archive: ArchiveBuilder, name: str = "orders") -> DeltaTable:
    return DeltaTable(f"{archive.url}-tables/lake/{name}")


def rows_of(archive: ArchiveBuilder, name: str = "orders") -> list[tuple[int, int]]:
    rows = pl.read_delta(f"{archive.path}-tables/lake/{name}")
    return sorted(rows.select("_topic_partition", "_offset").iter_rows())


def test_a_table_has_every_record_once_and_its_values(orders: ArchiveBuilder) -> None:
    assert sync(orders, **DELTA).rows == 160
    assert sync(orders, **DELTA).commits == 0
    add_rows(orders, base=80)
    report = sync(orders, **DELTA)
    assert (report.rows, report.next_offsets) == (80, {0: 120, 1: 120})
    assert rows_of(orders) == every(range(120))
    found = pl.read_delta(f"{orders.path}-tables/lake/orders").sort("_topic_partition", "_offset")
    for row in found.head(120).iter_rows(named=True):
        offset = row["_offset"]
        is_null = value_of(offset) is None
        assert row["id"] == (None if is_null else offset)
        tags = None if is_null or offset % 2 == 0 else ["t"] * (offset % 3)
        assert row["tags"] == tags
        assert row["_timestamp_day"] == row["_timestamp"].date()


def test_readers_skip_files_by_day_and_by_statistics(orders: ArchiveBuilder) -> None:
    sync(orders, **DELTA)
    actions = pa.table(table_of(orders).get_add_actions(flatten=True)).to_pylist()
    assert len({one["partition._timestamp_day"] for one in actions}) == 5
    assert all(one["min._offset"] <= one["max._offset"] for one in actions)
    late = pl.scan_delta(f"{orders.path}-tables/lake/orders").filter(pl.col("_offset") >= 70)
    assert late.collect().height == 20


@pytest.mark.parametrize(
    "point", all_but(["table.before-commit", "table.after-commit"], TABLE_POINTS)
)
def test_after_a_death_at_any_step_the_next_sync_completes_both_tables(
    orders: ArchiveBuilder, point: str
) -> None:
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        sync(orders, NUMBERED, **DELTA, on_error="reject")
    sync(orders, NUMBERED, **DELTA, on_error="reject")
    assert rows_of(orders) == every([one for one in range(80) if parses(one)])
    rejected = rows_of(orders, "orders_rejected")
    assert rejected == every([one for one in range(80) if not parses(one)])


def test_of_two_syncs_that_wrote_the_same_rows_one_drops_its_files(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_run(orders, **DELTA)
    commit = first.store.commit

    def second_is_first(*given: Any) -> None:
        monkeypatch.setattr(first.store, "commit", commit)
        sync(orders, **DELTA)
        commit(*given)

    monkeypatch.setattr(first.store, "commit", second_is_first)
    assert first.sync(NoProgress()).lost_rounds == 1
    assert rows_of(orders) == every(range(80))
    named = {path.removeprefix("file://") for path in table_of(orders).file_uris()}
    assert named == set(data_files(orders))


@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_whose_answer_is_lost_is_in_the_table_once(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    commit = DeltaTable.create_write_transaction

    def answer_is_lost(table: DeltaTable, *given: Any, **how: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
        if lands:
            commit(table, *given, **how)
        raise TimeoutError("no answer")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", answer_is_lost)
    sync(orders, **DELTA)
    assert rows_of(orders) == every(range(80))


def test_what_the_table_has_outlives_the_cleanup_of_its_log(orders: ArchiveBuilder) -> None:
    sync(orders, **DELTA)
    table = table_of(orders)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    table = table_of(orders)
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    log = Path(f"{orders.path}-tables/lake/orders/_delta_log")
    assert not (log / f"{0:020}.json").exists()
    assert sync(orders, **DELTA).commits == 0
    add_rows(orders, base=80)
    assert sync(orders, **DELTA).rows == 80
    assert rows_of(orders) == every(range(120))


def test_offsets_of_commits_that_died_go_once_they_are_old(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise SimulatedCrash("between offsets and commit")

    sync(orders, **DELTA, round_bytes=1 << 30)
    add_rows(orders, base=80)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", die)
        with pytest.raises(SimulatedCrash):
            sync(orders, **DELTA, round_bytes=1 << 30)
    folder = Path(f"{orders.path}-tables/lake/orders/_strandline")
    left = set(folder.iterdir())
    assert len(left) == 3
    sync(orders, **DELTA, round_bytes=1 << 30)
    assert left <= set(folder.iterdir())
    monkeypatch.setattr(store_module, "OFFSETS_AGE_MS", -3_600_000)
    assert sync(orders, **DELTA).commits == 0
    assert len(list(folder.iterdir())) == 1
    assert rows_of(orders) == every(range(120))


def test_new_fields_are_added_and_others_refused_by_name(orders: ArchiveBuilder) -> None:
    sync(orders, **DELTA)
    add_rows(orders, base=80)
    with pytest.raises(TableRefused, match="id is int64 in the table, string here") as refused:
        sync(orders, "id STRING, city INT", **DELTA)
    assert "city is string in the table, int32 here" in str(refused.value)
    assert sync(orders, "id INT, extra DOUBLE", **DELTA).rows == 80
    assert rows_of(orders) == every(range(120))
    with pytest.raises(InvalidConfig, match=r"takes columns, and day\(COLUMN\)"):
        make_run(orders, **DELTA, partition_by=["bucket(4, _key)"])
    with pytest.raises(InvalidConfig, match="has no --catalog"):
        make_run(orders, **DELTA, catalog="sqlite:///x.db")


def test_an_upsert_has_the_newest_record_of_each_key(tmp_path: Path) -> None:
    changing = ChangingArchive(tmp_path / "archive", 5)
    for _ in range(3):
        changing.add()
        sync(changing.archive, UPSERT_SCHEMA, **DELTA, mode="upsert")
        rows = pl.read_delta(f"{changing.archive.path}-tables/lake/orders")
        found = {
            (row["_topic_partition"], row["_key"]): row["_offset"]
            for row in rows.iter_rows(named=True)
        }
        assert (len(found), found) == (rows.height, changing.state)


def test_values_of_partitions_are_those_of_the_records(orders: ArchiveBuilder) -> None:
    schema = "id INT, city STRING, day DATE, ok BOOLEAN"
    # An empty text is null, by Delta's protocol.
    texts = ["a b", "c/d=e", "\u00e9%", None, ""]
    values = [
        {"id": n, "city": one, "day": "2024-02-01", "ok": True} for n, one in enumerate(texts)
    ]
    records = [
        Record(offset=80 + n, timestamp_ms=START_MS, key=b"k", value=json.dumps(one).encode())
        for n, one in enumerate(values)
    ]
    orders.add_segment("orders", make_batches(records))
    sync(orders, schema, **DELTA, partition_by=["city", "ok", "day"])
    place = f"{orders.path}-tables/lake/orders"
    partitions = pa.table(table_of(orders).get_add_actions(flatten=True)).to_pylist()
    assert {one["partition.ok"] for one in partitions} == {True, None}
    for rows in (pl.read_delta(place), pl.DataFrame(table_of(orders).to_pyarrow_table())):
        found = rows.filter(pl.col("_offset") >= 80).sort("_offset").to_dicts()
        assert [row["city"] for row in found] == [*texts[:4], None]
        assert [row["id"] for row in found] == [0, 1, 2, 3, 4]
        assert {(row["ok"], row["day"]) for row in found} == {(True, dt.date(2024, 2, 1))}


def test_columns_that_deltas_log_cannot_tell_are_no_partitions(orders: ArchiveBuilder) -> None:
    """Its readers have other texts of bytes and of times."""
    for column, said in (("_key", "binary"), ("_timestamp", "timestamp"), ("tags", "list")):
        with pytest.raises(InvalidConfig, match=f"{column} is {said}"):
            sync(orders, **DELTA, partition_by=[column])
    assert not data_files(orders)


def test_a_table_that_was_restored_is_refused_until_it_is_rolled_forward(
    orders: ArchiveBuilder,
) -> None:
    """Its transaction says of rows that they are there which are not."""
    sync(orders, **DELTA, round_bytes=1 << 30)
    first = table_of(orders).version()
    moment = dt.datetime.fromtimestamp(table_of(orders).history(1)[0]["timestamp"] / 1000, dt.UTC)
    add_rows(orders, base=80)
    sync(orders, **DELTA, round_bytes=1 << 30)
    newest = table_of(orders).version()
    table_of(orders).restore(first)
    with pytest.raises(TableRefused, match=f"rolled back to before version {newest}"):
        sync(orders, **DELTA)
    # Another engine goes on from there.
    table_of(orders).optimize.compact()
    with pytest.raises(TableRefused, match=f"Restore version {newest} again"):
        sync(orders, **DELTA)
    table_of(orders).restore(newest)
    assert sync(orders, **DELTA).commits == 0
    # What is restored is a state that was restored itself.
    table_of(orders).restore(newest + 1)
    with pytest.raises(TableRefused, match="rolled back"):
        sync(orders, **DELTA)
    table_of(orders).restore(newest)
    table_of(orders).restore(moment)
    with pytest.raises(TableRefused, match="rolled back"):
        sync(orders, **DELTA)
    table_of(orders).restore(newest)
    add_rows(orders, base=120)
    assert sync(orders, **DELTA).rows == 80
    assert rows_of(orders) == every(range(160))


def test_a_restore_of_what_others_did_after_the_newest_commit_is_no_roll_back(
    orders: ArchiveBuilder,
) -> None:
    sync(orders, **DELTA)
    newest = table_of(orders).version()
    table_of(orders).optimize.compact()
    table_of(orders).restore(newest)
    add_rows(orders, base=80)
    assert sync(orders, **DELTA).rows == 80
    assert rows_of(orders) == every(range(120))


def test_a_table_with_column_mapping_is_refused(orders: ArchiveBuilder) -> None:
    """Its files have other names than its columns: what a sync writes would be read as nulls."""
    sync(orders, **DELTA)
    folder = orders.path.with_name("archive-tables") / "lake" / "orders"
    log = folder / "_delta_log"
    (first,) = (
        action["metaData"]
        for line in (log / f"{0:020}.json").read_text().splitlines()
        if "metaData" in (action := json.loads(line))
    )
    first["configuration"][MAPPING_PROPERTY] = "name"
    version = DeltaTable(folder).version() + 1
    (log / f"{version:020}.json").write_text(json.dumps({"metaData": first}))
    for run in (lambda: sync(orders, **DELTA), make_run(orders, **DELTA).maintain):
        with pytest.raises(TableRefused, match="has column mapping"):
            run()
    assert DeltaTable(folder).version() == version

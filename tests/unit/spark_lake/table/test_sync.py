"""Syncs of a real Iceberg table: whatever happens in between, no row twice and none missing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import duckdb
import polars as pl
import pytest
from pyiceberg.exceptions import CommitFailedException

from strandline.spark_lake.table.errors import TableRefused
from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.records.batch.record import Record
from strandline.storage.remote import keys
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
from tests.unit.spark_lake.table.rig import (
    NoProgress,
    add_rows,
    data_files,
    every,
    iceberg,
    make_run,
    named_files,
    recreate_topic,
    rows_of,
    sync,
    value_of,
)

pytestmark = pytest.mark.slow

TABLE_POINTS = [point for point in CRASH_POINTS if point.startswith("table.")]


def test_a_table_has_every_record_once_and_a_second_sync_adds_only_what_is_new(
    orders: ArchiveBuilder,
) -> None:
    assert sync(orders).rows == 160
    assert sync(orders).commits == 0
    add_rows(orders, base=80)
    report = sync(orders)
    assert (report.rows, report.next_offsets) == (80, {0: 120, 1: 120})
    assert rows_of(make_run(orders)) == every(range(120))


def test_duckdb_and_polars_read_the_values_nulls_and_headers_of_the_files(
    synced: ArchiveBuilder,
) -> None:
    files = data_files(synced)
    query = (
        "select _offset, id, nested.a, tags, _headers from read_parquet($files)"
        " where _topic_partition = 0 order by _offset"
    )
    with duckdb.connect() as connection:
        found = connection.execute(query, {"files": files}).fetchall()
    for offset, (number, identity, nested, tags, headers) in enumerate(found):
        is_null = value_of(offset) is None
        assert number == offset
        assert (identity, nested) == ((None, None) if is_null else (offset, offset))
        assert tags == (None if is_null or offset % 2 == 0 else ["t"] * (offset % 3))
        assert headers == ([{"key": "h", "value": b"1"}] if offset % 2 else None)
    assert pl.read_parquet(files).height == 160


@pytest.mark.parametrize("point", TABLE_POINTS)
def test_after_a_death_at_any_step_the_next_sync_completes_the_table(
    orders: ArchiveBuilder, point: str
) -> None:
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        sync(orders)
    sync(orders)
    assert rows_of(make_run(orders)) == every(range(80))


def test_of_two_syncs_that_wrote_the_same_rows_one_drops_its_files(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_run(orders)
    commit = first.store.commit

    def second_is_first(*given: Any) -> None:
        monkeypatch.setattr(first.store, "commit", commit)
        sync(orders)
        commit(*given)

    monkeypatch.setattr(first.store, "commit", second_is_first)
    assert first.sync(NoProgress()).lost_rounds == 1
    assert rows_of(first) == every(range(80))
    assert named_files(first) == sorted(data_files(orders))


@pytest.mark.parametrize("lost", [TimeoutError("no answer"), CommitFailedException("again")])
@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_whose_answer_is_lost_is_in_the_table_once(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch, lost: Exception, lands: bool
) -> None:
    run = make_run(orders)
    catalog = run.store._catalog
    commit = catalog.commit_table

    def answer_is_lost(table: Any, requirements: Any, updates: Any) -> Any:
        if any(one.action == "add-snapshot" for one in updates):
            monkeypatch.setattr(catalog, "commit_table", commit)
            if lands:
                commit(table, requirements, updates)
            raise lost
        return commit(table, requirements, updates)

    monkeypatch.setattr(catalog, "commit_table", answer_is_lost)
    run.sync(NoProgress())
    assert rows_of(run) == every(range(80))


def test_what_the_table_has_outlives_the_expiry_of_its_snapshots(synced: ArchiveBuilder) -> None:
    run = make_run(synced)
    table = iceberg(run)
    head = table.current_snapshot()
    assert head is not None
    others = [one.snapshot_id for one in table.snapshots() if one != head]
    table.maintenance.expire_snapshots().by_ids(others).commit()
    assert sync(synced).commits == 0
    assert rows_of(run) == every(range(80))


def test_a_topic_made_anew_is_refused_unless_it_is_asked_for(synced: ArchiveBuilder) -> None:
    recreate_topic(synced)
    add_rows(synced, base=0)
    with pytest.raises(TableRefused, match="made anew"):
        sync(synced)
    assert sync(synced, new_incarnation=True).rows == 80
    assert sync(synced).commits == 0


def test_a_sync_ends_with_its_topic_and_the_next_one_adds_the_rows_of_the_new_one(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(orders, new_incarnation=True)
    commit = run.store.commit
    old_id = str(orders.topics["orders"].info.topic_id)

    def made_anew(*given: Any) -> None:
        monkeypatch.setattr(run.store, "commit", commit)
        commit(*given)
        recreate_topic(orders)
        add_rows(orders, base=0)

    monkeypatch.setattr(run.store, "commit", made_anew)
    report = run.sync(NoProgress())
    assert (report.commits, report.is_complete) == (1, False)
    assert run.sync(NoProgress()).rows == 80
    rows = iceberg(run).scan().to_arrow()
    ids = rows.column("_topic_id").to_pylist()
    new_id = str(orders.topics["orders"].info.topic_id)
    assert {one: ids.count(one) for one in ids} == {old_id: report.rows, new_id: 80}


@pytest.mark.parametrize("table_format", [{}, {"format": "delta"}])
def test_an_archive_that_ends_before_the_table_is_refused(
    orders: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    """Offsets that it has from now on are those of other records."""
    old = orders.manifest("orders", 1)
    add_rows(orders, base=80)
    sync(orders, **table_format)
    orders.save(replace(old, revision=1000))
    for act in (lambda: sync(orders, **table_format), make_run(orders, **table_format).plan):
        with pytest.raises(TableRefused, match=r"partition 1 .* offset 120 .* ends at 80"):
            act()


def test_options_that_leave_rows_out_do_not_make_an_archive_end_earlier(
    orders: ArchiveBuilder,
) -> None:
    record = Record(offset=80, timestamp_ms=START_MS, key=b"k", value=b"{}", headers=())
    orders.add_piece("orders", make_batches([record]), partition=1)
    assert sync(orders).rows == 161
    assert sync(orders, options={"includeOpenSegment": "false"}).commits == 0
    assert sync(orders, options={"endingTimestamp": str(START_MS)}).commits == 0


def test_another_sync_that_is_faster_is_no_older_archive(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(orders)
    load = run.store.load

    def another_is_first() -> Any:
        monkeypatch.setattr(run.store, "load", load)
        add_rows(orders, base=80)
        sync(orders)
        return load()

    monkeypatch.setattr(run.store, "load", another_is_first)
    assert run.sync(NoProgress()).is_complete
    assert rows_of(run) == every(range(120))


def test_a_table_stays_as_it_is_when_tiering_is_turned_off_with_the_archive(
    synced: ArchiveBuilder,
) -> None:
    for partition in (0, 1):
        place = synced.partition_id("orders", partition)
        shutil.rmtree(synced.object_path(keys.manifest_key(place)).parent)
    report = sync(synced)
    assert (report.rows, report.is_complete) == (0, True)
    assert rows_of(make_run(synced)) == every(range(80))


def test_a_table_that_was_rolled_back_is_refused_until_it_is_rolled_forward(
    orders: ArchiveBuilder,
) -> None:
    """Its property says of rows that they are there which are not."""
    sync(orders, round_bytes=1 << 30)
    first = iceberg(make_run(orders)).current_snapshot().snapshot_id
    add_rows(orders, base=80)
    sync(orders, round_bytes=1 << 30)
    table = iceberg(make_run(orders))
    newest = table.current_snapshot().snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(TableRefused, match=f"rolled back.* {newest}"):
        sync(orders)
    # Another engine goes on from there.
    table = iceberg(make_run(orders))
    table.append(table.scan(row_filter="_offset < 1").to_arrow())
    with pytest.raises(TableRefused, match=f"rolled back.* {newest}"):
        sync(orders)
    iceberg(make_run(orders)).manage_snapshots().set_current_snapshot(newest).commit()
    add_rows(orders, base=120)
    assert sync(orders).rows == 80
    assert rows_of(make_run(orders)) == every(range(160))


def test_names_that_iceberg_keeps_for_itself_are_refused(orders: ArchiveBuilder) -> None:
    for given in ({"schema": "_file STRING"}, {"columns": ["key=_partition"]}):
        with pytest.raises(TableRefused, match=r"Iceberg keeps the name _(file|partition) for"):
            sync(orders, **given)
    assert make_run(orders).store.load() is None


def test_new_and_wider_fields_are_added_and_others_refused_by_name(synced: ArchiveBuilder) -> None:
    add_rows(synced, base=80)
    with pytest.raises(TableRefused, match=r"id is long in the table, string here") as refused:
        sync(synced, "id STRING, city INT, nested STRUCT<a: INT>")
    assert "city is string in the table, int here" in str(refused.value)
    assert rows_of(make_run(synced)) == every(range(80))
    sync(synced, "id BIGINT, nested STRUCT<a: BIGINT, b: STRING>, extra DOUBLE")
    assert rows_of(make_run(synced)) == every(range(120))

"""Checks and maintenance of Delta tables, while syncs go on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from strandline.spark_lake.table.upkeep.maintain import DAY_MS
from strandline.spark_lake.table.upkeep.retention import Retention
from strandline.storage.clock import SystemClock
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder
from tests.unit.spark_lake.table.rig import add_rows, data_files, every, make_run, sync
from tests.unit.spark_lake.table.test_delta import DELTA, rows_of, table_of
from tests.unit.spark_lake.table.test_rejected import NUMBERED, parses
from tests.unit.spark_lake.table.test_upkeep import NOW, check_is_clean

pytestmark = pytest.mark.slow


def named_files(archive: ArchiveBuilder) -> list[str]:
    return sorted(one.removeprefix("file://") for one in table_of(archive).file_uris())


def test_a_check_says_how_far_a_table_is_behind_and_finds_rows_that_are_lost_or_changed(
    orders: ArchiveBuilder,
) -> None:
    sync(orders, **DELTA)
    add_rows(orders, base=80)
    run = make_run(orders, **DELTA)
    check_is_clean(run)
    assert [one.behind for one in run.check().partitions] == [40, 40]
    table_of(orders).delete("_topic_partition = 1 AND _offset = 5")
    assert run.check().findings == ["partition 1: of the offsets 0 to 80, the table lacks 1 row"]
    table_of(orders).update({"id": "11"}, predicate="_topic_partition = 0 AND _offset = 10")
    findings = run.check(deep=True).findings
    assert "partition 0 offset 10: column id is another value than in the archive" in findings


def test_small_files_become_few_every_value_stays_and_syncs_go_on(orders: ArchiveBuilder) -> None:
    for base in (80, 120, 160):
        sync(orders, **DELTA)
        add_rows(orders, base=base)
    sync(orders, **DELTA)
    before = len(named_files(orders))
    run = make_run(orders, **DELTA)
    report = run.maintain(None, NOW)
    assert report.rewritten_files > report.new_files > 0
    assert len(named_files(orders)) < before
    check_is_clean(make_run(orders, **DELTA))
    # Of versions before this one nothing is left, as NOW says that everything is old.
    stored = [one for one in data_files(orders) if "_delta_log" not in one]
    assert named_files(orders) == sorted(stored)
    assert make_run(orders, **DELTA).maintain(None, NOW).rewritten_files == 0
    add_rows(orders, base=200)
    assert sync(orders, **DELTA).rows == 80
    assert rows_of(orders) == every(range(240))
    check_is_clean(make_run(orders, **DELTA))


def test_old_files_without_a_commit_are_deleted_and_offsets_and_young_files_stay(
    orders: ArchiveBuilder,
) -> None:
    sync(orders, **DELTA)
    folder = Path(f"{orders.path}-tables/lake/orders")
    old, young = folder / "old.parquet", folder / "young.parquet"
    for one in (old, young):
        one.write_bytes(b"of a sync that died")
    six_days_ago_s = SystemClock().now_ms() / 1000 - 6 * DAY_MS / 1000
    os.utime(old, (six_days_ago_s,) * 2)
    for one in (folder / "_strandline").iterdir():
        os.utime(one, (six_days_ago_s,) * 2)
    assert make_run(orders, **DELTA).maintain().orphans == 1
    assert (old.exists(), young.exists()) == (False, True)
    assert sync(orders, **DELTA).commits == 0


@pytest.mark.parametrize("by", ["age", "follow"])
def test_a_table_drops_what_its_retention_says_and_a_check_does_not_miss_it(
    orders: ArchiveBuilder, by: str
) -> None:
    sync(orders, **DELTA)
    run = make_run(orders, **DELTA)
    if by == "follow":
        orders.move_log_start("orders", 50, partition=0)
        report = run.maintain(Retention(), NOW)
        left = [(0, n) for n in range(50, 80)] + [(1, n) for n in range(80)]
    else:
        # Between offsets 59 and 60, which are an hour apart.
        begin_ms = START_MS + 60 * 3_600_000 - 1_800_000
        report = run.maintain(Retention(age_ms=SystemClock().now_ms() - begin_ms), NOW)
        left = every(range(60, 80))
    assert report.dropped_rows == 160 - len(left)
    assert rows_of(orders) == left
    assert make_run(orders, **DELTA).check().findings == []


def test_the_second_table_is_maintained_with_the_first_one(orders: ArchiveBuilder) -> None:
    more: dict[str, Any] = {**DELTA, "on_error": "reject"}
    for base in (80, 120):
        sync(orders, NUMBERED, **more)
        add_rows(orders, base=base)
    sync(orders, NUMBERED, **more)
    done = make_run(orders, NUMBERED, **more).maintain(None, NOW)
    assert done.rejected is not None
    assert done.rejected.rewritten_files > done.rejected.new_files > 0
    assert rows_of(orders) == every([one for one in range(160) if parses(one)])
    report = make_run(orders, NUMBERED, **more).check(deep=True)
    assert report.findings == []
    assert sum(one.rejected_rows for one in report.partitions) > 0


def test_maintenance_leaves_the_files_of_a_table_below_alone(orders: ArchiveBuilder) -> None:
    below: dict[str, Any] = {**DELTA, "table": "lake.orders.sub"}
    sync(orders, **DELTA)
    sync(orders, **below)
    before = set(data_files(orders))
    # Long ago, as far as VACUUM can tell.
    for one in before:
        os.utime(one, (0, 0))
    make_run(orders, **DELTA).maintain(None, NOW)
    assert make_run(orders, **below).check(deep=True).findings == []

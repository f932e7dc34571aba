"""Plans, checks and maintenance of a real table, while syncs go on."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO

from strandline.broker.cli import main
from strandline.spark_lake.table.errors import CommitConflict, TableRefused
from strandline.spark_lake.table.iceberg import store as store_module
from strandline.spark_lake.table.iceberg.upkeep import IcebergTable
from strandline.spark_lake.table.run import TableRun
from strandline.spark_lake.table.store import WrittenFile
from strandline.spark_lake.table.upkeep import check as check_module
from strandline.spark_lake.table.upkeep import maintain as maintain_module
from strandline.spark_lake.table.upkeep.maintain import (
    DAY_MS,
    ORPHAN_AGE_MS,
    MaintainReport,
    MaintainSettings,
)
from strandline.spark_lake.table.upkeep.retention import Retention
from strandline.storage.clock import SystemClock
from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.errors import InvalidConfig
from strandline.storage.records.batch.record import Record
from tests.support.heavy import all_but
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
from tests.unit.spark_lake.table.position_deletes import delete_row
from tests.unit.spark_lake.table.rig import (
    NoProgress,
    add_rows,
    data_files,
    every,
    iceberg,
    make_run,
    named_files,
    rows_of,
    sync,
    value_of,
)
from tests.unit.spark_lake.table.test_rejected import NUMBERED, REJECT, parses, rejected_rows

pytestmark = pytest.mark.slow

UPKEEP_POINTS = [point for point in CRASH_POINTS if point.startswith("upkeep.")]
# Everything is small, and everything is old.
NOW = MaintainSettings(
    file_bytes=1 << 20, small_files_min=2, expire_age_ms=-DAY_MS, orphan_age_ms=-DAY_MS
)


def maintain(archive: ArchiveBuilder, retention: Retention | None = None) -> MaintainReport:
    return make_run(archive).maintain(retention, NOW)


def check_is_clean(run: TableRun) -> None:
    report = run.check(deep=True)
    assert report.findings == []
    assert report.deep_rows == sum(one.archive_rows for one in report.partitions)


def test_a_plan_says_what_a_sync_would_read_and_writes_nothing(orders: ArchiveBuilder) -> None:
    plan = make_run(orders).plan()
    assert plan.has is None
    assert (plan.offset_count, plan.scan.segments_planned) == (160, 4)
    assert plan.gets == 4
    assert plan.cost({"GET": 1000, "PUT": 0}) == 4
    assert not data_files(orders)
    assert make_run(orders).store.load() is None
    sync(orders)
    add_rows(orders, base=80)
    plan = make_run(orders).plan()
    assert (plan.offset_count, plan.scan.segments_planned) == (80, 2)
    sync(orders)
    plan = make_run(orders).plan()
    assert (plan.offset_count, plan.commits, plan.puts, plan.gets) == (0, 0, 0, 0)


def test_commands_that_only_read_make_no_catalog(
    orders: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--remote", orders.url, "--topic", "orders", "--table", "lake.orders"]
    for action, code in (("plan", 0), ("check", 2), ("maintain", 2)):
        assert main(["table", action, *given]) == code
    assert not orders.path.with_name("archive-tables").exists()
    assert main(["table", "sync", *given]) == 0
    assert main(["table", "check", *given]) == 0
    capsys.readouterr()
    assert main(["table", "plan", *given]) == 0
    said = "table lake.orders has all that the options select of the archive\n"
    assert capsys.readouterr().out == said


def test_a_time_in_seconds_is_an_error_and_not_a_table_without_rows(
    orders: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--remote", orders.url, "--topic", "orders", "--table", "lake.orders"]
    seconds = str(START_MS // 1000 + 20 * 3600)
    for action in ("sync", "plan"):
        assert main(["table", action, *given, "--until", seconds]) == 2
        assert f"{seconds} looks like seconds" in capsys.readouterr().err
    assert not data_files(orders)
    # As text, or in milliseconds: 20 hours of two partitions.
    moment = dt.datetime.fromtimestamp(int(seconds), dt.UTC).isoformat()
    assert main(["table", "sync", *given, "--until", moment]) == 0
    assert rows_of(make_run(orders)) == every(range(20))
    assert main(["table", "sync", *given, "--until", f"{seconds}000"]) == 0
    assert rows_of(make_run(orders)) == every(range(20))


def test_a_check_that_finds_a_difference_ends_with_the_exit_code_of_all_checks(
    orders: ArchiveBuilder,
) -> None:
    given = ["--remote", orders.url, "--topic", "orders", "--table", "lake.orders"]
    assert main(["table", "sync", *given]) == 0
    iceberg(make_run(orders)).delete("_topic_partition = 1 and _offset = 5")
    assert main(["table", "check", *given]) == 3


def test_a_table_is_like_its_archive_and_a_check_says_how_far_it_is_behind(
    synced: ArchiveBuilder,
) -> None:
    add_rows(synced, base=80)
    run = make_run(synced)
    check_is_clean(run)
    report = run.check()
    assert [(one.table_rows, one.archive_rows, one.behind) for one in report.partitions] == [
        (80, 80, 40),
        (80, 80, 40),
    ]
    assert [(one.first_offset, one.last_offset) for one in report.partitions] == [(0, 79), (0, 79)]


def test_a_check_finds_rows_that_are_lost_twice_or_changed(synced: ArchiveBuilder) -> None:
    run = make_run(synced)
    table = iceberg(run)
    rows = table.scan(
        row_filter="_topic_partition = 0 and _offset >= 10 and _offset < 12"
    ).to_arrow()
    table.append(rows)
    assert run.check().findings == ["partition 0: 2 rows more than once"]
    iceberg(run).delete("_topic_partition = 1 and _offset = 5")
    assert run.check().findings[1:] == [
        "partition 1: of the offsets 0 to 80, the table lacks 1 row"
    ]


def test_a_deep_check_names_the_offset_and_column_of_a_changed_value(
    synced: ArchiveBuilder,
) -> None:
    run = make_run(synced)
    table = iceberg(run)
    rows = table.scan(row_filter="_topic_partition = 0 and _offset = 10").to_arrow()
    table.delete("_topic_partition = 0 and _offset = 10")
    position = rows.column_names.index("id")
    changed = rows.set_column(position, rows.schema.field(position), [[11]])
    table.append(changed)
    assert run.check().findings == []
    findings = run.check(deep=True).findings
    assert "partition 0 offset 10: column id is another value than in the archive" in findings


def test_small_files_become_few_and_every_value_stays(orders: ArchiveBuilder) -> None:
    for base in (80, 120, 160):
        sync(orders)
        add_rows(orders, base=base)
    sync(orders)
    before = len(named_files(make_run(orders)))
    report = maintain(orders)
    run = make_run(orders)
    assert report.rewritten_files > report.new_files > 0
    assert len(named_files(run)) < before
    check_is_clean(run)
    # Expired, and deleted: what no snapshot names is gone.
    assert len(iceberg(run).snapshots()) == 1
    assert named_files(run) == sorted(data_files(orders))
    assert maintain(orders).rewritten_files == 0
    assert sync(orders).commits == 0


@pytest.mark.parametrize("point", all_but(["upkeep.before-commit"], UPKEEP_POINTS))
def test_after_a_death_at_any_step_of_maintenance_the_next_one_completes_it(
    orders: ArchiveBuilder, point: str
) -> None:
    for base in (80, 120):
        sync(orders)
        add_rows(orders, base=base)
    sync(orders)
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        maintain(orders, Retention(age_ms=None))
    add_rows(orders, base=160)
    sync(orders)
    maintain(orders)
    run = make_run(orders)
    check_is_clean(run)
    assert rows_of(run) == every(range(200))
    assert named_files(run) == sorted(data_files(orders))


def test_a_sync_between_the_files_and_the_commit_of_a_maintenance_loses_nothing(
    synced: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rows(synced, base=80)
    run = make_run(synced)
    commit_once = run.store.commit_once

    def sync_first(fill: Any) -> None:
        monkeypatch.setattr(run.store, "commit_once", commit_once)
        sync(synced)
        commit_once(fill)

    monkeypatch.setattr(run.store, "commit_once", sync_first)
    assert run.maintain(None, NOW).rewritten_files
    check_is_clean(make_run(synced))
    assert rows_of(make_run(synced)) == every(range(120))


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("lost", [TimeoutError("no answer"), CommitFailedException("again")])
def test_a_replacement_whose_answer_is_lost_happens_once(
    synced: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch, lost: Exception, lands: bool
) -> None:
    run = make_run(synced)
    catalog = run.store._catalog
    commit = catalog.commit_table

    def answer_is_lost(table: Any, requirements: Any, updates: Any) -> Any:
        monkeypatch.setattr(catalog, "commit_table", commit)
        if lands:
            commit(table, requirements, updates)
        raise lost

    monkeypatch.setattr(catalog, "commit_table", answer_is_lost)
    run.maintain(None, NOW)
    check_is_clean(make_run(synced))
    assert named_files(run) == sorted(data_files(synced))


def test_two_maintenances_at_once_replace_each_file_once(
    synced: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(synced)
    commit_once = run.store.commit_once

    def other_first(fill: Any) -> None:
        monkeypatch.setattr(run.store, "commit_once", commit_once)
        assert (
            make_run(synced)
            .maintain(None, MaintainSettings(file_bytes=1 << 20, small_files_min=2))
            .rewritten_files
        )
        commit_once(fill)

    monkeypatch.setattr(run.store, "commit_once", other_first)
    assert run.maintain(None, NOW).lost_rounds == 1
    check_is_clean(make_run(synced))
    assert named_files(run) == sorted(data_files(synced))


def test_a_row_that_another_engine_deletes_meanwhile_stays_deleted(
    synced: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(synced)
    commit_once = run.store.commit_once

    def deleted_first(fill: Any) -> None:
        monkeypatch.setattr(run.store, "commit_once", commit_once)
        table = iceberg(make_run(synced))
        delete_row(table, next(iter(table.scan().plan_files())).file, 0)
        commit_once(fill)

    monkeypatch.setattr(run.store, "commit_once", deleted_first)
    assert run.maintain(None, NOW).lost_rounds == 1
    assert len(rows_of(run)) == 159
    # The data files and the one with the delete.
    assert len(data_files(synced)) == len(named_files(run)) + 1


@pytest.mark.parametrize("sleeps", ["before the commit", "before it is tried again"])
def test_a_maintenance_that_slept_for_days_does_not_commit_what_another_took_for_orphans(
    synced: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch, sleeps: str
) -> None:
    now_ms = 0
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: now_ms)
    run = make_run(synced)
    old = set(data_files(synced))
    replace_files = IcebergTable.replace

    def sleep() -> None:
        nonlocal now_ms
        now_ms = 3 * DAY_MS
        for path in set(data_files(synced)) - old:
            Path(path).unlink()

    def at_commit(*given: Any) -> None:
        monkeypatch.setattr(IcebergTable, "replace", replace_files)
        sleep()
        raise CommitConflict("another commit was first")

    if sleeps == "before the commit":
        monkeypatch.setattr(maintain_module, "crash_point", lambda _: sleep())
    else:
        monkeypatch.setattr(IcebergTable, "replace", at_commit)
    assert run.maintain(None, NOW).lost_rounds == 1
    assert named_files(run) == sorted(old)
    check_is_clean(make_run(synced))


def test_files_of_a_running_sync_stay_and_old_ones_without_a_commit_go(
    synced: ArchiveBuilder,
) -> None:
    add_rows(synced, base=80)
    with simulated_crash("table.before-commit"), pytest.raises(SimulatedCrash):
        sync(synced)
    young = set(data_files(synced)) - set(named_files(make_run(synced)))
    settings = MaintainSettings(file_bytes=1 << 20, small_files_min=1000)
    assert settings.orphan_age_ms == ORPHAN_AGE_MS
    report = make_run(synced).maintain(None, settings)
    assert report.orphans == 0
    assert report.kept_young >= len(young) > 0
    assert maintain(synced).orphans >= len(young)
    assert not young & set(data_files(synced))


@pytest.mark.heavy
def test_the_second_table_is_used_with_the_first_one_and_not_alone(
    orders: ArchiveBuilder,
) -> None:
    with simulated_crash("table.after-commit"), pytest.raises(SimulatedCrash):
        sync(orders, NUMBERED, **REJECT)
    # Its first table names files for it that it has not taken yet.
    second = make_run(orders, "id BIGINT", table="lake.orders_rejected")
    alone: list[Callable[[], object]] = [
        partial(second.maintain, None, NOW),
        second.check,
        second.plan,
        partial(second.sync, NoProgress()),
    ]
    for command in alone:
        with pytest.raises(TableRefused, match=r"name lake\.orders, whose commands work on both"):
            command()
    run = make_run(orders, NUMBERED, **REJECT)
    run.maintain(None, NOW)
    run.sync(NoProgress())
    report = run.maintain(None, NOW)
    assert report.rejected is not None
    assert report.rejected.rewritten_files > report.rejected.new_files > 0
    assert {row["_offset"] for row in rejected_rows(run)} == {
        one for one in range(80) if not parses(one)
    }


def test_snapshots_of_tags_and_branches_outlive_maintenance(synced: ArchiveBuilder) -> None:
    run = make_run(synced)
    table = iceberg(run)
    tagged = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(tagged, "audit").commit()
    rows = table.scan(snapshot_id=tagged).to_arrow().num_rows
    add_rows(synced, base=80)
    sync(synced)
    maintain(synced)
    table = iceberg(run)
    assert {one.snapshot_id for one in table.snapshots()} >= {tagged}
    assert table.scan(snapshot_id=tagged).to_arrow().num_rows == rows == 160


def test_a_table_keeps_follows_or_ages(synced: ArchiveBuilder) -> None:
    synced.move_log_start("orders", 40, partition=0)
    maintain(synced)
    run = make_run(synced)
    assert rows_of(run) == every(range(80))
    check_is_clean(run)
    report = maintain(synced, Retention())
    assert report.dropped_rows == 40
    assert rows_of(run) == sorted([*((0, n) for n in range(40, 80)), *((1, n) for n in range(80))])
    check_is_clean(run)
    now = [Record(offset=80, timestamp_ms=START_MS * 2, key=b"k", value=b"{}", headers=())]
    synced.add_segment("orders", make_batches(now), partition=1)
    sync(synced)
    maintain(synced, Retention(age_ms=DAY_MS))
    assert rows_of(run) == [(1, 80)]
    check_is_clean(run)
    assert sync(synced).commits == 0


@pytest.mark.heavy
def test_retention_drops_rejected_rows_too(orders: ArchiveBuilder) -> None:
    sync(orders, NUMBERED, **REJECT)
    orders.move_log_start("orders", 40, partition=0)
    run = make_run(orders, NUMBERED, **REJECT)
    report = run.maintain(Retention(), NOW)
    assert report.rejected is not None
    assert report.dropped_rows + report.rejected.dropped_rows == 40
    left = [(row["_topic_partition"], row["_offset"]) for row in rejected_rows(run)]
    assert left == [one for one in every(range(80)) if not parses(one[1]) and one >= (0, 40)]
    assert run.check(deep=True).findings == []


def test_retention_rewrites_no_file_that_keeps_all_its_rows(orders: ArchiveBuilder) -> None:
    """Also one with rows of two partitions, of which one begins later than the other."""
    sync(orders, round_bytes=1 << 30, partition_by=[])
    orders.move_log_start("orders", 40, partition=0)
    assert maintain(orders, Retention()).dropped_rows == 40
    before = named_files(make_run(orders))
    assert len(before) == 1
    report = maintain(orders, Retention())
    assert (report.dropped_files, report.new_files) == (0, 0)
    assert named_files(make_run(orders)) == before
    orders.move_log_start("orders", 41, partition=1)
    assert maintain(orders, Retention()).dropped_rows == 41
    check_is_clean(make_run(orders))


@pytest.mark.heavy
def test_a_check_counts_rejected_rows_and_finds_one_that_is_in_both_tables(
    orders: ArchiveBuilder,
) -> None:
    sync(orders, NUMBERED, **REJECT)
    # A check needs no --on-error: the table knows that it has a second one.
    report = make_run(orders, NUMBERED).check(deep=True)
    bad = sum(not parses(one) for one in range(80))
    assert report.findings == []
    assert {(one.table_rows, one.rejected_rows) for one in report.partitions} == {(80 - bad, bad)}
    assert report.deep_rows == 160 - 2 * bad
    run = make_run(orders, NUMBERED)
    table = iceberg(run)
    table.append(table.scan(row_filter="_topic_partition = 1 and _offset = 6").to_arrow())
    assert run.rejected.load() is not None
    second = run.rejected.loaded  # type: ignore[attr-defined]
    second.delete("_topic_partition = 0 and _offset = 1")
    assert make_run(orders, NUMBERED).check().findings == [
        "partition 0: of the offsets 0 to 80, the table lacks 1 row",
        "partition 1: 1 row more than once",
    ]


def test_rows_that_compaction_took_out_of_the_archive_are_not_compared(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("orders")
    records = [
        Record(offset=n, timestamp_ms=START_MS, key=b"k%d" % (n % 3), value=value_of(n), headers=())
        for n in range(30)
    ]
    archive.add_segment("orders", make_batches(records))
    sync(archive)
    archive.topics["orders"].manifests.clear()
    archive.add_segment("orders", make_batches([records[0], *records[4:7], *records[-3:]]))
    run = make_run(archive)
    report = run.check(deep=True)
    assert report.findings == []
    assert [(one.table_rows, one.archive_rows) for one in report.partitions] == [(30, 7)]
    assert report.deep_rows == 7
    iceberg(run).delete("_offset = 5")
    assert make_run(archive).check().findings == [
        "partition 0: of the offsets 0 to 30, the table lacks 1 row"
    ]


def test_a_deep_check_counts_only_rows_that_it_compared(synced: ArchiveBuilder) -> None:
    run = make_run(synced)
    iceberg(run).delete("_topic_partition = 0 and _offset = 5")
    assert make_run(synced).check(deep=True).deep_rows == 80


def test_a_check_reads_each_file_once_however_many_partitions_it_has(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(orders, round_bytes=1 << 30, partition_by=[])
    run = make_run(orders)
    opened = 0
    read = IcebergTable.read

    def counted(table: IcebergTable, *given: Any) -> Any:
        nonlocal opened
        opened += 1
        return read(table, *given)

    monkeypatch.setattr(IcebergTable, "read", counted)
    assert run.check().findings == []
    assert opened == len(named_files(run)) == 1
    # Windows of a few offsets: their rows are counted once, too.
    monkeypatch.setattr(check_module, "WINDOW_OFFSETS", 7)
    report = run.check(deep=True)
    assert report.findings == []
    assert [one.table_rows for one in report.partitions] == [80, 80]


def test_a_table_of_another_catalog_at_the_same_place_is_not_taken_for_orphans(
    synced: ArchiveBuilder, tmp_path: Path
) -> None:
    other = {"catalog": f"sqlite:///{tmp_path / 'other.db'}"}
    with pytest.raises(TableRefused, match="another catalog"):
        sync(synced, **other)
    assert make_run(synced, **other).store.load() is None
    check_is_clean(make_run(synced))


@pytest.mark.heavy
def test_maintenance_leaves_a_table_alone_that_lies_below_its_own(orders: ArchiveBuilder) -> None:
    below = {"table": "lake.orders.sub"}
    sync(orders)
    sync(orders, **below)
    maintain(orders)
    assert rows_of(make_run(orders, **below)) == every(range(80))
    check_is_clean(make_run(orders))
    for name in ("lake.orders.data", "lake.orders.metadata", "lake.orders.data.x"):
        with pytest.raises(InvalidConfig, match=r"has files of table lake\.orders"):
            make_run(orders, table=name)


@pytest.mark.parametrize("formats", [("iceberg", "delta"), ("delta", "iceberg")])
def test_tables_of_two_formats_do_not_share_a_folder(
    orders: ArchiveBuilder, formats: tuple[str, str]
) -> None:
    first, second = formats
    sync(orders, format=first)
    before = data_files(orders)
    with pytest.raises(TableRefused, match=r"has a Delta table already|has files already"):
        sync(orders, format=second)
    assert data_files(orders) == before
    assert make_run(orders, format=second).store.load() is None
    assert sync(orders, format=first).commits == 0


def test_nulls_in_lists_outlive_a_rewrite(synced: ArchiveBuilder) -> None:
    maintain(synced)
    with duckdb.connect() as connection:
        found = connection.execute(
            "select tags is null, count(*) from read_parquet($files) group by all order by all",
            {"files": data_files(synced)},
        ).fetchall()
    assert len(found) == 2
    assert dict(found)[True] > 80


@pytest.mark.heavy
def test_a_commit_costs_the_same_after_ten_thousand_files(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: files that are read and written, manifests in the list, snapshots."""
    monkeypatch.setattr(store_module, "SNAPSHOTS_MAX", 20)
    sync(orders)
    run = make_run(orders)
    offsets = run.store.load()
    assert offsets is not None
    writer = run.store.writer("0" * 32)
    (rows,) = writer.cut(_no_more_than_one_day(run))
    sample = writer.write(rows.key, [rows.rows])
    opened = 0
    for name in ("new_input", "new_output"):
        real = getattr(PyArrowFileIO, name)

        def counted(io: Any, location: str, real: Any = real) -> Any:
            nonlocal opened
            opened += 1
            return real(io, location)

        monkeypatch.setattr(PyArrowFileIO, name, counted)
    costs: list[int] = []
    for number in range(125):
        offsets = offsets.advanced(next(iter(offsets.next_offsets)), {}, commit_id=str(number))
        assert run.store.load() is not None
        opened = 0
        run.store.commit([_copy_of(sample, f"{number}-{one}") for one in range(80)], offsets)
        costs.append(opened)
    table = iceberg(run)
    assert len(list(table.scan().plan_files())) > 10_000
    assert set(costs[:10]) == set(costs[-10:])
    # The rare one merges manifests.
    assert sum(one > costs[0] for one in costs) <= 2
    assert len(table.snapshots()) <= 20
    assert len(table.current_snapshot().manifests(table.io)) <= 100


def _no_more_than_one_day(run: TableRun) -> Any:
    table = run.upkeep()
    return next(table.read(table.live_files()[0])).slice(0, 1)


def _copy_of(file: WrittenFile, name: str) -> WrittenFile:
    entry = copy.deepcopy(file.entry)
    path = file.path.replace(".parquet", f"-{name}.parquet")
    entry.data_file._data[1] = path
    assert entry.data_file.file_path == path
    return replace(file, path=path, entry=entry)

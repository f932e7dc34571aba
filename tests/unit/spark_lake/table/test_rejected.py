"""Values that do not parse are rows of a second table, once each, whatever dies in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from strandline.spark_lake.table.rejected import SUFFIX
from strandline.spark_lake.table.run import TableRun
from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.errors import InvalidConfig, ObjectCorrupt
from tests.support.heavy import all_but
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.rig import (
    NoProgress,
    every,
    make_run,
    rows_of,
    sync,
    value_of,
)

pytestmark = pytest.mark.slow

# Tags are texts: a value that has any does not parse.
NUMBERED = "id BIGINT, city STRING, tags ARRAY<INT>"
REJECT = {"on_error": "reject"}
TABLE_POINTS = [point for point in CRASH_POINTS if point.startswith("table.")]


def parses(offset: int) -> bool:
    return b'"t"' not in (value_of(offset) or b"")


def rejected_rows(run: TableRun) -> list[dict[str, Any]]:
    assert run.rejected.load() is not None
    rows: list[dict[str, Any]] = run.rejected.loaded.scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["_topic_partition"], row["_offset"]))


def assert_each_value_is_in_one_table(archive: ArchiveBuilder, offsets: Sequence[int]) -> None:
    run = make_run(archive, NUMBERED, **REJECT)
    assert rows_of(run) == every([offset for offset in offsets if parses(offset)])
    found = [(row["_topic_partition"], row["_offset"]) for row in rejected_rows(run)]
    assert found == every([offset for offset in offsets if not parses(offset)])


def test_a_value_that_does_not_parse_is_in_the_second_table_with_its_bytes_and_the_reason(
    orders: ArchiveBuilder,
) -> None:
    with pytest.raises(ObjectCorrupt, match="does not parse"):
        sync(orders, NUMBERED)
    report = sync(orders, NUMBERED, **REJECT)
    assert report.rows + report.rejected_rows == 160
    assert sync(orders, NUMBERED, **REJECT).commits == 0
    assert_each_value_is_in_one_table(orders, range(80))
    row = rejected_rows(make_run(orders, NUMBERED, **REJECT))[0]
    assert (row["_offset"], row["_key"], row["_value"]) == (1, b"k1", value_of(1))
    assert "tags" in row["_reason"]
    assert row["_headers"] == [{"key": "h", "value": b"1"}]


@pytest.mark.parametrize(
    "point",
    all_but(["table.before-commit", "table.after-commit", "table.after-rejected"], TABLE_POINTS),
)
def test_after_a_death_at_any_step_the_next_sync_completes_both_tables(
    orders: ArchiveBuilder, point: str
) -> None:
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        sync(orders, NUMBERED, **REJECT)
    sync(orders, NUMBERED, **REJECT)
    assert_each_value_is_in_one_table(orders, range(80))


def test_rows_that_a_dead_sync_rejected_stay_so_even_if_the_next_one_could_read_them(
    orders: ArchiveBuilder,
) -> None:
    with simulated_crash("table.after-commit"), pytest.raises(SimulatedCrash):
        sync(orders, NUMBERED, **REJECT, round_bytes=1 << 30)
    assert sync(orders, "id BIGINT, city STRING").commits == 0
    assert_each_value_is_in_one_table(orders, range(80))


@pytest.mark.parametrize("lands", [True, False])
def test_rejected_rows_whose_commit_gets_no_answer_are_there_once(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    run = make_run(orders, NUMBERED, **REJECT)
    catalog = run.store._catalog
    commit = catalog.commit_table

    def answer_is_lost(table: Any, requirements: Any, updates: Any) -> Any:
        is_second = table.name()[-1].endswith(SUFFIX)
        if is_second and any(one.action == "add-snapshot" for one in updates):
            monkeypatch.setattr(catalog, "commit_table", commit)
            if lands:
                commit(table, requirements, updates)
            raise TimeoutError("no answer")
        return commit(table, requirements, updates)

    monkeypatch.setattr(catalog, "commit_table", answer_is_lost)
    run.sync(NoProgress())
    assert_each_value_is_in_one_table(orders, range(80))


def test_of_two_syncs_that_add_the_same_rejected_rows_one_does(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_run(orders, NUMBERED, **REJECT)
    commit = first.rejected.commit

    def second_is_first(*given: Any) -> None:
        monkeypatch.setattr(first.rejected, "commit", commit)
        sync(orders, NUMBERED, **REJECT)
        commit(*given)

    monkeypatch.setattr(first.rejected, "commit", second_is_first)
    first.sync(NoProgress())
    assert_each_value_is_in_one_table(orders, range(80))


def test_a_dropped_second_table_is_made_anew_for_what_comes(orders: ArchiveBuilder) -> None:
    sync(orders, NUMBERED, **REJECT)
    run = make_run(orders, NUMBERED, **REJECT)
    run.store._catalog.purge_table(f"lake.orders{SUFFIX}")
    assert sync(orders, NUMBERED, **REJECT).commits == 0
    assert rejected_rows(run) == []


def test_a_policy_of_the_lake_and_one_of_the_table_exclude_each_other(
    orders: ArchiveBuilder,
) -> None:
    with pytest.raises(InvalidConfig, match="exclude each other"):
        make_run(orders, NUMBERED, {"valueErrors": "null"}, **REJECT)
    with pytest.raises(InvalidConfig, match="--on-error reject"):
        make_run(orders, NUMBERED, {"valueErrors": "corrupt"})

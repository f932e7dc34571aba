"""Archive and table in one bucket: processes are killed, no row is lost or twice, no file stays.

`make check-catalogs` runs them over Apache Iceberg's REST catalog too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.storage.crash_points import CRASH_POINTS, EXIT_STATUS_KILLED
from tests.conftest import S3Bucket
from tests.support.broker import eventually
from tests.support.catalogs import apache_kinds, bucket_properties, catalog_server
from tests.support.heavy import HEAVY, all_but
from tests.system.tables.bucket_table import BucketTable
from tests.unit.spark_lake.table.rig import every, rows_of
from tests.unit.spark_lake.table.test_rejected import parses, rejected_rows

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.crash]

TABLE_POINTS = [point for point in CRASH_POINTS if point.startswith("table.")]
UPKEEP_POINTS = [point for point in CRASH_POINTS if point.startswith("upkeep.")]
WAIT_S = 60
DATABASE = "database"


@pytest.fixture(params=[DATABASE, *apache_kinds()])
def table(
    request: pytest.FixtureRequest, s3_bucket: S3Bucket, tmp_path: Path
) -> Iterator[BucketTable]:
    if request.param == DATABASE:
        yield BucketTable(s3_bucket, tmp_path)
        return
    properties = bucket_properties(s3_bucket.endpoint_url)
    with catalog_server(request.param, tmp_path, properties) as server:
        yield BucketTable(s3_bucket, tmp_path, server.endpoint_url)


def assert_each_value_is_in_one_table(table: BucketTable, end: int) -> None:
    run = table.run()
    assert rows_of(run) == every([one for one in range(end) if parses(one)])
    found = [(row["_topic_partition"], row["_offset"]) for row in rejected_rows(run)]
    assert found == every([one for one in range(end) if not parses(one)])


def die_after(table: BucketTable, more: int) -> None:
    """Kills a sync once it has written so many objects, or has ended."""
    wanted = len(table.stored()) + more
    process = table.start("sync")
    eventually(lambda: len(table.stored()) >= wanted or process.poll() is not None)
    process.kill()
    process.wait(WAIT_S)


@pytest.mark.parametrize("point", all_but(["table.before-commit"], TABLE_POINTS))
def test_after_a_sync_was_killed_at_any_step_the_next_one_completes_both_tables(
    table: BucketTable, point: str
) -> None:
    table.add(0, 40)
    assert table.start("sync", crash_at=point).wait(WAIT_S) == EXIT_STATUS_KILLED
    table.sync()
    assert_each_value_is_in_one_table(table, 80)
    table.maintain()
    assert table.stored() == table.named()
    assert_each_value_is_in_one_table(table, 80)


@pytest.mark.parametrize("point", all_but([], UPKEEP_POINTS))
def test_after_a_maintenance_was_killed_at_any_step_the_next_one_completes_it(
    table: BucketTable, point: str
) -> None:
    table.add(0, 40)
    table.sync()
    assert table.start("maintain", crash_at=point).wait(WAIT_S) == EXIT_STATUS_KILLED
    assert_each_value_is_in_one_table(table, 80)
    table.add(80)
    table.sync()
    table.maintain()
    assert table.stored() == table.named()
    assert_each_value_is_in_one_table(table, 120)


@HEAVY
def test_syncs_that_are_killed_again_and_again_leave_each_row_once_and_no_file(
    table: BucketTable,
) -> None:
    table.add(0, 40, 80)
    for more in (1, 4, 9):
        die_after(table, more)
    table.sync()
    assert_each_value_is_in_one_table(table, 120)
    table.maintain()
    assert table.stored() == table.named()
    assert_each_value_is_in_one_table(table, 120)


@pytest.mark.heavy
def test_two_processes_that_sync_at_once_leave_each_row_once_and_no_file(
    table: BucketTable,
) -> None:
    table.add(0, 40, 80)
    both = [table.start("sync") for _ in range(2)]
    assert [one.wait(WAIT_S) for one in both] == [0, 0], table.job_log()
    assert_each_value_is_in_one_table(table, 120)
    table.maintain()
    assert table.stored() == table.named()
    assert_each_value_is_in_one_table(table, 120)


@pytest.mark.heavy
def test_rejected_rows_that_a_dead_sync_left_are_no_orphans(table: BucketTable) -> None:
    table.add(0, 40)
    process = table.start("sync", crash_at="table.after-commit")
    assert process.wait(WAIT_S) == EXIT_STATUS_KILLED
    table.maintain()
    table.sync()
    assert_each_value_is_in_one_table(table, 80)

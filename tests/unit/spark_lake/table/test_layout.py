"""Names, order, codec, partitions and size of a table's files: as asked for, and kept."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform

from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.run import TableRequest, TableRun
from strandline.spark_lake.table.upkeep.retention import Retention
from strandline.storage.errors import InvalidConfig
from strandline.storage.records.batch.record import Record
from tests.support.heavy import heavy
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
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
from tests.unit.spark_lake.table.test_delta import DELTA
from tests.unit.spark_lake.table.test_upkeep import NOW

pytestmark = pytest.mark.slow

FORMATS = [{}, DELTA]


def assert_sorted(files: Sequence[str], columns: Sequence[str], *, is_descending: bool) -> None:
    assert files
    for file in files:
        rows = pq.ParquetFile(file).read(list(columns)).to_pylist()
        keys = [tuple((row[one] is None, row[one]) for one in columns) for row in rows]
        known = [key for key in keys if not any(is_null for is_null, _ in key)]
        assert known == sorted(known, reverse=is_descending)


def codecs(files: Sequence[str]) -> set[str]:
    metadata = [pq.ParquetFile(file).metadata for file in files]
    return {one.row_group(0).column(0).compression for one in metadata}


@pytest.mark.parametrize("table_format", FORMATS)
def test_columns_have_the_names_that_were_chosen(
    orders: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    columns = ["offset=position", "key=", "headers=", "topic=source", "timestampType=kind"]
    sync(orders, columns=columns, **table_format)
    add_rows(orders, base=80)
    assert sync(orders, columns=columns, **table_format).rows == 80
    (file, *_) = data_files(orders)
    names = pq.ParquetFile(file).schema_arrow.names
    record = ["_topic_id", "_topic_partition", "position", "_timestamp", "source", "kind"]
    assert names == [*record, "id", "city", "nested", "tags"]
    if not table_format:
        assert make_run(orders, columns=columns).check(deep=True).findings == []
        assert make_run(orders, columns=columns).maintain(None, NOW).rewritten_files
        assert make_run(orders, columns=columns).check(deep=True).findings == []
        make_run(orders).maintain(None, NOW)
    refusing: list[Callable[[TableRun], object]] = [partial(TableRun.sync, progress=NoProgress())]
    if not table_format:
        refusing += [TableRun.check, partial(TableRun.maintain, retention=Retention())]
    for refused in refusing:
        with pytest.raises(InvalidConfig, match="no column _offset: give the --column options"):
            refused(make_run(orders, **table_format))


def test_a_value_that_is_no_struct_has_one_column(orders: ArchiveBuilder) -> None:
    request = TableRequest(
        remote=orders.url,
        topic="orders",
        table="lake.orders",
        options={"valueFormat": "string"},
        columns=["value=body"],
    )
    TableRun(request).sync(NoProgress())
    rows = iceberg(make_run(orders)).scan(row_filter="_topic_partition = 0").to_arrow().to_pylist()
    found = {row["_offset"]: row["body"] for row in rows}
    assert found == {
        one: None if (value := value_of(one)) is None else value.decode() for one in range(80)
    }


def test_columns_that_no_table_can_do_without_are_asked_for(orders: ArchiveBuilder) -> None:
    with pytest.raises(InvalidConfig, match="no table can do without offset"):
        make_run(orders, columns=["offset="])
    with pytest.raises(InvalidConfig, match="the nearest part is offset"):
        make_run(orders, columns=["ofset=x"])
    with pytest.raises(InvalidConfig, match=r"two columns named id.*rename that with --column"):
        sync(orders, columns=["offset=id"])
    assert not data_files(orders)


@pytest.mark.parametrize("table_format", FORMATS)
def test_columns_that_differ_in_case_alone_are_refused(
    orders: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    for schema, said in (
        ("id INT, Id INT", "two columns named Id, id"),
        ("id INT, _OFFSET INT", "two columns named _OFFSET, _offset"),
        ("a STRUCT<b: INT, B: INT>", "two columns named a.B, a.b"),
        ("a ARRAY<STRUCT<b: INT, B: INT>>", "two columns named"),
    ):
        with pytest.raises(TableRefused, match=said):
            sync(orders, schema, **table_format)
    assert not data_files(orders)


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_order_of_a_table_stays_without_the_option_until_another_is_given(
    orders: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    sync(orders, sort_by=["id desc"], **table_format)
    first = data_files(orders)
    assert_sorted(first, ["id"], is_descending=True)
    add_rows(orders, base=80)
    sync(orders, **table_format)
    second = set(data_files(orders)) - set(first)
    assert_sorted(sorted(second), ["id"], is_descending=True)
    add_rows(orders, base=120)
    sync(orders, sort_by=["_key", "id"], **table_format)
    add_rows(orders, base=160)
    sync(orders, **table_format)
    third = set(data_files(orders)) - set(first) - second
    assert_sorted(sorted(third), ["_key", "id"], is_descending=False)
    with pytest.raises(InvalidConfig, match="sorted by columns of one value each"):
        sync(orders, sort_by=["tags"], **table_format)
    with pytest.raises(InvalidConfig, match="there is no column idd"):
        sync(orders, sort_by=["idd"], **table_format)


def test_maintenance_keeps_the_order_of_a_table(orders: ArchiveBuilder) -> None:
    sync(orders, sort_by=["id desc"])
    assert make_run(orders).maintain(None, NOW).rewritten_files
    assert_sorted(named_files(make_run(orders)), ["id"], is_descending=True)
    table = iceberg(make_run(orders))
    orders_of = {one.file.sort_order_id for one in table.scan().plan_files()}
    assert orders_of == {table.metadata.default_sort_order_id}


def test_an_order_that_another_engine_gave_the_table_is_kept(synced: ArchiveBuilder) -> None:
    first = data_files(synced)
    with iceberg(make_run(synced)).update_sort_order() as update:
        update.desc("_offset", IdentityTransform(), NullOrder.NULLS_FIRST)
    add_rows(synced, base=80)
    sync(synced)
    second = sorted(set(data_files(synced)) - set(first))
    assert_sorted(second, ["_offset"], is_descending=True)
    with iceberg(make_run(synced)).update_sort_order() as update:
        update.asc("_key", BucketTransform(4), NullOrder.NULLS_LAST)
    add_rows(synced, base=120)
    sync(synced)
    make_run(synced).maintain(None, NOW)
    files = list(iceberg(make_run(synced)).scan().plan_files())
    # An order that our files do not have is not told of them.
    assert {one.file.sort_order_id for one in files} == {None}


def test_maintenance_orders_rows_by_partition_and_offset_as_a_sync_does(
    orders: ArchiveBuilder,
) -> None:
    for base in (80, 120):
        sync(orders)
        add_rows(orders, base=base)
    sync(orders)
    assert make_run(orders).maintain(None, NOW).rewritten_files
    files = named_files(make_run(orders))
    assert_sorted(files, ["_topic_partition", "_offset"], is_descending=False)


@pytest.mark.parametrize("table_format", FORMATS)
def test_files_have_the_tables_codec_also_later(
    orders: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    sync(orders, **table_format)
    assert codecs(data_files(orders)) == {"ZSTD"}
    other = {"table": "lake.other", **table_format}
    sync(orders, codec="snappy", **other)
    add_rows(orders, base=80)
    sync(orders, **other)
    if not table_format:
        assert make_run(orders, **other).maintain(None, NOW).rewritten_files
    files = [one for one in data_files(orders) if "/lake/other/" in one]
    assert codecs(files) == {"SNAPPY"}


@pytest.mark.parametrize(
    ("partition_by", "count"),
    [
        (["day(_timestamp)"], 5),
        heavy(["hours(_timestamp)"], 80),
        (["year(_timestamp)"], 1),
        (["bucket(4, _key)"], 3),
        (["truncate(10, id)"], 9),
        (["truncate(city, 1)"], 2),
        (["id"], 70),
        (["day(_timestamp)", "_topic_partition"], 10),
        ([], 1),
    ],
)
def test_rows_are_partitioned_as_asked_for_and_found_by_filters(
    orders: ArchiveBuilder, partition_by: list[str], count: int
) -> None:
    sync(orders, partition_by=partition_by, round_bytes=1 << 30)
    run = make_run(orders)
    files = list(iceberg(run).scan().plan_files())
    assert len({tuple(one.file.partition) for one in files}) == count
    assert len(files) == count
    assert rows_of(run) == every(range(80))
    moment = dt.datetime.fromtimestamp(START_MS / 1000 + 70 * 3600, dt.UTC)
    for row_filter, wanted in (
        (GreaterThanOrEqual("_timestamp", moment.isoformat()), range(70, 80)),
        (EqualTo("_key", b"k3"), range(3, 80, 5)),
        (EqualTo("id", 42), [42]),
        (EqualTo("city", "x"), [one for one in range(80) if value_of(one) is not None]),
    ):
        found = iceberg(run).scan(row_filter=row_filter).to_arrow().column("_offset").to_pylist()
        assert sorted(found) == sorted([*wanted, *wanted])
    add_rows(orders, base=80)
    sync(orders)
    assert make_run(orders).maintain(None, NOW) is not None
    assert make_run(orders).check(deep=True).findings == []


def test_a_transform_that_does_not_suit_its_column_is_refused(orders: ArchiveBuilder) -> None:
    for partition_by, said in (
        (["day(city)"], "city is string"),
        (["bucket(0, _key)"], "must be one of"),
        (["week(_timestamp)"], "must be one of"),
        (["day(_time)"], "there is no column _time"),
        (["day(_timestamp)", "hour(_timestamp)"], "uses a column twice"),
        (["nested.a"], "there is no column nested.a"),
        (["bucket(4, nested.a)"], "there is no column nested.a"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            sync(orders, partition_by=partition_by)
    assert not data_files(orders)


def test_a_delta_table_has_days_of_times_and_dates_alone(orders: ArchiveBuilder) -> None:
    for column in ("city", "id"):
        with pytest.raises(InvalidConfig, match=f"{column} is .*, which has no day"):
            sync(orders, partition_by=[f"day({column})"], **DELTA)
    assert not data_files(orders)


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_is_not_partitioned_by_floating_point_numbers(
    orders: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    for kind in ("FLOAT", "DOUBLE"):
        with pytest.raises(InvalidConfig, match=r"id is (float|double)"):
            sync(orders, f"id {kind}", partition_by=["id"], **table_format)
    assert not data_files(orders)


def test_partitions_that_do_not_have_each_row_once_are_not_written(
    orders: ArchiveBuilder,
) -> None:
    """Another engine may have partitioned by such numbers: -0.0 equals 0.0, but is another one."""
    sync(orders, "id DOUBLE")
    with iceberg(make_run(orders)).update_spec() as update:
        update.add_identity("id")
    records = [
        Record(offset=80 + n, timestamp_ms=START_MS, key=b"k", value=value, headers=())
        for n, value in enumerate((b'{"id": 0.0}', b'{"id": -0.0}'))
    ]
    orders.add_segment("orders", make_batches(records))
    before = data_files(orders)
    with pytest.raises(TableRefused, match="floating-point"):
        sync(orders, "id DOUBLE")
    assert data_files(orders) == before
    assert rows_of(make_run(orders)) == every(range(80))


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_file_has_as_many_rows_as_fit_into_its_size(
    orders: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    one_file = {"partition_by": [], "round_bytes": 1 << 30, **table_format}
    sync(orders, **one_file)
    assert len(data_files(orders)) == 1
    sync(orders, table="lake.small", file_bytes=1, **one_file)
    small = [one for one in data_files(orders) if "/lake/small/" in one]
    assert len(small) > 1
    assert sum(pq.ParquetFile(one).metadata.num_rows for one in small) == 160
    with pytest.raises(InvalidConfig, match="file-bytes"):
        make_run(orders, file_bytes=0)


def test_readers_skip_the_files_whose_statistics_exclude_a_filter(orders: ArchiveBuilder) -> None:
    sync(orders, partition_by=[], round_bytes=1 << 30, file_bytes=1)
    table = iceberg(make_run(orders))
    total = len(list(table.scan().plan_files()))
    assert total >= 4
    moment = dt.datetime.fromtimestamp(START_MS / 1000 + 79 * 3600, dt.UTC)
    for row_filter, at_most in (
        (EqualTo("_offset", 79), 2),
        (EqualTo("id", 79), 2),
        (GreaterThanOrEqual("_timestamp", moment.isoformat()), 2),
        (EqualTo("_topic_partition", 0), total // 2),
        (EqualTo("city", "y"), 0),
    ):
        found = len(list(table.scan(row_filter=row_filter).plan_files()))
        assert found <= at_most, row_filter
        assert found or not at_most, row_filter


def test_readers_skip_files_of_delta_by_numbers_and_times(orders: ArchiveBuilder) -> None:
    sync(orders, format="delta", partition_by=[], round_bytes=1 << 30, file_bytes=1)
    folder = orders.path.with_name(f"{orders.path.name}-tables") / "lake" / "orders"
    files = DeltaTable(folder).to_pyarrow_dataset()
    total = len(list(files.get_fragments()))
    assert total >= 4
    moment = dt.datetime.fromtimestamp(START_MS / 1000 + 79 * 3600, dt.UTC)
    for row_filter, at_most in (
        (ds.field("_offset") == 79, 2),
        (ds.field("id") == 79, 2),
        (ds.field("_timestamp") >= moment, 2),
        (ds.field("_topic_partition") == 0, total // 2),
    ):
        found = len(list(files.get_fragments(filter=row_filter)))
        assert 0 < found <= at_most, row_filter

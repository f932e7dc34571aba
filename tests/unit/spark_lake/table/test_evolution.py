"""Schemas change from sync to sync: what a table can take it takes, the rest is refused by name."""

from __future__ import annotations

import decimal
import json
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer

from strandline.spark_lake.table.conform import added_fields, without_fields
from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.offsets import WIDENED_PROPERTY, decode_widenings
from strandline.storage.crash_points import SimulatedCrash
from strandline.storage.errors import CorruptFile, InvalidConfig, UnsupportedFormat
from strandline.storage.records.batch.record import Record
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
from tests.unit.spark_lake.table.random_history import NOW
from tests.unit.spark_lake.table.rig import data_files, iceberg, make_run, sync
from tests.unit.spark_lake.table.test_delta import DELTA

pytestmark = pytest.mark.slow

FIRST = (
    "id INT, price FLOAT, cost DECIMAL(6, 2), gone STRING, nested STRUCT<a: INT>,"
    " lines ARRAY<STRUCT<n: INT>>"
)
SECOND = (
    "id BIGINT, price DOUBLE, cost DECIMAL(12, 2), nested STRUCT<a: BIGINT, b: STRING>,"
    " lines ARRAY<STRUCT<n: BIGINT, sku: STRING>>, extra ARRAY<STRING>"
)
OLD = {
    "id": 1,
    "price": 1.5,
    "cost": "12.50",
    "gone": "g",
    "nested": {"a": 1},
    "lines": [{"n": 1}, None],
}
NEW = {
    "id": 1 << 40,
    "price": 1e300,
    "cost": "1234567890.25",
    "nested": {"a": 1 << 40, "b": "b"},
    "lines": [{"n": 1 << 40, "sku": "s"}],
    "extra": ["e"],
}


@pytest.fixture
def archive(orders: ArchiveBuilder) -> ArchiveBuilder:
    """Nothing but what a test adds."""
    orders.add_topic("changing")
    return orders


def add(archive: ArchiveBuilder, offset: int, value: dict[str, Any], *, key: bytes = b"k") -> None:
    record = Record(
        offset=offset, timestamp_ms=START_MS, key=key, value=json.dumps(value).encode(), headers=()
    )
    archive.add_segment("changing", make_batches([record]))


def run_of(archive: ArchiveBuilder, schema: str, **more: Any) -> Any:
    return make_run(archive, schema, **{"topic": "changing", "table": "lake.changing", **more})


def sync_of(archive: ArchiveBuilder, schema: str, **more: Any) -> Any:
    return sync(archive, schema, **{"topic": "changing", "table": "lake.changing", **more})


def rows(archive: ArchiveBuilder) -> list[dict[str, Any]]:
    table = run_of(archive, SECOND).upkeep()
    assert table.load() is not None
    found = [row for file in table.live_files() for b in table.read(file) for row in b.to_pylist()]
    return sorted(found, key=lambda row: int(row["_offset"]))


def test_new_fields_wider_types_and_fields_that_are_gone_at_any_depth(
    archive: ArchiveBuilder,
) -> None:
    add(archive, 0, OLD)
    sync_of(archive, FIRST)
    add(archive, 1, NEW)
    sync_of(archive, SECOND)
    # An older program goes on with what it knows.
    add(archive, 2, OLD)
    sync_of(archive, FIRST)
    first, second, third = rows(archive)
    assert (first["id"], first["price"], first["gone"], first["extra"]) == (1, 1.5, "g", None)
    assert first["nested"] == {"a": 1, "b": None}
    assert first["lines"] == [{"n": 1, "sku": None}, None]
    assert {key: value for key, value in third.items() if key != "_offset"} == {
        key: value for key, value in first.items() if key != "_offset"
    }
    assert second["cost"] == decimal.Decimal("1234567890.25")
    assert (second["id"], second["price"], second["gone"]) == (1 << 40, 1e300, None)
    assert second["nested"] == {"a": 1 << 40, "b": "b"}
    assert second["lines"] == [{"n": 1 << 40, "sku": "s"}]
    assert second["extra"] == ["e"]
    # What a program does not know it does not miss.
    for schema in (SECOND, "id BIGINT, nested STRUCT<b: STRING>, lines ARRAY<STRUCT<sku: STRING>>"):
        assert run_of(archive, schema).check(deep=True).findings == []


def test_every_field_that_a_table_can_never_take_is_named_and_nothing_is_written(
    archive: ArchiveBuilder,
) -> None:
    add(archive, 0, OLD)
    sync_of(archive, FIRST)
    add(archive, 1, NEW)
    before = data_files(archive), iceberg(run_of(archive, FIRST)).metadata_location
    other = (
        "id STRING, price DECIMAL(6, 2), cost DECIMAL(6, 3), GONE STRING,"
        " nested STRUCT<a: STRING>, lines ARRAY<STRING>, new STRING"
    )
    with pytest.raises(TableRefused) as refused:
        sync_of(archive, other)
    for said in (
        "id is int in the table, string here",
        "price is float in the table, decimal(6, 2) here",
        "cost is decimal(6, 2) in the table, decimal(6, 3) here",
        "GONE beside gone, which differs in case alone",
        "nested.a is int in the table, string here",
        "lines.element is a struct in the table, string here",
    ):
        assert said in str(refused.value)
    assert "new" not in str(refused.value).replace("new table", "")
    assert before == (data_files(archive), iceberg(run_of(archive, FIRST)).metadata_location)


def test_a_new_column_with_the_full_name_of_a_field_is_refused(archive: ArchiveBuilder) -> None:
    """For ever: a sync at an interval must not wait for it."""
    add(archive, 0, OLD)
    sync_of(archive, FIRST)
    add(archive, 1, OLD)
    for column in ("nested.a", "lines.element.n"):
        with pytest.raises(TableRefused, match=f"cannot take a new field: .*{column}"):
            sync_of(archive, f"id INT, `{column}` INT")


@pytest.mark.parametrize("table_format", [{}, DELTA])
def test_a_deep_check_knows_rows_of_before_a_column_from_values_that_are_lost(
    archive: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    old, new = "id INT", "id INT, extra ARRAY<STRING>"

    def findings() -> list[str]:
        return run_of(archive, new, **table_format).check(deep=True).findings

    add(archive, 0, NEW | {"id": 0})
    sync_of(archive, old, **table_format)
    sync_of(archive, new, **table_format)
    assert findings() == []
    # An older program goes on without the field, before the column has its first value.
    add(archive, 1, NEW | {"id": 1})
    sync_of(archive, old, **table_format)
    lost = ["partition 0 offset 1: column extra is another value than in the archive"]
    assert findings() == lost
    add(archive, 2, NEW | {"id": 2})
    sync_of(archive, new, **table_format)
    assert findings() == lost


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_deep_check_knows_when_each_field_of_a_struct_was_new(
    archive: ArchiveBuilder, mode: str
) -> None:
    """Also after maintenance has rewritten the files and expired the snapshots."""
    value = {
        "nested": {"a": 1, "b": "b"},
        "lines": [{"n": 1, "sku": "s"}, None],
    }
    for offset in range(3):
        add(archive, offset, value, key=b"k%d" % offset)
        # Field b is new at offset 1, sku at offset 2.
        b, sku = (
            f", {name}: STRING" if offset >= first else "" for name, first in (("b", 1), ("sku", 2))
        )
        schema = f"nested STRUCT<a: INT{b}>, lines ARRAY<STRUCT<n: INT{sku}>>"
        sync_of(archive, schema, mode=mode)
    for narrow in (schema, "nested STRUCT<b: STRING>"):
        assert run_of(archive, narrow, mode=mode).check(deep=True).findings == []
    run = run_of(archive, schema, mode=mode)
    run.maintain(settings=NOW)
    assert len(iceberg(run).snapshots()) == 1
    assert run.check(deep=True).findings == []
    add(archive, 3, value, key=b"k3")
    sync_of(archive, "nested STRUCT<a: INT>, lines ARRAY<STRUCT<n: INT, sku: STRING>>", mode=mode)
    assert run_of(archive, schema, mode=mode).check(deep=True).findings == [
        "partition 0 offset 3: column nested is another value than in the archive"
    ]


def test_fields_that_are_new_in_lists_and_maps_are_known_by_their_place() -> None:
    def schema(*more: tuple[str, pa.DataType]) -> pa.Schema:
        inside = pa.struct([("a", pa.int32()), *more])
        return pa.schema([("m", pa.map_(pa.string(), pa.large_list(inside))), ("b", pa.int32())])

    old, new = schema(), schema(("b", pa.string()))
    assert added_fields(old, new) == [("m", "value", "element", "b")]
    assert added_fields(new, old) == added_fields(new, new) == []
    assert without_fields(new, added_fields(old, new)) == old


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"version": 2, "steps": []}', UnsupportedFormat),
        ("{", CorruptFile),
        ('{"version": 1, "steps": [{"fields": [["a"]]}]}', CorruptFile),
        ('{"version": 1, "steps": [{"fields": [["a"]], "next": {"?": {"0": 1}}}]}', CorruptFile),
    ],
)
def test_a_property_of_new_fields_that_cannot_be_read_is_an_error(
    text: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"strandline\.widened of lake\.t"):
        decode_widenings(text, source="lake.t")


def test_a_death_while_a_delta_table_is_widened_changes_nothing_for_a_deep_check(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two commits: offsets, then the column."""
    schema = "id INT, extra ARRAY<STRING>"
    add(archive, 0, NEW | {"id": 0})
    sync_of(archive, "id INT", **DELTA)
    with monkeypatch.context() as patched:
        patched.setattr(TableAlterer, "add_columns", _die)
        for _ in range(2):
            with pytest.raises(SimulatedCrash):
                sync_of(archive, schema, **DELTA)
    add(archive, 1, NEW | {"id": 1})
    sync_of(archive, "id INT", **DELTA)
    add(archive, 2, NEW | {"id": 2})
    sync_of(archive, schema, **DELTA)
    run = run_of(archive, schema, **DELTA)
    assert run.check(deep=True).findings == []
    text = run.upkeep().property_of(WIDENED_PROPERTY)
    ends = [
        dict(ends)
        for one in decode_widenings(text, source="")
        for ends in one.next_offsets.values()
    ]
    assert ends == [{0: 1}, {0: 2}]


def _die(*_: object) -> None:
    raise SimulatedCrash


@pytest.mark.parametrize("table_format", [{}, DELTA])
def test_a_record_without_fields_is_refused_before_a_table_is_made(
    archive: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    add(archive, 0, OLD)
    empty = {"type": "record", "name": "Empty", "fields": []}
    inside = {"type": "record", "name": "Inside", "fields": [{"name": "in", "type": empty}]}
    for kind, name in ((empty, "e"), (inside, "e.in")):
        fields = [{"name": "id", "type": "int"}, {"name": "e", "type": kind}]
        schema = json.dumps({"type": "record", "name": "R", "fields": fields})
        with pytest.raises(TableRefused, match=f"^{name} is a record or message without fields"):
            sync_of(archive, schema, options={"valueFormat": "avro"}, **table_format)
    assert not archive.path.with_name("archive-tables").joinpath("lake").exists()


def test_a_delta_table_takes_new_columns_and_names_what_it_cannot_take(
    archive: ArchiveBuilder,
) -> None:
    add(archive, 0, OLD)
    sync_of(archive, FIRST, **DELTA)
    add(archive, 1, OLD | {"extra": ["e"]})
    place = f"{archive.url}-tables/lake/changing"
    before = data_files(archive), DeltaTable(place).version()
    with pytest.raises(TableRefused) as refused:
        sync_of(archive, SECOND, **DELTA)
    for name in ("id", "price", "cost", "nested", "lines"):
        assert f"{name} is " in str(refused.value)
    assert "gone" not in str(refused.value)
    assert before == (data_files(archive), DeltaTable(place).version())
    narrower = "id SMALLINT, price FLOAT, nested STRUCT<a: SMALLINT>, extra ARRAY<STRING>"
    sync_of(archive, narrower, **DELTA)
    found = pl.read_delta(place.removeprefix("file://")).sort("_offset").to_dicts()
    assert [row["extra"] for row in found] == [None, ["e"]]
    assert [row["gone"] for row in found] == ["g", None]
    assert [row["nested"] for row in found] == [{"a": 1}, {"a": 1}]


@pytest.mark.parametrize("table_format", [{}, DELTA])
def test_an_order_that_cannot_be_is_refused_before_a_column_is_added(
    archive: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    add(archive, 0, OLD)
    sync_of(archive, FIRST, **table_format)
    more = f"{FIRST}, more INT, list ARRAY<INT>"
    for column in ("mode", "list"):
        with pytest.raises(InvalidConfig, match="--sort-by"):
            sync_of(archive, more, sort_by=[column], **table_format)
        assert "more" not in names_of(run_of(archive, FIRST, **table_format).store)
    # A new column orders the files of the sync that adds it.
    sync_of(archive, more, sort_by=["more"], **table_format)
    assert "more" in names_of(run_of(archive, FIRST, **table_format).store)


@pytest.mark.parametrize("table_format", [{}, DELTA])
def test_no_second_table_is_made_if_the_first_one_is_refused(
    archive: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    add(archive, 0, OLD)
    sync_of(archive, FIRST, **table_format)
    with pytest.raises(TableRefused, match="cannot take these fields"):
        sync_of(archive, "id STRING", on_error="reject", **table_format)
    assert run_of(archive, FIRST, **table_format).rejected.load() is None
    given = {"table": "lake.other", "on_error": "reject", **table_format}
    with pytest.raises(InvalidConfig, match="there is no column idd"):
        sync_of(archive, FIRST, partition_by=["idd"], **given)
    assert run_of(archive, FIRST, **given).rejected.load() is None


def names_of(store: Any) -> list[str]:
    """The columns of the table, by a reader."""
    assert store.load() is not None
    return list(store.writer("0" * 32).schema.names)

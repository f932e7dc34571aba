"""Files and columns of other engines keep every value when a table is maintained or upserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record as Values
from pyiceberg.types import IntegerType, ListType, LongType, MapType, NestedField, StringType
from pyiceberg.types import StructType as Struct

from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.iceberg import reader, writer
from strandline.spark_lake.table.iceberg.reader import null_counts, read_rows
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.random_history import NOW
from tests.unit.spark_lake.table.rig import add_rows, iceberg, make_run, sync

pytestmark = pytest.mark.slow

NESTED = "id BIGINT, nested STRUCT<a: INT>, tags ARRAY<STRING>"


def all_rows(run: Any, *columns: str) -> list[Any]:
    """By pyiceberg, which is not the reader that these tests check."""
    rows = iceberg(run).scan().to_arrow().select(["_topic_partition", "_offset", *columns])
    return sorted(rows.to_pylist(), key=lambda row: (row["_topic_partition"], row["_offset"]))


def rename(run: Any, old: str, new: str) -> None:
    with iceberg(run).update_schema() as update:
        update.rename_column(old, new)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_field_of_a_struct_that_another_engine_renamed_keeps_its_values(
    orders: ArchiveBuilder, mode: str
) -> None:
    sync(orders, NESTED, mode=mode)
    run = make_run(orders, NESTED, mode=mode)
    rename(run, "nested.a", "b")
    rename(run, "tags", "labels")
    before = all_rows(run, "id", "nested")
    assert any(one["nested"] and one["nested"]["b"] is not None for one in before)
    if mode == "upsert":
        # Of one key: the rows of the others are in the same files.
        add_rows(orders, base=80, count=1)
        sync(orders, NESTED, mode=mode)
        kept = [one for one in before if one["id"] is not None and one["id"] % 5]
        after = {(r["_topic_partition"], r["_offset"]): r for r in all_rows(run, "id", "nested")}
        for one in kept:
            found = after[one["_topic_partition"], one["_offset"]]
            assert found["nested"]["b"] == one["nested"]["b"]
        return
    assert run.maintain(settings=NOW).rewritten_files
    assert all_rows(run, "id", "nested") == before
    report = run.check(deep=True)
    assert report.findings == []
    assert list(report.uncompared) == ["nested.b", "labels"]


def foreign_file(run: Any, folder: Path, *, more: dict[str, Any] | None = None) -> str:
    """A file of some rows without field ids, as another writer leaves it."""
    rows = iceberg(run).scan(limit=3).to_arrow()
    plain = pa.schema([pa.field(one.name, one.type) for one in rows.schema])
    rows = pa.Table.from_arrays(rows.columns, schema=plain)
    for name, column in (more or {}).items():
        rows = rows.append_column(name, column)
    path = folder / "foreign.parquet"
    pq.write_table(rows, path)
    return f"file://{path}"


def test_files_without_field_ids_are_rewritten_by_the_name_mapping_of_the_table(
    orders: ArchiveBuilder, tmp_path: Path
) -> None:
    sync(orders, partition_by=["city"])
    run = make_run(orders)
    iceberg(run).add_files([foreign_file(run, tmp_path)])
    before = all_rows(run, "id", "city", "nested")
    assert len(before) == 163
    assert run.maintain(settings=NOW).rewritten_files
    assert all_rows(run, "id", "city", "nested") == before


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_file_whose_columns_cannot_be_placed_is_refused_and_nothing_is_committed(
    orders: ArchiveBuilder, tmp_path: Path, mode: str
) -> None:
    by = ["_topic_partition"]
    sync(orders, mode=mode, partition_by=by)
    run = make_run(orders, mode=mode)
    rows = iceberg(run).scan(row_filter="_topic_partition == 0", limit=3).to_arrow()
    plain = pa.schema([pa.field(one.name, one.type) for one in rows.schema])
    pq.write_table(pa.Table.from_arrays(rows.columns, schema=plain), tmp_path / "plain.parquet")
    iceberg(run).add_files([f"file://{tmp_path}/plain.parquet"])
    with iceberg(run).transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    snapshot = iceberg(run).current_snapshot()
    add_rows(orders, base=80, count=5)
    with pytest.raises(TableRefused, match=r"plain\.parquet cannot be placed: .*name-mapping"):
        run.maintain(settings=NOW) if mode == "append" else sync(orders, mode=mode)
    assert iceberg(run).current_snapshot() == snapshot
    if mode == "append":
        with pytest.raises(TableRefused, match=r"plain\.parquet cannot be placed"):
            run.check(deep=True)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_reader_that_loses_values_is_noticed_before_they_are_gone_and_by_a_deep_check(
    orders: ArchiveBuilder, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(orders, NESTED, mode=mode)
    run = make_run(orders, NESTED, mode=mode)

    def lose(placing: Any, found: Any, wanted: Any, kind: Any, **more: Any) -> list[Any]:
        arrays = list(place(placing, found, wanted, kind, **more))
        names = [one.name for one in wanted.fields]
        if "a" in names:
            position = names.index("a")
            arrays[position] = pa.nulls(len(arrays[position]), arrays[position].type)
        return arrays

    place = reader._Placing.fields
    monkeypatch.setattr(reader._Placing, "fields", lose)
    snapshot = iceberg(run).current_snapshot()
    lost = r"has nulls where its table has values: nested\.a \(\d+, not \d+\)"
    if mode == "append":
        assert any("has nulls where its table" in one for one in run.check(deep=True).findings)
    add_rows(orders, base=80, count=1)
    with pytest.raises(TableRefused, match=lost):
        run.maintain(settings=NOW) if mode == "append" else sync(orders, NESTED, mode=mode)
    assert iceberg(run).current_snapshot() == snapshot


def test_a_writer_that_loses_values_is_noticed_before_its_file_is_committed(
    synced: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(synced)

    def lose(rows: Any, schema: Any) -> Any:
        position = schema.get_field_index("city")
        rows = whole(rows, schema)
        return rows.set_column(
            position, schema.field(position), pa.nulls(len(rows), "large_string")
        )

    whole = writer.conform
    monkeypatch.setattr(writer, "conform", lose)
    snapshot = iceberg(run).current_snapshot()
    add_rows(synced, base=80)
    with pytest.raises(TableRefused, match="nulls where its table has values: city"):
        sync(synced)
    assert iceberg(run).current_snapshot() == snapshot


# One of each: a struct, elements, keys, values; the names of the file are others.
WANTED = Schema(
    NestedField(1, "number", LongType(), required=False),
    NestedField(
        2, "place", Struct(NestedField(3, "town", StringType(), required=False)), required=False
    ),
    NestedField(
        4,
        "lines",
        ListType(5, Struct(NestedField(6, "sku", LongType(), required=False)), False),
        required=False,
    ),
    NestedField(
        7,
        "extra",
        MapType(
            8, StringType(), 9, Struct(NestedField(10, "n", LongType(), required=False)), False
        ),
        required=False,
    ),
    NestedField(11, "later", LongType(), required=False, initial_default=7),
    NestedField(12, "day", StringType(), required=False),
    NestedField(13, "new", StringType(), required=False),
)


def with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


FILE = pa.schema(
    [
        with_id(
            "m",
            pa.map_(
                with_id("key", pa.string(), 8).with_nullable(False),
                with_id("value", pa.struct([with_id("x", pa.int32(), 10)]), 9),
            ),
            7,
        ),
        with_id("gone", pa.string(), 99),
        with_id("l", pa.list_(with_id("element", pa.struct([with_id("s", pa.int32(), 6)]), 5)), 4),
        with_id(
            "p", pa.struct([with_id("city", pa.string(), 3), with_id("zip", pa.int32(), 98)]), 2
        ),
        with_id("id", pa.int32(), 1),
    ]
)
IN_FILE = [
    {"id": 1, "p": {"city": "c"}, "l": [{"s": 1}, None, {"s": None}], "m": [("k", {"x": 1})]},
    {"id": None, "p": None, "l": None, "m": None},
    {"id": 3, "p": {"city": None}, "l": [], "m": []},
    {"id": 4, "p": {"city": "d"}, "l": [{"s": 4}], "m": [("k", None), ("l", {"x": None})]},
]
IN_TABLE = [
    {
        "number": 1,
        "place": {"town": "c"},
        "lines": [{"sku": 1}, None, {"sku": None}],
        "extra": [("k", {"n": 1})],
    },
    {"number": None, "place": None, "lines": None, "extra": None},
    {"number": 3, "place": {"town": None}, "lines": [], "extra": []},
    {
        "number": 4,
        "place": {"town": "d"},
        "lines": [{"sku": 4}],
        "extra": [("k", None), ("l", {"n": None})],
    },
]
# By field id, of IN_FILE.
NULLS = {1: 1, 3: 2, 6: 4, 8: 2, 10: 4}


class Given:
    """What the reader asks of a table's metadata."""

    format_version = 2

    def __init__(self, schema: Schema, mapping: Any = None) -> None:
        self._schema = schema
        self._mapping = mapping

    def schema(self) -> Schema:
        return self._schema

    def name_mapping(self) -> Any:
        return self._mapping

    def specs(self) -> dict[int, PartitionSpec]:
        return {0: PartitionSpec(PartitionField(12, 1000, IdentityTransform(), "day"), spec_id=0)}


def read(path: Path, metadata: Any, nulls: dict[int, int] | None = None) -> list[dict[str, Any]]:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Values("monday"),
        record_count=4,
        file_size_in_bytes=1,
        null_value_counts=nulls,
    )
    file.spec_id = 0
    return [row for b in read_rows(PyArrowFileIO(), metadata, file) for row in b.to_pylist()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.parquet"


def test_fields_are_placed_by_id_in_structs_elements_keys_and_values(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(IN_FILE, FILE), path)
    more = {"later": 7, "day": "monday", "new": None}
    assert read(path, Given(WANTED), NULLS) == [one | more for one in IN_TABLE]
    # A second row group, whose arrays begin in the middle of others.
    pq.write_table(pa.Table.from_pylist(IN_FILE, FILE), path, row_group_size=3)
    assert read(path, Given(WANTED), NULLS) == [one | more for one in IN_TABLE]


def test_nulls_are_counted_as_parquet_counts_them(path: Path) -> None:
    rows = pa.Table.from_pylist(IN_TABLE, pa.schema(list(schema_to_pyarrow(WANTED))))
    counts: dict[int, int] = {}
    for field_id, count in null_counts(rows, WANTED):
        counts[field_id] = counts.get(field_id, 0) + count
    assert {one: count for one, count in counts.items() if one < 11} == NULLS
    pq.write_table(rows, path)
    group = pq.ParquetFile(path).metadata.row_group(0)
    found = [group.column(one).statistics.null_count for one in range(group.num_columns)]
    assert found == list(counts.values())


def test_a_file_without_ids_is_placed_by_the_name_mapping_also_in_lists_and_maps(
    path: Path,
) -> None:
    mapping = create_mapping_from_schema(WANTED)
    names = pa.schema([_without_ids(one) for one in schema_to_pyarrow(WANTED)][:4])
    pq.write_table(pa.Table.from_pylist(IN_TABLE, names), path)
    more = {"later": 7, "day": "monday", "new": None}
    assert read(path, Given(WANTED, mapping)) == [one | more for one in IN_TABLE]
    with pytest.raises(TableRefused, match="cannot be placed"):
        read(path, Given(WANTED))


def _without_ids(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_without_ids(one) for one in kind])
    elif pa.types.is_large_list(kind):
        kind = pa.list_(_without_ids(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_without_ids(kind.key_field), _without_ids(kind.item_field))
    return pa.field(field.name, kind, field.nullable)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (NestedField(1, "number", IntegerType(), required=False), "number is string there"),
        (NestedField(5, "must", IntegerType(), required=True), "no must, which each row must have"),
        (NestedField(1, "n", ListType(9, IntegerType(), False)), "n is string there"),
    ],
)
def test_a_column_of_another_type_or_a_needed_one_that_is_missing_is_refused(
    path: Path, field: NestedField, said: str
) -> None:
    pq.write_table(pa.table([["text"]], pa.schema([with_id("number", pa.string(), 1)])), path)
    with pytest.raises(TableRefused, match=said):
        read(path, Given(Schema(field)))


def test_elements_with_another_id_are_refused(path: Path) -> None:
    rows = pa.Table.from_pylist([{"l": [{"s": 1}]}], pa.schema([FILE.field("l")]))
    pq.write_table(rows, path)
    kind = ListType(15, Struct(NestedField(6, "sku", LongType(), required=False)), False)
    with pytest.raises(TableRefused, match="elements with the id 5, not 15"):
        read(path, Given(Schema(NestedField(4, "lines", kind, required=False))))


def test_a_file_of_another_format_is_refused() -> None:
    file = DataFile.from_args(file_path="file:///t/a.orc", file_format=FileFormat.ORC)
    with pytest.raises(TableRefused, match=r"a\.orc is ORC, and only Parquet is read"):
        list(read_rows(None, None, file))  # type: ignore[arg-type]  # it is refused unread

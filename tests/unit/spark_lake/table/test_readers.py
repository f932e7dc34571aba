"""pyiceberg, DuckDB, Polars and deltalake read the tables that syncs and maintenance make.

Spark, DuckDB's extension for Iceberg, and Trino: tests/spark/check_table_readers.py.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from strandline.spark_lake import scan
from tests.unit.spark_lake.table.rig import sync
from tests.unit.spark_lake.table.tables_to_read import (
    TABLES,
    Rows,
    TablesToRead,
    in_order,
    make_tables,
    rows_of,
)
from tests.unit.spark_lake.values.valued_archive import archive_of, avro, record_of

pytestmark = pytest.mark.slow

Read = Callable[[TablesToRead, str], pa.Table]


def by_pyiceberg(tables: TablesToRead, name: str) -> pa.Table:
    return tables.load(name).scan().to_arrow()


def by_polars(tables: TablesToRead, name: str) -> pa.Table:
    if tables.kind == "delta":
        return pl.scan_delta(str(tables.warehouse / "lake" / name)).collect().to_arrow()
    return pl.scan_iceberg(tables.load(name).metadata_location).collect().to_arrow()


def by_duckdb(tables: TablesToRead, name: str) -> pa.Table:
    with duckdb.connect() as connection:
        # Delta keeps the columns that partition a table in the names of its folders alone.
        in_folders = tables.kind == "delta"
        files = connection.read_parquet(
            tables.files(name), union_by_name=True, hive_partitioning=in_folders
        )
        return files.to_arrow_table()


def by_deltalake(tables: TablesToRead, name: str) -> pa.Table:
    return pa.table(DeltaTable(tables.warehouse / "lake" / name).to_pyarrow_table())


READERS: Mapping[str, tuple[Read, ...]] = {
    "iceberg": (by_pyiceberg, by_polars, by_duckdb),
    "delta": (by_deltalake, by_polars, by_duckdb),
}
CASES = [
    pytest.param(kind, name, read, id=f"{kind}-{name}-{read.__name__}")
    for kind, names in TABLES.items()
    for name in names
    for read in READERS[kind]
]


@pytest.fixture(scope="module")
def tables_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TablesToRead]:
    """The tables of a format, made once; a fixture with the format as parameter is made anew."""
    return cache(lambda kind: make_tables(tmp_path_factory.mktemp(kind), kind))


@pytest.mark.parametrize(("kind", "name", "read"), CASES)
def test_a_reader_finds_the_rows_of_the_archive(
    tables_of: Callable[[str], TablesToRead], kind: str, name: str, read: Read
) -> None:
    tables = tables_of(kind)
    expected = in_order(tables.expected(name))
    if read is by_pyiceberg:
        expected = with_empty_lists_of_structs(expected)
    assert rows_of(read(tables, name), expected) == expected


def _logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


# What becomes each type of Iceberg and of Delta; every field may be null.
TYPES: Mapping[str, Any] = {
    "flag": "boolean",
    "number": "int",
    "large": "long",
    "ratio": "float",
    "share": "double",
    "price": _logical("bytes", "decimal", precision=20, scale=4),
    "text": "string",
    "blob": "bytes",
    "day": _logical("int", "date"),
    "at": _logical("long", "timestamp-micros"),
    "counts": {"type": "map", "values": ["null", "long"]},
    "days": {"type": "array", "items": ["null", _logical("int", "date")]},
    "deep": {"type": "record", "name": "Deep", "fields": [{"name": "a", "type": "long"}]},
}
TYPED = record_of(**{name: ["null", kind] for name, kind in TYPES.items()})
TYPED_ROWS: Sequence[Mapping[str, Any]] = (
    {
        "flag": True,
        "number": -(2**31),
        "large": -(2**53) - 1,
        "ratio": 0.5,
        "share": 1e-300,
        "price": Decimal("-1234567890123456.7891"),
        "text": "\u00fc\U0001f600",
        "blob": b"\x00\xff",
        "day": dt.date(1969, 12, 31),
        "at": dt.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=dt.UTC),
        "counts": {"a": 1, "b": None},
        "days": [dt.date(2024, 2, 29), None],
        "deep": {"a": 7},
    },
    {"text": "", "blob": b"", "counts": {}, "days": [], "flag": False},
    {},
)


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        pytest.param(kind, read, id=f"{kind}-{read.__name__}")
        for kind, readers in READERS.items()
        for read in readers
    ],
)
def test_a_reader_finds_values_of_every_type(tmp_path: Path, kind: str, read: Read) -> None:
    values = [avro({**dict.fromkeys(TYPES), **row}, TYPED) for row in TYPED_ROWS]
    archive = archive_of(tmp_path / "archive", [*values, None])
    options = {"valueFormat": "avro", "valueSchema": json.dumps(TYPED)}
    sync(archive, json.dumps(TYPED), topic="t", table="lake.t", format=kind, options=options)
    decoded = scan(archive.url, "t", columns=["value"], options=options).read_all()
    expected = [row or dict.fromkeys(TYPES) for row in decoded.column("value").to_pylist()]
    assert expected[0]["price"] == TYPED_ROWS[0]["price"]
    found = read(TablesToRead(archive=archive, kind=kind), "t").sort_by("_offset")
    assert found.select(list(TYPES)).to_pylist() == expected


def with_empty_lists_of_structs(rows: Rows) -> Rows:
    """What pyiceberg 0.12 makes of null ones; docs/how-to/tables.md says so."""
    return [{**row, "_headers": row["_headers"] or []} for row in rows]

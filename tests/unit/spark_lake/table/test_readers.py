"""pyiceberg, DuckDB, Polars and deltalake read the tables that syncs and maintenance make.

Spark, DuckDB's extension for Iceberg, and Trino: tests/spark/check_table_readers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.unit.spark_lake.table.tables_to_read import (
    TABLES,
    Rows,
    TablesToRead,
    in_order,
    make_tables,
    rows_of,
)

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
def tables(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TablesToRead:
    return make_tables(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize(("tables", "name", "read"), CASES, indirect=["tables"])
def test_a_reader_finds_the_rows_of_the_archive(
    tables: TablesToRead, name: str, read: Read
) -> None:
    expected = in_order(tables.expected(name))
    if read is by_pyiceberg:
        expected = with_empty_lists_of_structs(expected)
    assert rows_of(read(tables, name), expected) == expected


def with_empty_lists_of_structs(rows: Rows) -> Rows:
    """What pyiceberg 0.12 makes of null ones; docs/how-to/tables.md says so."""
    return [{**row, "_headers": row["_headers"] or []} for row in rows]

"""Places of files, as tables and as listings write them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

import duckdb
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from strandline.spark_lake.table.iceberg.catalogs import warehouse_of
from strandline.spark_lake.table.iceberg.places import normalized
from strandline.storage.errors import InvalidConfig
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.rig import add_rows, every, make_run, sync
from tests.unit.spark_lake.table.test_delta import DELTA


@pytest.mark.parametrize("table", ["s3://bucket/lake/t", "s3a://bucket/lake/t"])
@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_a_file_that_another_engine_named_by_another_scheme_is_the_same_file(
    table: str, scheme: str
) -> None:
    io = PyArrowFileIO({"s3.endpoint": "http://127.0.0.1:1", "s3.region": "us-east-1"})
    assert normalized(io, f"{scheme}://bucket/lake/t/data/x.parquet", table) == (
        f"{table}/data/x.parquet"
    )


def test_a_file_that_is_named_without_a_scheme_is_the_same_file() -> None:
    io = PyArrowFileIO({})
    assert (
        normalized(io, "/lake/t/data/x.parquet", "file:///lake/t")
        == "file:///lake/t/data/x.parquet"
    )


@pytest.mark.parametrize("archive", ["s3://bucket/archive", "file:///srv/archive"])
def test_a_warehouse_is_not_in_the_archive(archive: str) -> None:
    for inside in (archive, f"{archive}/", f"{archive}/topics", archive.replace("s3:", "s3a:")):
        with pytest.raises(InvalidConfig, match=f"give another place, such as {archive}-tables"):
            warehouse_of(inside, archive_url=archive)
    for beside in (f"{archive}-tables", f"{archive}2", archive.rpartition("/")[0]):
        assert warehouse_of(beside, archive_url=archive) == beside
    assert warehouse_of("s3://bucket/tables", archive_url="s3://bucket") == "s3://bucket/tables"


def test_a_warehouse_may_be_a_folder_without_a_scheme() -> None:
    """So that its catalog lies in it, as of a URL."""
    assert warehouse_of("/srv/my tables", archive_url="s3://b/a") == "file:///srv/my tables"


def test_a_warehouse_of_a_url_is_the_folder_that_the_url_names() -> None:
    for given in ("file:///srv/my%20%C3%A9", "file://localhost/srv/my \u00e9", "/srv/my \u00e9"):
        assert warehouse_of(given, archive_url="s3://b/a") == "file:///srv/my \u00e9"
    assert warehouse_of("s3://b/my%20tables", archive_url="s3://b/a") == "s3://b/my tables"
    with pytest.raises(InvalidConfig, match="is in the archive"):
        warehouse_of("file:///my%20archive/x", archive_url="file:///my archive")
    for given in ("file://srv/tables", "file:tables", "file://", "tables", "://x"):
        with pytest.raises(InvalidConfig, match="must be a URL"):
            warehouse_of(given, archive_url="s3://b/a")


@pytest.mark.parametrize(
    "name", ["a#b", "a?b", "a%20b", "a%b", "a*b", "a[b", "a]b", "a^b", "a|b", "a\\b", "a\tb"]
)
def test_a_name_that_libraries_read_in_different_ways_is_refused_before_a_folder_is_made(
    orders: ArchiveBuilder, name: str
) -> None:
    folder = orders.path.parent
    for more in ({}, DELTA):
        for place in (
            {"warehouse": f"{folder}/{name}"},
            {"warehouse": f"file://{quote(str(folder / name))}"},
            {"table": f"lake.{name}"},
        ):
            with pytest.raises(InvalidConfig, match="libraries of tables read"):
                sync(orders, **place, **more)
    assert [one.name for one in folder.iterdir()] == ["archive"]


def test_the_default_warehouse_of_an_archive_with_such_a_name_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="--warehouse: 'file:///my#archive-tables' has '#'"):
        warehouse_of(None, archive_url="file:///my#archive")
    assert warehouse_of("/tables", archive_url="file:///my#archive") == "file:///tables"


@pytest.mark.slow
@pytest.mark.parametrize("table_format", [{}, DELTA])
@pytest.mark.parametrize("scheme", ["", "file://", "file://localhost"])
def test_a_table_is_in_one_folder_also_if_its_name_has_a_space(
    orders: ArchiveBuilder, table_format: dict[str, Any], scheme: str
) -> None:
    folder = orders.path.with_name("my t\u00e4bles")
    warehouse = f"{scheme}{quote(str(folder)) if scheme else folder}"
    more = {"warehouse": warehouse, "table": "lake.my orders", **table_format}
    sync(orders, **more)
    add_rows(orders, base=80)
    sync(orders, **more)
    run = make_run(orders, **more)
    run.maintain()
    assert run.check(deep=True).findings == []
    assert sorted(one.name for one in orders.path.parent.iterdir()) == ["archive", folder.name]
    if table_format:
        found = DeltaTable(folder / "lake" / "my orders")
        # DuckDB takes paths as they are, and deltalake gives them as in URLs.
        files, rows = list(map(unquote, found.file_uris())), found.to_pyarrow_table()
    else:
        uri = f"sqlite:///{folder}/catalog.db"
        table = load_catalog("strandline", type="sql", uri=uri).load_table("lake.my orders")
        scan = table.scan()
        files, rows = [one.file.file_path for one in scan.plan_files()], scan.to_arrow()
    places = rows.column("_topic_partition").to_pylist(), rows.column("_offset").to_pylist()
    assert sorted(zip(*places, strict=True)) == every(range(120))
    counts = duckdb.read_parquet(files).aggregate("count(*), sum(_offset)").fetchall()
    assert counts == [(240, 2 * sum(range(120)))]

"""Places of files, as tables and as listings write them."""

from __future__ import annotations

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from strandline.spark_lake.table.iceberg.catalogs import warehouse_of
from strandline.spark_lake.table.iceberg.places import normalized
from strandline.storage.errors import InvalidConfig


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

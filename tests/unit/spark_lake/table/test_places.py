"""Places of files, as tables and as listings write them."""

from __future__ import annotations

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from strandline.spark_lake.table.iceberg.places import normalized


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

"""Whoever lacks a library reads which extra of strandline brings it."""

from __future__ import annotations

import sys

import pytest

from strandline import spark_lake
from strandline.spark_lake.table.spark_sync import start_session
from strandline.storage.errors import InvalidConfig


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("scan", "strandline.spark_lake.query.arrow_scan", "scan"),
        ("register", "strandline.spark_lake.spark.source", "lake"),
    ],
)
def test_an_import_that_fails_names_the_extra(
    name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"extra \[{extra}\]"):
        getattr(spark_lake, name)


def test_a_sync_with_spark_where_there_is_none_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(InvalidConfig, match=r"extra \[lake\]"):
        start_session("lake.t", None)

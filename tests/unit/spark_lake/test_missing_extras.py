"""Whoever lacks a library, or Java, reads what brings it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline import spark_lake
from strandline.spark_lake.table.spark_sync import start_session
from strandline.storage.errors import InvalidConfig
from tests.support.broker import REPOSITORY


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


# In a process of its own, which has no session yet.
_SYNC = ("-m", "strandline", "table", "sync", "--engine", "spark", "--master", "local[1]")


@pytest.mark.slow
@pytest.mark.parametrize("java", ["absent", "broken"])
def test_a_sync_with_spark_that_does_not_start_is_told_with_what_it_needs(
    java: str, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "java"
    if java == "broken":
        program.parent.mkdir()
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
    where = ("--remote", f"file://{tmp_path}/archive", "--topic", "orders", "--table", "lake.t")
    ended = subprocess.run(
        [sys.executable, *_SYNC, *where],
        check=False,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / ".namespace"),
            "JAVA_HOME": str(tmp_path),
        },
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("strandline: Spark does not start: ")
    assert "JAVA_HOME" in ended.stderr
    assert "Traceback" not in ended.stderr

"""Python workers that Spark keeps: what each answer of theirs costs behind it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from strandline.spark_lake.options.options import COLUMNS
from strandline.spark_lake.query import worker_reuse
from strandline.spark_lake.spark.source import PlannedDataSource, StrandlineDataSource, spark_schema
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows with each call of `gc.freeze`, which would hold for all other tests."""
    calls: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(True))
    monkeypatch.setattr(worker_reuse, "_done", set())
    return calls


def small_archive(folder: Path) -> dict[str, str]:
    archive = ArchiveBuilder(folder)
    archive.add_topic("t")
    archive.add_segment("t", make_batches(make_records(10)))
    return {"path": archive.url, "subscribe": "t", "engine": "python"}


def test_a_worker_that_creates_or_plans_leaves_its_libraries_out_of_each_collection(
    tmp_path: Path, frozen: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    options = small_archive(tmp_path)
    source = PlannedDataSource(options)
    assert frozen == [True]
    # Spark creates in one worker and plans in another.
    monkeypatch.setattr(worker_reuse, "_done", set())
    for _ in range(2):
        source.reader(spark_schema(COLUMNS)).partitions()
    assert frozen == [True, True]


def test_a_worker_that_reads_leaves_its_libraries_out_of_each_collection(
    tmp_path: Path, frozen: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = StrandlineDataSource(small_archive(tmp_path)).reader(spark_schema(COLUMNS))
    partitions = reader.partitions()
    # Elsewhere than in a worker of Spark's garbage is collected as ever.
    assert frozen == []
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    for _ in range(2):
        assert sum(batch.num_rows for batch in reader.read(partitions[0])) == 10
    assert frozen == [True]

"""The same jar in a Spark of another release: what is promised of each, in one go.

Not part of `make test`, which has one Spark: `make check-sparks` runs it with all of them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.spark_lake import load, register_views, scan
from strandline.spark_lake.table import sync
from strandline.storage.records.compression import Codec
from tests.support.spark_session import reads_with_the_jar
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

pytestmark = [pytest.mark.spark, pytest.mark.slow]

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> ArchiveBuilder:
    """Topic `t`: a segment of each codec."""
    archive = ArchiveBuilder(tmp_path_factory.mktemp("archive"))
    archive.add_topic("t")
    for number, codec in enumerate(Codec):
        records = make_records(100, base_offset=number * 100, headers=True)
        archive.add_segment("t", make_batches(records, codec=codec))
    return archive


def test_this_is_the_release_that_is_to_be_tried(spark: SparkSession) -> None:
    assert os.environ.get("SPARK_TRIED", spark.version) == pyspark.__version__ == spark.version


def test_the_reader_is_of_the_jar_that_is_tried(spark: SparkSession) -> None:
    reads_with_the_jar(spark)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    rows = frame.orderBy("offset").collect()
    return [
        row.asDict(recursive=True) | {"timestamp": row["timestamp"].timestamp()} for row in rows
    ]


@pytest.mark.parametrize("engine", ["jvm", "python"])
def test_format_views_and_load_give_the_rows_of_scan(
    spark: SparkSession, archive: ArchiveBuilder, engine: str
) -> None:
    options = {"includeHeaders": "true", "engine": engine}
    expected = [
        row | {"timestamp": row["timestamp"].timestamp()}
        for row in scan(archive.url, "t", options={"includeHeaders": "true"}).read_all().to_pylist()
    ]
    assert len(expected) == 500
    source = spark.read.format("strandline").option("subscribe", "t").options(**options)
    frame = source.load(archive.url)
    assert rows_of(frame) == expected
    assert rows_of(load(spark, archive.url, "t", options=options)) == expected
    register_views(spark, archive.url, options=options)
    assert rows_of(spark.table("t")) == expected
    # Each query has filters of its own, in whatever thread.
    with ThreadPoolExecutor(2) as pool:
        counts = pool.map(lambda low: frame.where(f"offset >= {low}").count(), [250, 0, 499])
    assert list(counts) == [250, 500, 1]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: source.load(archive.url).count()).result() == 500


def test_filters_prune_where_spark_tells_a_python_source_of_them(
    spark: SparkSession, archive: ArchiveBuilder
) -> None:
    frame = spark.read.format("strandline").option("subscribe", "t").load(archive.url)
    some = frame.where("offset >= 450")
    assert some.count() == 50
    plan = some._jdf.queryExecution().executedPlan().toString()
    assert ("1 of 5 segments" if VERSION >= (4, 1) else "5 of 5 segments") in plan


def test_a_stream_gives_each_record_once_or_says_which_release_it_needs(
    spark: SparkSession, archive: ArchiveBuilder, tmp_path: Path
) -> None:
    def run() -> int:
        frame = spark.readStream.format("strandline").options(
            subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="200"
        )
        query = (
            frame.load(archive.url)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return spark.read.parquet(str(tmp_path / "out")).count()

    if VERSION >= (4, 2):
        assert run() == run() == 500
    else:
        with pytest.raises(PySparkException, match=r"streams need PySpark 4\.2 or later"):
            run()


def test_a_table_is_synced_by_tasks(spark: SparkSession, archive: ArchiveBuilder) -> None:
    assert sync(spark, archive.url, "t", "lake.t").rows == 500
    assert sync(spark, archive.url, "t", "lake.t").commits == 0


def test_mistakes_are_told(spark: SparkSession, archive: ArchiveBuilder) -> None:
    source = spark.read.format("strandline")
    with pytest.raises(PySparkException, match="subscrbe is unknown; the nearest is subscribe"):
        source.option("subscrbe", "t").load(archive.url).collect()

"""Spark beside a broker with random transactions: a consumer, queries and streams see the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.spark_lake import load
from tests.support.heavy import HEAVY
from tests.system.tiers.conftest import MakeBroker, archive, make_broker
from tests.system.tiers.tiered_broker import Archive
from tests.system.transactions.histories.random_transactions import (
    LOG,
    SETTINGS,
    RandomTransactions,
    Rows,
)
from tests.system.transactions.histories.same_rows import (
    COLUMNS,
    ISOLATIONS,
    ReadLake,
    by_partition,
    check_consumer,
    check_lake,
    lake_options,
)

__all__ = ["archive", "make_broker"]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.clients,
    pytest.mark.timeout(900),
]

ROUNDS = 2
SEED = 3


@pytest.fixture
def history(make_broker: MakeBroker, archive: Archive) -> Iterator[RandomTransactions]:
    broker = make_broker(settings=SETTINGS)
    broker.start()
    made = RandomTransactions(broker, archive, SEED)
    yield made
    made.close()


def by_source(spark: SparkSession, url: str) -> ReadLake:
    """The format, whose rows come as Arrow from Python; its count must agree."""

    def read(topic: str, options: Mapping[str, str]) -> Mapping[int, Rows]:
        given = {**options, "subscribe": topic, "engine": "python"}
        frame = spark.read.format("strandline").options(**given).load(url)
        return collected(frame)

    return read


def by_load(spark: SparkSession, url: str, engine: str) -> ReadLake:
    """`load` with the reader in the JVM or in Python; its count must agree."""

    def read(topic: str, options: Mapping[str, str]) -> Mapping[int, Rows]:
        return collected(load(spark, url, topic, options={**options, "engine": engine}))

    return read


def collected(frame: DataFrame) -> Mapping[int, Rows]:
    rows = [row.asDict() for row in frame.select(*COLUMNS).collect()]
    assert frame.count() == len(rows)
    return by_partition(rows)


def follow(spark: SparkSession, url: str, folder: Path, options: Mapping[str, str]) -> None:
    """One run of a stream over what is there now; it goes on where the last one ended."""
    given = {**options, "subscribe": LOG, "startingOffsets": "earliest"}
    query = (
        spark.readStream.format("strandline")
        .options(**given)
        .load(url)
        .select("partition", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    assert query.awaitTermination(120)


def streamed(spark: SparkSession, folder: Path) -> Counter[tuple[int, int]]:
    rows = spark.read.parquet(str(folder / "rows")).collect()
    return Counter((row["partition"], row["offset"]) for row in rows)


@HEAVY
def test_queries_and_streams_of_spark_see_of_random_transactions_what_a_consumer_sees(
    spark: SparkSession, history: RandomTransactions, tmp_path: Path
) -> None:
    url, bucket = history.broker.bucket.url, history.broker.bucket
    for is_settled in history.moments(ROUNDS):
        for isolation in ISOLATIONS:
            follow(spark, url, tmp_path / isolation, lake_options(bucket, isolation))
        if is_settled:
            check_consumer(history)
            check_lake(history, by_load(spark, url, "jvm"))
            check_lake(history, by_load(spark, url, "python"))
            check_lake(history, by_source(spark, url))
    for isolation, committed in ISOLATIONS.items():
        everything = Counter(history.model.ever(LOG, committed=committed))
        assert streamed(spark, tmp_path / isolation) == everything, isolation

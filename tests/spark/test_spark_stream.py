"""Streams inside Spark: exactly once across restarts, while the archive grows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def run(
    spark: SparkSession, archive: ArchiveBuilder, folder: Path, **options: str
) -> StreamingQuery:
    """One run over what is available now, with the folder's checkpoint."""
    reader = spark.readStream.format("strandline").option("subscribe", "t")
    for name, text in {"startingOffsets": "earliest", **options}.items():
        reader = reader.option(name, text)
    query = (
        reader.load(archive.url)
        .select("partition", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    assert query.awaitTermination(120)
    return query


def counted(spark: SparkSession, folder: Path) -> Counter[tuple[int, int]]:
    rows = spark.read.parquet(str(folder / "rows")).collect()
    return Counter((row["partition"], row["offset"]) for row in rows)


def test_every_record_comes_exactly_once_across_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("t", partitions=2)
    archive.add_segment("t", make_batches(make_records(100)))
    query = run(spark, archive, tmp_path, maxOffsetsPerTrigger="40")
    progress = [one for one in query.recentProgress if one.numInputRows]
    assert [one.numInputRows for one in progress] == [40, 40, 20]
    archive.add_segment("t", make_batches(make_records(30, base_offset=100)))
    archive.add_segment("t", make_batches(make_records(20)), partition=1)
    # As after a kill in the middle: the last batch is planned but not known to be done.
    commits = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name)
    )
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink()
    run(spark, archive, tmp_path, minOffsetsPerTrigger="10", maxTriggerDelay="1s")
    run(spark, archive, tmp_path)
    expected = [(0, n) for n in range(130)] + [(1, n) for n in range(20)]
    assert counted(spark, tmp_path) == Counter(expected)


def test_a_first_batch_that_is_repeated_has_the_same_rows_wherever_the_stream_would_begin_now(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As after a kill behind the first offset log: Spark asks for the beginning anew."""
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("t")
    archive.add_segment("t", make_batches(make_records(100)))
    batches: list[tuple[int, list[int]]] = []

    def keep(rows: DataFrame, number: int) -> None:
        batches.append((number, sorted(row["offset"] for row in rows.collect())))

    def live(starting: str) -> None:
        frame = (
            spark.readStream.format("strandline")
            .options(subscribe="t", startingOffsets=starting)
            .load(archive.url)
        )
        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    live('{"t": {"0": 40}}')
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("0", ".0.crc"):
        (commits / name).unlink()
    archive.add_segment("t", make_batches(make_records(5, base_offset=100)))
    live("latest")
    first = (0, list(range(40, 100)))
    assert batches == [first, first, (1, list(range(100, 105)))]


@pytest.mark.heavy
def test_of_two_streams_with_one_checkpoint_one_ends_and_no_row_comes_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The other one, of another application, has written which rows the second batch has."""
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("t")
    archive.add_segment("t", make_batches(make_records(100)))
    offsets = tmp_path / "checkpoint" / "offsets"
    batches: list[tuple[int, list[int]]] = []

    def keep(rows: DataFrame, number: int) -> None:
        batches.append((number, sorted(row["offset"] for row in rows.collect())))
        if len(batches) == 1:
            theirs = (offsets / "0").read_text().replace('{"0": 40}', '{"0": 70}', 1)
            (offsets / "1").write_text(theirs)

    def live() -> StreamingQuery:
        frame = (
            spark.readStream.format("strandline")
            .options(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="40")
            .load(archive.url)
        )
        return (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    with pytest.raises(StreamingQueryException, match="CONCURRENT_STREAM_LOG_UPDATE"):
        live().awaitTermination(120)
    assert batches == [(0, list(range(40)))]
    # Whoever goes on takes what was written.
    assert live().awaitTermination(120)
    assert batches[1:] == [(1, list(range(40, 70))), (2, list(range(70, 100)))]

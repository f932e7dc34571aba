"""The stream source as Spark calls it, without Spark: what is admitted, and what is repeated."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
)

from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.spark_lake.spark.stream import StreamDataLost
from strandline.storage.errors import CorruptFile, InvalidConfig
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.stream_steps import (
    add,
    opened,
    rows,
    step,
    through_json,
)


def test_a_stream_follows_the_archive_as_it_grows(archive: ArchiveBuilder) -> None:
    reader = opened(archive)
    first, at = step(reader, through_json(reader.initialOffset()))
    assert first == [(0, n) for n in range(100)] + [(1, n) for n in range(20)]
    assert step(reader, at) == ([], at)
    add(archive, 100, 30)
    add(archive, 0, 5, partition=2)
    more, at = step(reader, at)
    assert more == [(0, n) for n in range(100, 130)] + [(2, n) for n in range(5)]
    assert at["offsets"] == {"t": {"0": 130, "1": 20, "2": 5}}


def test_a_stream_begins_at_the_end_unless_told_otherwise(archive: ArchiveBuilder) -> None:
    reader = opened(archive, startingOffsets="latest")
    at = through_json(reader.initialOffset())
    assert at["offsets"] == {"t": {"0": 100, "1": 20, "2": 0}}
    source = StrandlineDataSource({"path": archive.url, "subscribe": "t"})
    assert source.streamReader(source.schema()).initialOffset() == at
    named = opened(archive, startingOffsets='{"t": {"0": 40, "1": -1, "2": -2}}').initialOffset()
    assert named["offsets"] == {"t": {"0": 40, "1": 20, "2": 0}}


def test_offsets_per_trigger_are_shared_by_what_waits(archive: ArchiveBuilder) -> None:
    reader = opened(archive, maxOffsetsPerTrigger="30")
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    at = through_json(reader.initialOffset())
    batches = []
    while True:
        found, end = step(reader, at)
        if end == at:
            break
        batches.append(found)
        at = end
    assert all(0 < len(found) <= 30 for found in batches)
    assert [row for found in batches for row in found if row[0] == 0] == [
        (0, n) for n in range(100)
    ]
    assert [row for found in batches for row in found if row[0] == 1] == [(1, n) for n in range(20)]
    assert len(batches) == 4
    assert {row[0] for row in batches[0]} == {0, 1}


def test_bytes_per_trigger_are_those_of_the_archive(archive: ArchiveBuilder) -> None:
    total_bytes = sum(archive.manifest("t", one).size_bytes for one in (0, 1))
    reader = opened(archive, maxBytesPerTrigger=str(total_bytes // 4))
    assert reader.getDefaultReadLimit() == ReadMaxBytes(total_bytes // 4)
    at = through_json(reader.initialOffset())
    sizes = []
    while True:
        found, end = step(reader, at)
        if end == at:
            break
        sizes.append(len(found))
        at = end
    assert sum(sizes) == 120
    assert 4 <= len(sizes) <= 6
    assert max(sizes) <= 31


def test_a_batch_of_any_bytes_makes_progress(archive: ArchiveBuilder) -> None:
    reader = opened(archive, maxBytesPerTrigger="1", maxOffsetsPerTrigger="50")
    found, _ = step(reader, through_json(reader.initialOffset()))
    assert found == [(0, 0), (1, 0)]


@pytest.mark.parametrize("start", [0, 1, 7, 33, 99])
def test_a_batch_that_everything_fits_into_has_everything(
    archive: ArchiveBuilder, start: int
) -> None:
    """Also from within a segment, whose bytes are reckoned."""
    starts = json.dumps({"t": {"0": start, "1": 3, "2": 0}})
    for limit in ("maxBytesPerTrigger", "maxOffsetsPerTrigger"):
        reader = opened(archive, startingOffsets=starts, **{limit: str(10**12)})
        found, at = step(reader, through_json(reader.initialOffset()))
        assert len(found) == 100 - start + 17
        assert step(reader, at) == ([], at)


def test_the_smallest_batches_bring_every_record_once(archive: ArchiveBuilder) -> None:
    """Limits below one record, one chunk, one segment: a record of each partition."""
    for options in (
        {"maxOffsetsPerTrigger": "1"},
        {"maxBytesPerTrigger": "1"},
        {"maxBytesPerTrigger": "1", "maxOffsetsPerTrigger": "1"},
        {"maxBytesPerTrigger": "1", "minPartitions": "5", "maxRecordsPerPartition": "1"},
    ):
        reader = opened(archive, **options)
        at, all_rows = through_json(reader.initialOffset()), []
        for _ in range(100):
            found, at = step(reader, at)
            assert len(found) == len({row[0] for row in found}) > 0
            all_rows += found
        assert sorted(all_rows) == [(0, n) for n in range(100)] + [(1, n) for n in range(20)]
        assert step(reader, at) == ([], at)


def test_everything_is_given_when_the_engine_asks_for_everything(archive: ArchiveBuilder) -> None:
    reader = opened(archive, maxOffsetsPerTrigger="3")
    found, _ = step(reader, through_json(reader.initialOffset()), ReadAllAvailable())
    assert len(found) == 120


def test_too_little_waits_for_more_but_not_for_ever(archive: ArchiveBuilder) -> None:
    reader = opened(archive, minOffsetsPerTrigger="200", maxTriggerDelay="1h")
    # A query that was just started does not wait, as in Spark's Kafka source.
    found, at = step(reader, through_json(reader.initialOffset()))
    assert len(found) == 120
    add(archive, 100, 190)
    assert step(reader, at) == ([], at)
    add(archive, 290, 20)
    found, at = step(reader, at)
    assert len(found) == 210
    add(archive, 310, 5)
    assert step(reader, at) == ([], at)
    impatient = opened(archive, minOffsetsPerTrigger="500", maxTriggerDelay="0s")
    assert len(step(impatient, at)[0]) == 5
    add(archive, 315, 5)
    assert len(step(impatient, at)[0]) == 10


def test_available_now_ends_with_what_was_there_when_it_began(archive: ArchiveBuilder) -> None:
    reader = opened(archive, maxOffsetsPerTrigger="50")
    at = through_json(reader.initialOffset())
    reader.prepareForTriggerAvailableNow()
    add(archive, 100, 40)
    add(archive, 0, 5, partition=2)
    found: list[tuple[int, int]] = []
    for _ in range(10):
        more, end = step(reader, at)
        if end == at:
            break
        found, at = [*found, *more], end
    else:
        pytest.fail("the run does not end")
    assert sorted(found) == [(0, n) for n in range(100)] + [(1, n) for n in range(20)]


def test_a_repeated_batch_has_the_same_rows_whatever_came_since(archive: ArchiveBuilder) -> None:
    reader = opened(archive, maxOffsetsPerTrigger="37")
    start = through_json(reader.initialOffset())
    found, end = step(reader, start)
    add(archive, 100, 40)
    archive.seal_page("t", 1)
    assert rows(opened(archive), start, end) == found


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t": {"0": -1, "1": 7, "2": -1}}'},
        {"startingTimestamp": "9999999999999", "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsets": "earliest"},
    ],
    ids=str,
)
def test_the_first_batch_repeated_has_the_same_rows_though_its_beginning_is_asked_for_anew(
    archive: ArchiveBuilder, options: dict[str, str]
) -> None:
    """Spark asks, when a stream was killed between its first offset log and its first commit."""
    reader = opened(archive, **options)
    first = through_json(reader.initialOffset())
    add(archive, 100, 5)
    found, end = step(reader, first)
    assert found[-1] in ((0, 104), (1, 19))
    add(archive, 105, 5)
    again = opened(archive, **options)
    later = through_json(again.initialOffset())
    assert rows(again, later, end) == found
    # Whatever was asked for since, too.
    changed = opened(archive, startingOffsets="latest")
    assert rows(changed, through_json(changed.initialOffset()), end) == found
    assert step(again, end)[0] == [(0, n) for n in range(105, 110)]
    assert "began" not in step(again, end)[1]


def test_the_first_batch_repeated_misses_what_retention_took_meanwhile(
    archive: ArchiveBuilder,
) -> None:
    reader = opened(archive)
    found, end = step(reader, through_json(reader.initialOffset()))
    assert len(found) == 120
    archive.move_log_start("t", 30)
    again = opened(archive)
    with pytest.raises(StreamDataLost, match="offsets 0 to 30 were deleted by retention"):
        rows(again, through_json(again.initialOffset()), end)
    lossy = opened(archive, failOnDataLoss="false")
    assert len(rows(lossy, through_json(lossy.initialOffset()), end)) == 90


def test_a_stream_without_anything_new_stays_where_it_is(archive: ArchiveBuilder) -> None:
    """Spark takes every other offset for rows: also if a checkpoint says no beginning."""
    reader = opened(archive, startingOffsets="latest")
    first = through_json(reader.initialOffset())
    assert step(reader, first) == ([], first)
    add(archive, 100, 5)
    _, end = step(reader, first)
    assert step(reader, end) == ([], end)
    older = {name: fields for name, fields in end.items() if name != "began"}
    assert step(reader, older) == ([], older)
    add(archive, 105, 1)
    assert step(reader, older)[0] == [(0, 105)]


def test_a_checkpoint_of_another_source_is_refused(archive: ArchiveBuilder) -> None:
    with pytest.raises(CorruptFile, match="checkpointLocation"):
        opened(archive).latestOffset({"t": {"0": 5}}, ReadAllAvailable())


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets works in a query of read only"),
        ({"maxTriggerDelay": "soon"}, "expected a duration"),
        ({"maxOffsetsPerTrigger": "0"}, "must be at least 1"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "more than maxOffsets"),
    ],
)
def test_wrong_stream_options_are_refused(
    archive: ArchiveBuilder, option: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidConfig, match=says):
        opened(archive, **option)


def test_a_batch_query_has_no_triggers(archive: ArchiveBuilder) -> None:
    source = StrandlineDataSource(
        {"path": archive.url, "subscribe": "t", "maxOffsetsPerTrigger": "5"}
    )
    with pytest.raises(InvalidConfig, match="works in a query of readStream only"):
        source.reader(source.schema())

"""The stream source as Spark calls it, without Spark: what is admitted, repeated, lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from strandline.spark_lake.objects import ObjectReader
from strandline.spark_lake.source import StrandlineDataSource
from strandline.spark_lake.stream import StrandlineStreamReader, StreamDataLost
from strandline.storage.errors import CorruptFile, InvalidConfig
from strandline.storage.remote.keys import manifest_key
from tests.unit.lake.archive_builder import ArchiveBuilder, make_batches, make_records

Json = dict[str, Any]


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveBuilder:
    """Topic `t` with 100 records in partition 0 and 20 in partition 1."""
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t", partitions=3)
    add(archive, 0, 100)
    add(archive, 0, 20, partition=1)
    return archive


def add(archive: ArchiveBuilder, start: int, count: int, *, partition: int = 0) -> None:
    records = make_records(count, base_offset=start)
    archive.add_segment("t", make_batches(records), partition=partition)


def opened(archive: ArchiveBuilder, **options: str) -> StrandlineStreamReader:
    given = {"path": archive.url, "subscribe": "t", "startingOffsets": "earliest", **options}
    source = StrandlineDataSource(given)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StrandlineStreamReader)
    return reader


def through_json(fields: Json) -> Json:
    return dict(json.loads(json.dumps(fields)))


def rows(reader: StrandlineStreamReader, start: Json, end: Json) -> list[tuple[int, int]]:
    return [
        (row["partition"], row["offset"])
        for one in reader.partitions(start, end)
        for batch in reader.read(one)
        for row in batch.to_pylist()
    ]


def step(
    reader: StrandlineStreamReader, start: Json, limit: ReadLimit | None = None
) -> tuple[list[tuple[int, int]], Json]:
    """One micro-batch: its rows and where it ends."""
    end = through_json(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))
    return rows(reader, start, end), end


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


def test_what_retention_took_before_it_was_read_is_an_error_or_accepted(
    archive: ArchiveBuilder,
) -> None:
    reader = opened(archive, maxOffsetsPerTrigger="30")
    at = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(at, ReadMaxRows(30)))
    archive.move_log_start("t", 10)
    with pytest.raises(StreamDataLost, match="t-0: offsets 0 to 10 were deleted by retention"):
        reader.latestOffset(at, ReadMaxRows(30))
    with pytest.raises(StreamDataLost, match="failOnDataLoss=false"):
        reader.partitions(at, end)
    lossy = opened(archive, failOnDataLoss="false")
    assert step(lossy, at)[0][0] == (0, 10)
    assert rows(lossy, at, end)[0] == (0, 10)


def test_a_batch_whose_partition_has_no_archive_any_more_is_a_loss(archive: ArchiveBuilder) -> None:
    """Its folder was deleted, which `strandline` itself advises where a manifest is lost."""
    reader = opened(archive)
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    shutil.rmtree((archive.path / archive.topics["t"].info.key).with_name("0"))
    with pytest.raises(StreamDataLost, match="t-0: the checkpoint has offset 100, the archive"):
        reader.partitions(start, end)
    lossy = opened(archive, failOnDataLoss="false")
    assert rows(lossy, start, end) == [(1, n) for n in range(20)]


def test_a_topic_made_anew_is_not_taken_for_the_old_one(archive: ArchiveBuilder) -> None:
    reader = opened(archive)
    _, at = step(reader, through_json(reader.initialOffset()))
    old = archive.topics["t"].info
    archive.object_path(old.key).write_bytes(replace(old, deleted_ms=1).encode())
    archive.add_topic("t", partitions=1)
    add(archive, 0, 7)
    with pytest.raises(StreamDataLost, match="deleted and made anew"):
        step(reader, at)
    lossy = opened(archive, failOnDataLoss="false")
    _, entered = step(lossy, at)
    assert step(lossy, entered)[0] == [(0, n) for n in range(7)]


def test_topics_of_a_pattern_come_and_go(archive: ArchiveBuilder) -> None:
    def by_pattern(**options: str) -> StrandlineStreamReader:
        given = {"path": archive.url, "subscribePattern": "^[tu]$", "startingOffsets": "earliest"}
        source = StrandlineDataSource({**given, **options})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StrandlineStreamReader)
        return reader

    reader = by_pattern()
    found, at = step(reader, through_json(reader.initialOffset()))
    assert len(found) == 120
    archive.add_topic("u")
    archive.add_segment("u", make_batches(make_records(5)))
    archive.add_topic("v")
    archive.add_segment("v", make_batches(make_records(5)))
    add(archive, 100, 3)
    # A new topic enters with the offset where it begins: its rows come with the next batch.
    entered, at = step(reader, at)
    assert entered == [(0, 100), (0, 101), (0, 102)]
    assert step(reader, at)[0] == [(0, n) for n in range(5)]
    _, at = step(reader, at)
    old = archive.topics["u"].info
    archive.object_path(old.key).write_bytes(replace(old, deleted_ms=1).encode())
    add(archive, 103, 2)
    with pytest.raises(StreamDataLost, match="u-0: the topic or partition is no longer in"):
        step(reader, at)
    # Nor is it, where the query asks for others than the checkpoint has.
    with pytest.raises(StreamDataLost, match=r"u-0: .*, or not asked for; failOnDataLoss=false"):
        step(opened(archive), at)
    assert step(opened(archive, failOnDataLoss="false"), at)[0] == [(0, 103), (0, 104)]
    found, at = step(by_pattern(failOnDataLoss="false"), at)
    assert found == [(0, 103), (0, 104)]
    assert list(at["offsets"]) == list(at["topic_ids"]) == ["t"]
    assert step(by_pattern(), at) == ([], at)


def test_a_topic_made_anew_under_a_batch_gives_its_records_once(archive: ArchiveBuilder) -> None:
    reader = opened(archive, failOnDataLoss="false")
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    old = archive.topics["t"].info
    archive.object_path(old.key).write_bytes(replace(old, deleted_ms=1).encode())
    archive.add_topic("t", partitions=1)
    add(archive, 0, 7)
    # Between the offsets of a planned batch lie other records now.
    assert rows(reader, start, end) == []
    _, entered = step(reader, end)
    assert step(reader, entered)[0] == [(0, n) for n in range(7)]


def test_a_stream_goes_back_with_its_archive_if_loss_is_accepted(archive: ArchiveBuilder) -> None:
    """As Spark's Kafka source does: what comes at offsets that it had already is new."""
    reader = opened(archive, failOnDataLoss="false")
    before = archive.manifest("t")
    add(archive, 100, 30)
    _, at = step(reader, through_json(reader.initialOffset()))
    archive.save(before)  # as after a restore
    with pytest.raises(StreamDataLost, match="t-0: the stream stands at offset 130, the archive"):
        step(opened(archive), at)
    nothing, at = step(reader, at)
    assert (nothing, at["offsets"]["t"]["0"]) == ([], 100)
    add(archive, 100, 40)
    assert step(reader, at)[0] == [(0, n) for n in range(100, 140)]


def stale_once(
    monkeypatch: pytest.MonkeyPatch, old: Mapping[str, bytes], *, times: int = 1
) -> None:
    """The store answers with these older objects, so often each."""
    left = dict.fromkeys(old, times)
    get = ObjectReader.get

    def stale(reader: ObjectReader, key: str) -> bytes:
        if left.get(key, 0):
            left[key] -= 1
            return old[key]
        return get(reader, key)

    monkeypatch.setattr(ObjectReader, "get", stale)


@pytest.mark.parametrize("accepts_loss", ["true", "false"])
def test_a_loss_is_believed_when_it_is_seen_twice(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch, accepts_loss: str
) -> None:
    reader = opened(archive, failOnDataLoss=accepts_loss)
    key = manifest_key(archive.partition_id("t"))
    old = {key: archive.object_path(key).read_bytes()}
    add(archive, 100, 30)
    start = through_json(reader.initialOffset())
    found, at = step(reader, start)
    assert len(found) == 150
    for attempt in (
        lambda: reader.latestOffset(at, ReadAllAvailable()) == at,
        lambda: rows(reader, start, at) == found,
    ):
        with monkeypatch.context() as patch:
            stale_once(patch, old)
            assert attempt()


def test_a_run_that_sees_too_few_partitions_forgets_none(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = opened(archive)
    _, at = step(reader, through_json(reader.initialOffset()))
    info = archive.topics["t"].info
    with monkeypatch.context() as patch:
        stale_once(patch, {info.key: replace(info, partition_count=1).encode()})
        reader.prepareForTriggerAvailableNow()
    add(archive, 100, 5)
    add(archive, 20, 5, partition=1)
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    assert sorted(step(opened(archive), at)[0]) == [
        *[(0, n) for n in range(100, 105)],
        *[(1, n) for n in range(20, 25)],
    ]


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

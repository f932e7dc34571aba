"""The stream source over an archive that lost something, or is another: errors, or accepted."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
)

from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.spark_lake.spark.stream import StrandlineStreamReader, StreamDataLost
from strandline.storage.remote.keys import manifest_key
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records
from tests.unit.spark_lake.stream_steps import (
    add,
    opened,
    rows,
    step,
    through_json,
)


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


def opened_by_pattern(
    archive: ArchiveBuilder, pattern: str, **options: str
) -> StrandlineStreamReader:
    given = {"path": archive.url, "subscribePattern": pattern, "startingOffsets": "earliest"}
    source = StrandlineDataSource({**given, **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StrandlineStreamReader)
    return reader


def test_topics_of_a_pattern_come_and_go(archive: ArchiveBuilder) -> None:
    by_pattern = partial(opened_by_pattern, archive, "^[tu]$")
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


def test_a_pattern_may_match_nothing_yet_or_nothing_any_more(archive: ArchiveBuilder) -> None:
    """As with Spark's Kafka source; what was read of a topic that is gone is a loss."""

    by_pattern = partial(opened_by_pattern, archive, "^u")
    reader = by_pattern()
    reader.prepareForTriggerAvailableNow()
    nothing = through_json(reader.initialOffset())
    assert step(reader, nothing) == ([], nothing)
    archive.add_topic("u")
    archive.add_segment("u", make_batches(make_records(5)))
    # It is not for the run that began without it.
    assert step(reader, nothing) == ([], nothing)
    reader = by_pattern()
    reader.prepareForTriggerAvailableNow()
    found, at = step(reader, nothing)
    assert found == []
    found, at = step(reader, at)
    assert found == [(0, n) for n in range(5)]
    old = archive.topics["u"].info
    archive.object_path(old.key).write_bytes(replace(old, deleted_ms=1).encode())
    with pytest.raises(StreamDataLost, match="u-0: the topic or partition is no longer in"):
        step(by_pattern(), at)
    found, at = step(by_pattern(failOnDataLoss="false"), at)
    assert (found, at["offsets"]) == ([], {})


def test_a_checkpoint_of_another_topic_or_archive_is_a_loss(
    archive: ArchiveBuilder, tmp_path: Path
) -> None:
    _, at = step(opened(archive), through_json(opened(archive).initialOffset()))
    archive.add_topic("u")
    archive.add_segment("u", make_batches(make_records(7)))
    with pytest.raises(StreamDataLost, match=r"t-0: .*not asked for.*new checkpointLocation"):
        step(opened(archive, subscribe="u"), at)
    lossy = opened(archive, subscribe="u", failOnDataLoss="false")
    assert step(lossy, step(lossy, at)[1])[0] == [(0, n) for n in range(7)]
    # A topic of the same name in another cluster is another topic.
    other = ArchiveBuilder(tmp_path / "other")
    other.add_topic("t", partitions=3)
    add(other, 0, 200)
    with pytest.raises(StreamDataLost, match="t-0: the topic was deleted and made anew"):
        step(opened(other), at)
    lossy = opened(other, failOnDataLoss="false")
    assert step(lossy, step(lossy, at)[1])[0] == [(0, n) for n in range(200)]
    # The same archive elsewhere is the same.
    shutil.copytree(archive.path, tmp_path / "copy")
    copy = ArchiveBuilder(tmp_path / "copy")
    copy.topics = archive.topics
    add(copy, 100, 5)
    assert step(opened(copy), at)[0] == [(0, n) for n in range(100, 105)]


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

    def stale(reader: ObjectReader, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if left.get(key, 0):
            left[key] -= 1
            return old[key]
        return get(reader, key, start=start, end=end)

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

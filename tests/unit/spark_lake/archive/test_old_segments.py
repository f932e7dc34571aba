"""Segments of message formats 0 and 1 in the lake, with the key filters that an upload makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.spark_lake import count, scan
from strandline.spark_lake.archive.old_segments import old_partitions
from strandline.spark_lake.plan.planner import Skip
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.storage.records.batch.record import encode_batch
from strandline.storage.tiering.copy.segment_walk import AdaptiveWalk, Walk
from tests.support.old_formats import CODECS
from tests.unit.spark_lake.archive.old_archive import (
    RECORDS,
    archive_as_the_copier_does,
    old_and_new,
    records,
)
from tests.unit.spark_lake.archive_builder import ArchiveBuilder


@pytest.mark.parametrize("walk", [AdaptiveWalk(), AdaptiveWalk(plain_records_max=0)])
@pytest.mark.parametrize(
    ("magic", "codec"), [(magic, codec) for magic in (0, 1) for codec in CODECS.values()]
)
def test_a_key_of_old_messages_is_found_with_the_filter_of_their_segment(
    tmp_path: Path, magic: int, codec: int, walk: Walk
) -> None:
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("t")
    path = tmp_path / "segment"
    path.write_bytes(b"".join(old_and_new(magic, codec)))
    archive_as_the_copier_does(archive, path, walk)
    sent = records(0) + records(RECORDS)
    rows = scan(archive.url, "t").read_all().to_pylist()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (record.offset, record.key, record.value) for record in sent
    ]
    for offset in (1, RECORDS + 1):
        filters = [("key", "==", b"key-%d" % offset)]
        found = scan(archive.url, "t", filters=filters).read_all().to_pylist()
        assert [row["offset"] for row in found] == [offset]
        assert count(archive.url, "t", filters=filters) == 1
    query = make_query(archive.url, "t", filters=[("key", "==", b"nobody")])
    plan = query.plan(query.open())
    assert plan.skipped[Skip.KEYS].segment_count == 1
    assert scan(archive.url, "t", filters=[("key", "==", b"nobody")]).read_all().num_rows == 0


def test_a_first_segment_that_is_gone_is_left_to_the_task_that_reads_it(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    entry = archive.add_segment("t", [encode_batch(records(0))])
    query = make_query(archive.url, "t")
    reader = query.open()
    plan = query.plan(reader)
    assert old_partitions(plan.splits, reader) == frozenset()
    archive.object_path(entry.log_key).unlink()
    assert old_partitions(plan.splits, reader) == frozenset()


def test_what_an_object_begins_with_is_asked_for_once(tmp_path: Path) -> None:
    """Objects are never written again; a segment of another name is asked for anew."""
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    archive.add_topic("u")
    archive.add_segment("t", [encode_batch(records(0))])
    for topic, asked in (("t", 1), ("t", 0), ("u", 1), ("u", 0)):
        if topic == "u" and asked:
            archive.add_segment("u", [encode_batch(records(0))])
        query = make_query(archive.url, topic)
        reader = query.open()
        plan = query.plan(reader)
        before = reader.statistics().request_count
        assert old_partitions(plan.splits, reader) == frozenset()
        assert reader.statistics().request_count - before == asked

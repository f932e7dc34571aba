"""What an archive says it has: what is missing, newer or damaged is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.spark_lake import scan
from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.storage.errors import (
    CorruptFile,
    InvalidConfig,
    ObjectNotFound,
    UnsupportedFormat,
)
from strandline.storage.remote import keys
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.json_document import encode_document
from tests.unit.spark_lake.archive.damaged import damage, refused
from tests.unit.spark_lake.archive_builder import (
    ArchiveBuilder,
    make_batches,
    make_records,
)

# --- the archive -----------------------------------------------------------------------------


def test_a_folder_without_a_cluster_is_no_archive(tmp_path: Path) -> None:
    source = StrandlineDataSource({"path": str(tmp_path), "subscribe": "t"})
    with pytest.raises(ObjectNotFound, match=r"cluster\.json.*no strandline archive.*remote\.url"):
        source.reader(source.schema()).partitions()


def test_a_file_in_the_place_of_an_archive_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    source = StrandlineDataSource({"path": str(tmp_path / "file"), "subscribe": "t"})
    with pytest.raises(InvalidConfig, match=r"/file/cluster\.json: a file is in the way"):
        source.reader(source.schema()).partitions()


def test_a_newer_archive_is_refused_by_version(archive: ArchiveBuilder) -> None:
    newer = encode_document("strandline-cluster", 99, {"cluster_id": "a" * 22})
    archive.object_path(keys.CLUSTER_KEY).write_bytes(newer)
    assert "cluster.json: strandline-cluster version 99" in refused(archive, UnsupportedFormat)


def test_an_unknown_topic_is_answered_with_the_nearest_or_the_first_names(
    archive: ArchiveBuilder,
) -> None:
    assert "has no topic t; it has no topics yet" in refused(archive, InvalidConfig)
    archive.add_topic("flights")
    assert "the nearest is flights" in refused(archive, InvalidConfig, subscribe="flihgts")
    assert "it has flights" in refused(archive, InvalidConfig)


def test_a_topic_that_is_being_deleted_does_not_exist(archive: ArchiveBuilder) -> None:
    archive.add_topic("t", deleted_ms=1)
    assert "has no topic t any more: it was deleted" in refused(archive, InvalidConfig)
    archive.add_topic("u")
    # Its folder is still there, and no name to choose.
    told = refused(archive, InvalidConfig, subscribe="v")
    # It may be one that was just created.
    assert "has no topic v; it has t, u. A topic comes into the archive with the first" in told
    with pytest.raises(InvalidConfig, match=r"matches no topic of .*; it has u$"):
        scan(archive.url, options={"subscribePattern": "t"})


def test_a_pattern_without_a_match_and_a_partition_too_many_are_refused(
    archive: ArchiveBuilder,
) -> None:
    archive.add_topic("t", partitions=2)
    options = {"path": archive.url, "subscribePattern": "x.*"}
    source = StrandlineDataSource(options)
    with pytest.raises(InvalidConfig, match="matches no topic"):
        source.reader(source.schema()).partitions()
    source = StrandlineDataSource({"path": archive.url, "assign": '{"t": [1, 2]}'})
    with pytest.raises(InvalidConfig, match="partitions 0 to 1, not 2"):
        source.reader(source.schema()).partitions()


def test_two_living_topics_of_one_name_are_refused(archive: ArchiveBuilder) -> None:
    archive.add_topic("t")
    archive.add_topic("t")
    assert "two live topics named t" in refused(archive, CorruptFile)


def test_a_damaged_topic_description_is_refused(
    archive: ArchiveBuilder, segment: SegmentEntry
) -> None:
    key = archive.topics["t"].info.key
    damage(archive, key, lambda content: content.reverse())
    assert f"{archive.url}/{key}" in refused(archive, CorruptFile)


# --- manifests -------------------------------------------------------------------------------


def test_a_damaged_manifest_is_refused(archive: ArchiveBuilder, segment: SegmentEntry) -> None:
    key = keys.manifest_key(archive.partition_id("t"))
    content = json.loads(archive.object_path(key).read_bytes())
    content["segments"][1]["record_count"] += 1
    archive.object_path(key).write_text(json.dumps(content))
    message = refused(archive, CorruptFile)
    assert key in message
    assert "checksum" in message


def test_a_newer_manifest_is_refused_by_version(
    archive: ArchiveBuilder, segment: SegmentEntry
) -> None:
    key = keys.manifest_key(archive.partition_id("t"))
    archive.object_path(key).write_bytes(encode_document("strandline-manifest", 7, {}))
    assert "strandline-manifest version 7" in refused(archive, UnsupportedFormat)


def test_another_partitions_manifest_is_refused(
    archive: ArchiveBuilder, segment: SegmentEntry
) -> None:
    archive.add_topic("u")
    key = keys.manifest_key(archive.partition_id("t"))
    archive.object_path(key).write_bytes(archive.manifest("u").encode())
    assert "is the manifest of" in refused(archive, CorruptFile)


def test_a_damaged_page_is_refused(archive: ArchiveBuilder, segment: SegmentEntry) -> None:
    archive.seal_page("t", 2)
    (page,) = archive.manifest("t").pages
    damage(archive, page.key, lambda content: content.append(0x20))
    assert page.key in refused(archive, CorruptFile)


def test_a_description_of_another_topic_is_refused(archive: ArchiveBuilder) -> None:
    for topic in ("t", "u"):
        archive.add_topic(topic)
        archive.add_segment(topic, make_batches(make_records(10)))
    key = archive.topics["t"].info.key
    archive.object_path(key).write_bytes(archive.topics["u"].info.encode())
    said = refused(archive, CorruptFile)
    assert f"{archive.url}/{key} describes topic u" in said
    assert "put the right one back" in said
    # A pattern for the one gave the rows of the other.
    with pytest.raises(CorruptFile, match="describes topic u"):
        scan(archive.url, options={"subscribePattern": "^t$"})

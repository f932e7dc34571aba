"""An archive that changes while it is read: the rows of the plan, or an error; never fewer."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest

from strandline.spark_lake.archive.catalog import Catalog
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.plan.planner import ScanPlan
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.spark_lake.query.query import Query
from strandline.storage.errors import ObjectNotFound
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.keys import manifest_key
from strandline.storage.remote.manifest.manifest import Manifest
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    make_batches,
    make_records,
    read_offsets,
)


@pytest.fixture
def archive(archive: ArchiveBuilder) -> ArchiveBuilder:
    """Topic `t`: five segments of 100 records, the first two in a page."""
    archive.add_topic("t")
    for start in range(0, 500, 100):
        archive.add_segment("t", make_batches(make_records(100, base_offset=start)))
    archive.seal_page("t", 2)
    return archive


def planned(archive: ArchiveBuilder) -> tuple[Query, ScanPlan]:
    query = make_query(archive.url, "t", columns=["offset"])
    return query, query.plan(query.open())


def test_what_is_archived_meanwhile_is_for_the_next_query(archive: ArchiveBuilder) -> None:
    query, plan = planned(archive)
    archive.add_segment("t", make_batches(make_records(100, base_offset=500)))
    assert read_offsets(query, plan) == list(range(500))
    assert read_offsets(*planned(archive)) == list(range(600))


def test_retention_while_reading_changes_nothing_within_the_grace_time(
    archive: ArchiveBuilder,
) -> None:
    query, plan = planned(archive)
    manifest = archive.manifest("t")
    archive.save(replace(manifest, log_start_offset=400).with_deleting((), marked_ms=START_MS))
    assert read_offsets(query, plan) == list(range(500))
    assert read_offsets(*planned(archive)) == list(range(400, 500))


def test_an_object_that_retention_removed_is_an_error_with_the_remedy(
    archive: ArchiveBuilder,
) -> None:
    query, plan = planned(archive)
    entry = archive.manifest("t").segments[1]
    archive.object_path(entry.log_key).unlink()
    with pytest.raises(ObjectNotFound, match=r"run the query again.*grace") as caught:
        read_offsets(query, plan)
    assert entry.log_key in str(caught.value)


def test_a_topic_deleted_while_reading_is_an_error(archive: ArchiveBuilder) -> None:
    query, plan = planned(archive)
    for path in sorted((archive.path / "topics").rglob("*.*")):
        path.unlink()
    with pytest.raises(ObjectNotFound, match="run the query again"):
        read_offsets(query, plan)


@pytest.mark.parametrize("tombstone", [True, False])
def test_a_topic_deleted_while_planning_is_not_an_empty_one(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch, tombstone: bool
) -> None:
    info = archive.topics["t"].info
    load = Catalog._load_manifest

    def deleted_first(self: Catalog, partition: TopicIdPartition) -> Manifest | None:
        archive.object_path(manifest_key(partition)).unlink(missing_ok=True)
        if tombstone:
            archive.object_path(info.key).write_bytes(replace(info, deleted_ms=1).encode())
        else:
            archive.object_path(info.key).unlink(missing_ok=True)
        return load(self, partition)

    monkeypatch.setattr(Catalog, "_load_manifest", deleted_first)
    with pytest.raises(ObjectNotFound, match="topic t was deleted while the query was planned"):
        planned(archive)


def test_a_page_that_went_while_planning_is_an_error(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (page,) = archive.manifest("t").pages
    archive.object_path(page.key).unlink()
    with pytest.raises(ObjectNotFound, match="run the query again"):
        planned(archive)


def test_the_next_segment_is_on_its_way_while_the_last_window_of_one_is_decoded(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, threading.Event] = {}
    get = ObjectReader.get
    keys = [entry.log_key for entry in archive.manifest("t").segments]

    def noted(self: ObjectReader, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        asked.setdefault(key, threading.Event()).set()
        return get(self, key, start=start, end=end)

    for key in keys:
        asked[key] = threading.Event()
    monkeypatch.setattr(ObjectReader, "get", noted)
    query, plan = planned(archive)
    (split,) = plan.splits
    rows = query.read(split, query.open())
    next(rows)
    next(rows)
    next(rows)  # the first of the segments behind the page
    assert asked[keys[0]].is_set()
    assert asked[keys[1]].wait(30)
    assert not asked[keys[2]].is_set()
    rows.close()


def test_rows_before_a_missing_segment_come_before_the_error(archive: ArchiveBuilder) -> None:
    query, plan = planned(archive)
    archive.object_path(archive.manifest("t").segments[1].log_key).unlink()
    rows = (
        offset
        for split in plan.splits
        for batch in query.read(split, query.open())
        for offset in batch.column("offset").to_pylist()
    )
    assert list(itertools.islice(rows, 300)) == list(range(300))
    with pytest.raises(ObjectNotFound, match="run the query again"):
        next(rows)

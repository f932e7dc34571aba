"""Listings of an archive from the bucket alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from strandline.storage.errors import AccessDenied
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.tiering.audit.listing import list_partitions, list_segments
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.storage.tiering.harness import TOPIC, Rig, asynchronous


@asynchronous
async def test_partitions_are_described_without_listing_data(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        rig.log.delete_records(15)
        await rig.settle()
        rig.memory.requests.clear()
        (row,) = list_partitions(rig.store)
        assert row.partition.topic == TOPIC
        assert (row.segment_count, row.log_start_offset, row.first_offset) == (2, 15, 10)
        assert (row.end_offset, row.deleting_count, row.problem) == (30, 1, "")
        assert row.size_bytes == sum(map(len, rig.sent[1:]))
        assert row.min_timestamp_ms == rig.clock.now_ms()
        assert row.max_timestamp_ms == rig.clock.now_ms() + 9
        listed = [request.key for request in rig.memory.requests if request.operation == "list"]
        assert listed == ["topics/"], "the folder level only"
        assert list_partitions(rig.store, topic="other") == []


@asynchronous
async def test_segments_are_listed_over_pages_and_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(manifest_store.commit, root_entries_max=3, page_entries=2, page_entries_max=2)
    monkeypatch.setattr(manifest_store, "commit", small)
    async with Rig(tmp_path) as rig:
        rig.produce_segments(8)
        await rig.settle()
        (row,) = list_partitions(rig.store)
        assert row.segment_count == 8
        rows = [entry for _, entry in list_segments(rig.store, topic=TOPIC, partition=0)]
        assert [r.base_offset for r in rows] == list(range(0, 80, 10))
        assert all(r.record_count == 10 and r.end_offset == r.base_offset + 10 for r in rows)
        assert list(list_segments(rig.store, topic=TOPIC, partition=1)) == []


@asynchronous
async def test_a_damaged_manifest_is_a_problem_of_its_row(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.memory.damage(rig.manifest_key, lambda content: content[:-5])
        (row,) = list_partitions(rig.store)
        assert "manifest.json" in row.problem


def test_an_empty_bucket_is_an_empty_archive() -> None:
    assert list_partitions(MemoryStore()) == []


@asynchronous
async def test_a_bucket_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.memory.add_fault(
            Fault(operation="get", key_pattern="manifest", error=AccessDenied, times=-1)
        )
        with pytest.raises(AccessDenied):
            list_partitions(rig.store)

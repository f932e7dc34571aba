"""Listings that lag: what was written is not listed yet, what was deleted is. Nothing is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.commands.restore import find_topics
from strandline.storage.errors import TierUnavailable
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.topic_info import TopicInfo, save_topic_info
from strandline.storage.tiering.audit.orphans import compare
from strandline.storage.tiering.audit.scrub import Depth, Scrub
from strandline.storage.tiering.manager.topic_objects import ListingLags, TopicObjects
from tests.support.lagging_lists import LaggingLists
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.broker.cluster.metadata_rig import CLUSTER, fill, keys_in, opened
from tests.unit.storage.tiering.harness import ID_PARTITION, Rig, asynchronous

SNAPSHOT_INTERVAL = 4


def delete_all(objects: TopicObjects) -> None:
    while objects.delete_some():
        pass


@asynchronous
async def test_a_deleted_topic_goes_whole_though_nothing_of_it_is_listed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        lagging = LaggingLists(rig.memory)
        rig.produce_segments(5)
        await rig.settle()
        # A page of the manifest, marks of deleted segments, and the root's own segments.
        stored = manifest_store.load(rig.store, ID_PARTITION)
        assert stored is not None
        manifest_store.commit(
            rig.store, stored, stored.manifest, root_entries_max=3, page_entries=2
        )
        delete_all(TopicObjects(rig.topic_info, lagging))  # type: ignore[arg-type]  # its methods
        assert rig.memory.keys() == [rig.topic_info.key]


@asynchronous
async def test_what_is_listed_and_was_deleted_is_not_asked_for_again_at_once(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.settle()
        late = f"{rig.manifest_key.rpartition('/')[0]}/{0:020d}-0-{'a' * 32}.log"
        lagging = LaggingLists(rig.memory)
        rig.store.put(late, b"an upload that died")
        objects = TopicObjects(rig.topic_info, lagging)  # type: ignore[arg-type]  # its methods
        with pytest.raises(ListingLags):
            delete_all(objects)
        with pytest.raises(ListingLags):
            objects.delete_some()
        assert rig.memory.count_requests("delete", "") <= 4 * 7, "a few, not one after the other"
        lagging.catch_up()
        delete_all(objects)
        assert rig.memory.keys() == [rig.topic_info.key]


@asynchronous
async def test_a_purge_by_name_that_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        lagging = LaggingLists(rig.memory)
        rig.produce_segments(3)
        await rig.settle()
        objects = TopicObjects(rig.topic_info, lagging)  # type: ignore[arg-type]  # its methods
        for operation in ("get", "delete"):
            rig.memory.add_fault(Fault(operation=operation, error=TierUnavailable, times=1))
            with pytest.raises(TierUnavailable):
                objects.delete_some()
        delete_all(objects)
        assert rig.memory.keys() == [rig.topic_info.key]


@asynchronous
async def test_the_search_for_orphans_takes_nothing_for_missing_or_spare(tmp_path: Path) -> None:
    async with Rig(tmp_path, grace_ms=0) as rig:
        rig.produce_segments(2)
        await rig.settle()
        lagging = LaggingLists(rig.memory)
        rig.log.delete_records(20)
        rig.produce_segments(3)
        for _ in range(3):
            rig.pass_ms(1)
            await rig.settle()
        now_ms = rig.clock.now_ms()
        found = compare(lagging, now_ms=now_ms, grace_ms=0)  # type: ignore[arg-type]  # its methods
        assert (found.missing_keys, found.unreadable) == ((), ())
        # What is listed and gone may be deleted once more.
        assert not {orphan.key for orphan in found.orphans} & set(rig.memory.keys())


@asynchronous
async def test_a_quick_scrub_calls_nothing_missing_that_is_there(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.settle()
        lagging = LaggingLists(rig.memory)
        rig.produce_segments(2)
        await rig.settle()
        with ThreadPoolExecutor(2) as executor:
            scrub = Scrub(lagging, executor, depth=Depth.SIZES)  # type: ignore[arg-type]
            assert scrub.check(ID_PARTITION).findings == ()
            assert rig.manifest is not None
            rig.store.delete([rig.manifest.segments[-1].log_key])
            (finding,) = scrub.check(ID_PARTITION).findings
        assert finding.base_offset == 30


@pytest.mark.parametrize("entries", range(1, 3 * SNAPSHOT_INTERVAL))
def test_no_entry_of_the_metadata_is_missed(entries: int) -> None:
    store = MemoryStore()
    metadata = opened(store, snapshot_interval=1000)
    fill(metadata, 2)
    lagging = LaggingLists(store)
    fill(metadata, entries, first=2)
    late = MetadataLog(lagging, cluster_id=CLUSTER)  # type: ignore[arg-type]  # its methods
    assert late.refresh() == metadata.image
    fill(metadata, 1, first=2 + entries)
    assert late.catch_up() == metadata.image


def test_a_snapshot_that_is_listed_and_gone_is_no_end_of_the_metadata() -> None:
    store = MemoryStore()
    metadata = opened(store, snapshot_interval=SNAPSHOT_INTERVAL)
    fill(metadata, 2 * SNAPSHOT_INTERVAL)
    lagging = LaggingLists(store)
    fill(metadata, 1, first=2 * SNAPSHOT_INTERVAL)
    newest = max(key for key in keys_in(store) if "/snapshot" in key)
    store.delete([newest])
    late = MetadataLog(lagging, cluster_id=CLUSTER)  # type: ignore[arg-type]  # its methods
    assert late.refresh() == metadata.image


def test_a_restore_asks_by_name_for_what_is_not_listed() -> None:
    """As for a topic that was buried since: it must not come back."""
    store = MemoryStore()
    metadata = opened(store)
    lagging = LaggingLists(store)
    image = fill(metadata, 2)
    infos = {
        topic.name: TopicInfo(
            topic=topic.name, topic_id=topic.topic_id, partition_count=3, deleted_ms=number or None
        )
        for number, topic in enumerate(image.topics.values())
    }
    for info in infos.values():
        save_topic_info(store, info)
    with ThreadPoolExecutor(2) as executor:
        found, damaged = find_topics(lagging, image, executor)  # type: ignore[arg-type]  # its methods
    assert {info.topic: info for info in found} == infos
    assert damaged == []

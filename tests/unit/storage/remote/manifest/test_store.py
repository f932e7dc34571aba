"""Committing manifests by compare-and-swap, and reading them through their pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    ManifestFenced,
    ObjectCorrupt,
    TierUnavailable,
)
from strandline.storage.remote.keys import manifest_key
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.store import (
    PAGES_MERGED,
    ManifestPages,
    StoredManifest,
    commit,
    load,
)
from tests.support.memory_store import Fault, MemoryStore, Timing
from tests.unit.storage.remote import manifests
from tests.unit.storage.remote.manifests import EMPTY, PARTITION

KEY = manifest_key(PARTITION)


def entry(number: int) -> SegmentEntry:
    """Segment [10 n, 10 n + 10) with times 10 n to 10 n + 9."""
    return manifests.entry(10 * number, 10 * number + 10, time_ms=10 * number)


def grow(store: MemoryStore, count: int) -> StoredManifest:
    """Commits `count` segments one by one, with small pages."""
    stored: StoredManifest | None = None
    for number in range(count):
        manifest = EMPTY if stored is None else stored.manifest
        stored = commit(
            store, stored, manifest.with_segment(entry(number)), root_entries_max=4, page_entries=3
        )
    assert stored is not None
    return stored


def test_there_is_no_manifest_before_the_first_commit() -> None:
    assert load(MemoryStore(), PARTITION) is None


def test_what_was_committed_is_loaded() -> None:
    store = MemoryStore()
    first = commit(store, None, EMPTY)
    second = commit(store, first, first.manifest.with_segment(entry(0)))
    assert load(store, PARTITION) == second
    assert (first.manifest.revision, second.manifest.revision) == (1, 2)


def test_of_two_writers_the_second_is_fenced_and_changes_nothing() -> None:
    store = MemoryStore()
    base = commit(store, None, EMPTY)
    winner = commit(store, base, base.manifest.with_segment(entry(0)))
    with pytest.raises(ManifestFenced):
        commit(store, base, base.manifest.with_log_start(1))
    with pytest.raises(ManifestFenced):
        commit(store, None, EMPTY)
    assert load(store, PARTITION) == winner


def test_a_lower_leader_epoch_is_fenced_before_anything_is_written() -> None:
    store = MemoryStore()
    base = commit(store, None, EMPTY.with_leader_epoch(5))
    store.requests.clear()
    with pytest.raises(ManifestFenced):
        commit(store, base, replace(base.manifest, leader_epoch=4))
    assert store.requests == []


@pytest.mark.parametrize("is_first", [True, False])
def test_a_lost_answer_is_no_fence(is_first: bool) -> None:
    store = MemoryStore()
    base = None if is_first else commit(store, None, EMPTY)
    store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Timing.AFTER))
    stored = commit(store, base, EMPTY.with_segment(entry(0)))
    assert load(store, PARTITION) == stored


def test_a_lost_answer_that_looks_like_a_lost_race_is_no_fence() -> None:
    store = MemoryStore()
    base = commit(store, None, EMPTY)
    new = base.manifest.with_segment(entry(0))
    first = commit(store, base, new)
    # The same commit again, as a retry below the store would do it.
    assert commit(store, base, new) == first


@pytest.mark.parametrize("is_first", [True, False])
def test_a_commit_that_never_arrived_can_be_repeated(is_first: bool) -> None:
    store = MemoryStore()
    base = None if is_first else commit(store, None, EMPTY)
    store.add_fault(Fault(operation="put", error=TierUnavailable))
    new = EMPTY.with_segment(entry(0))
    with pytest.raises(TierUnavailable):
        commit(store, base, new)
    repeated = commit(store, base, new)
    assert load(store, PARTITION) == repeated


def test_an_outage_during_the_read_back_leaves_the_commit_repeatable() -> None:
    store = MemoryStore()
    base = commit(store, None, EMPTY)
    new = base.manifest.with_segment(entry(0))
    store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Timing.AFTER))
    store.add_fault(Fault(operation="get", error=TierUnavailable))
    with pytest.raises(TierUnavailable):
        commit(store, base, new)
    repeated = commit(store, base, new)
    assert load(store, PARTITION) == repeated


def test_a_deleted_manifest_fences() -> None:
    store = MemoryStore()
    base = commit(store, None, EMPTY)
    store.delete([KEY])
    with pytest.raises(ManifestFenced, match="deleted"):
        commit(store, base, base.manifest)


def test_only_a_plain_404_means_that_there_is_none() -> None:
    store = MemoryStore()
    for error in (AccessDenied, TierUnavailable):
        store.add_fault(Fault(operation="get", error=error))
        with pytest.raises(error):
            load(store, PARTITION)


def test_a_damaged_or_foreign_manifest_is_corrupt() -> None:
    store = MemoryStore()
    stored = commit(store, None, EMPTY)
    store.damage(KEY, lambda content: content[:-10])
    with pytest.raises(CorruptFile, match=KEY):
        load(store, PARTITION)
    store.damage(KEY, lambda _: replace(stored.manifest, partition=1).encode())
    with pytest.raises(CorruptFile, match="not of orders-0"):
        load(store, PARTITION)


# --- pages -----------------------------------------------------------------------------------


def test_the_root_stays_short_and_no_entry_is_lost() -> None:
    store = MemoryStore()
    stored = grow(store, 30)
    pages = ManifestPages(store)
    assert len(stored.manifest.segments) <= 4
    assert list(pages.iter_segments(stored.manifest)) == [entry(number) for number in range(30)]
    assert load(store, PARTITION) == stored


def test_the_cost_of_a_commit_does_not_grow_with_the_archive() -> None:
    store = MemoryStore()
    stored = grow(store, 30)
    store.requests.clear()
    for number in range(30, 36):
        stored = commit(
            store,
            stored,
            stored.manifest.with_segment(entry(number)),
            root_entries_max=4,
            page_entries=3,
        )
    assert store.count_requests("put", "manifest.json") == 6
    assert store.count_requests("put", "manifest/") == 2
    assert store.count_requests("get") == 0


def test_a_crash_between_page_and_root_leaves_the_old_manifest() -> None:
    store = MemoryStore()
    stored = grow(store, 4)
    store.add_fault(Fault(operation="put", key_pattern=r"manifest\.json", error=AccessDenied))
    new = stored.manifest.with_segment(entry(4))
    with pytest.raises(AccessDenied):
        commit(store, stored, new, root_entries_max=4, page_entries=3)
    assert load(store, PARTITION) == stored
    final = commit(store, stored, new, root_entries_max=4, page_entries=3)
    assert len(list(ManifestPages(store).iter_segments(final.manifest))) == 5
    assert store.count_requests("put", "manifest/") == 2  # the first one is an orphan now


def test_offsets_are_found_through_pages() -> None:
    store = MemoryStore()
    manifest = grow(store, 20).manifest
    pages = ManifestPages(store)
    for offset in range(0, 200, 3):
        assert pages.find(manifest, offset) == entry(offset // 10)
    assert pages.find(manifest, 200) is None
    assert [e.base_offset for e in pages.iter_segments(manifest, start_offset=175)] == [
        170,
        180,
        190,
    ]


def test_each_page_is_read_once() -> None:
    store = MemoryStore()
    manifest = grow(store, 20).manifest
    pages = ManifestPages(store)
    page = manifest.pages[0]
    assert pages.cached_entries(page) is None
    for _ in range(5):
        list(pages.iter_segments(manifest))
    assert store.count_requests("get", "manifest/") == len(manifest.pages)
    assert pages.cached_entries(page) == pages.entries(page)


def test_no_more_pages_are_kept_than_allowed() -> None:
    store = MemoryStore()
    manifest = grow(store, 20).manifest
    pages = ManifestPages(store, pages_max=2)
    list(pages.iter_segments(manifest))
    assert sum(pages.cached_entries(page) is not None for page in manifest.pages) == 2


def test_old_segments_are_deleted_out_of_pages() -> None:
    store = MemoryStore()
    stored = grow(store, 12)
    pages = ManifestPages(store)
    dead = list(pages.iter_segments(stored.manifest))[:5]
    new = stored.manifest.with_log_start(50).with_deleting(dead, marked_ms=1)
    stored = commit(store, stored, new)
    assert list(pages.iter_segments(stored.manifest)) == [entry(n) for n in range(5, 12)]
    assert pages.find(stored.manifest, 50) == entry(5)


def test_a_damaged_page_is_corrupt_and_names_its_key() -> None:
    store = MemoryStore()
    manifest = grow(store, 8).manifest
    page = manifest.pages[0]
    store.damage(page.key, lambda content: content.replace(b"/0.log", b"/9.log"))
    with pytest.raises(ObjectCorrupt, match=page.key):
        ManifestPages(store).entries(page)


def test_a_page_never_hides_a_gap() -> None:
    store = MemoryStore()
    manifest = EMPTY.with_segment(entry(0)).with_segment(entry(1)).with_log_start(60)
    for number in range(5, 12):
        manifest = manifest.with_segment(entry(number))
    stored = commit(store, None, manifest, root_entries_max=4, page_entries=3)
    assert [page.end_offset for page in stored.manifest.pages] == [20, 80]
    pages = ManifestPages(store)
    assert len(list(pages.iter_segments(stored.manifest))) == 9


def grown(store: MemoryStore, count: int, *, now_ms: int = 5, **bounds: int) -> StoredManifest:
    """An archive of so many segments, one commit each."""
    stored = commit(store, None, EMPTY)
    for number in range(count):
        new = stored.manifest.with_segment(entry(number))
        stored = commit(
            store, stored, new, now_ms=now_ms, root_entries_max=4, page_entries=2, **bounds
        )
    return stored


def test_pages_are_merged_so_that_a_root_stays_short() -> None:
    store = MemoryStore()
    stored = grown(store, 1200, page_entries_max=1024)
    manifest = stored.manifest
    assert len(manifest.pages) <= 3 * PAGES_MERGED
    assert manifest.pages[0].segment_count == 1024
    assert len(manifest.segments) <= 4
    found = list(ManifestPages(store).iter_segments(manifest))
    assert [one.base_offset for one in found] == [10 * number for number in range(1200)]
    assert manifest.segment_count == 1200
    # What was replaced is marked, and nothing else lies in the store.
    named = {page.key for page in manifest.pages} | {mark.log_key for mark in manifest.deleting}
    assert {info.key for info in store.list("") if "/manifest/" in info.key} == named
    assert all(mark.marked_ms == 5 for mark in manifest.deleting)


def test_pages_are_not_merged_where_nobody_says_what_time_it_is() -> None:
    store = MemoryStore()
    stored = commit(store, None, EMPTY)
    for number in range(100):
        new = stored.manifest.with_segment(entry(number))
        stored = commit(store, stored, new, root_entries_max=4, page_entries=2)
    assert not stored.manifest.deleting
    assert len(stored.manifest.pages) == 48


def test_a_page_that_cannot_be_read_keeps_no_commit_from_being_made() -> None:
    store = MemoryStore()
    stored = grown(store, 17)
    assert len(stored.manifest.pages) == PAGES_MERGED - 1
    damaged = stored.manifest.pages[3].key
    store.delete([damaged])
    for number in range(17, 30):
        new = stored.manifest.with_segment(entry(number))
        stored = commit(store, stored, new, now_ms=5, root_entries_max=4, page_entries=2)
    assert damaged in {page.key for page in stored.manifest.pages}
    assert stored.manifest.segment_count == 30


def test_pages_whose_first_entries_are_deleted_are_merged_without_them() -> None:
    store = MemoryStore()
    stored = grown(store, 17)
    gone = [entry(number) for number in range(3)]
    new = stored.manifest.with_log_start(30).with_deleting(gone, marked_ms=5)
    stored = commit(store, stored, new, now_ms=5, root_entries_max=4, page_entries=2)
    for number in range(17, 40):
        new = stored.manifest.with_segment(entry(number))
        stored = commit(store, stored, new, now_ms=5, root_entries_max=4, page_entries=2)
    found = list(ManifestPages(store).iter_segments(stored.manifest))
    assert [one.base_offset for one in found] == [10 * number for number in range(3, 40)]


def test_the_bounds_of_root_and_page_fit_each_other() -> None:
    assert manifest_store.PAGE_ENTRIES < manifest_store.ROOT_ENTRIES_MAX

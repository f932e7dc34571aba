"""What a store holds of the log is read whole, or refused by name; some damage is made up for."""

from __future__ import annotations

import logging

import pytest

from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    TierUnavailable,
)
from strandline.storage.remote.keys import metadata_log_key, metadata_snapshot_key
from strandline.storage.remote.object_store.interface import IfAbsent, ObjectStore
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.broker.cluster.metadata_rig import fill, keys_in, opened


def test_loading_costs_only_the_entries_since_the_last_snapshot() -> None:
    store = MemoryStore()
    image = fill(opened(store), 21)
    before = store.count_requests("get")
    assert opened(store).image == image
    assert store.count_requests("get") - before <= 1 + 4 + 2, "the boundary too, twice"


def test_superfluous_entries_and_snapshots_are_deleted_and_two_snapshots_kept() -> None:
    store = MemoryStore()
    fill(opened(store), 30)
    snapshots = [key for key in keys_in(store) if key.startswith("metadata/snapshot/")]
    assert snapshots == [metadata_snapshot_key(24), metadata_snapshot_key(28)]
    entries = [key for key in keys_in(store) if key.startswith("metadata/log/")]
    assert entries == [metadata_log_key(index) for index in range(24, 32)]


def test_the_log_of_another_cluster_is_refused(store: ObjectStore) -> None:
    opened(store)
    with pytest.raises(CorruptFile, match="belongs to cluster c-1, this is cluster c-2"):
        opened(store, cluster_id="c-2")


def test_foreign_objects_beside_the_log_are_left_alone() -> None:
    store = MemoryStore()
    store.put("metadata/log/notes.txt", b"x")
    store.put("metadata/snapshot/00000000000000000009.json.bak", b"x")
    image = fill(opened(store), 9)
    assert opened(store).image == image
    assert "metadata/log/notes.txt" in keys_in(store)


def test_a_missing_entry_is_a_gap_and_not_the_end() -> None:
    store = MemoryStore()
    fill(opened(store, snapshot_interval=100), 5)
    store.delete([metadata_log_key(3)])
    with pytest.raises(CorruptFile, match=f"gap: {metadata_log_key(3)} is missing"):
        opened(store, snapshot_interval=100)


def test_a_missing_first_entry_is_a_gap() -> None:
    store = MemoryStore()
    fill(opened(store), 1)
    store.delete([metadata_log_key(1)])
    with pytest.raises(CorruptFile, match="gap"):
        opened(store)


def test_an_entry_of_another_history_is_refused() -> None:
    mine, theirs = MemoryStore(), MemoryStore()
    fill(opened(mine), 1)
    fill(opened(theirs), 2)
    mine.put(metadata_log_key(3), theirs.get(metadata_log_key(3)), condition=IfAbsent())
    with pytest.raises(CorruptFile, match="does not follow the entry before it"):
        opened(mine)


def test_a_damaged_snapshot_is_made_up_for_by_the_one_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    image = fill(opened(store), 30)
    store.damage(metadata_snapshot_key(28), lambda old: old[:-20])
    with caplog.at_level(logging.WARNING):
        metadata = opened(store)
    assert metadata.image == image
    assert "metadata snapshot damaged" in caplog.text
    fill(metadata, 9, first=50)
    assert opened(store).image == metadata.image


def test_a_damaged_first_snapshot_is_made_up_for_by_the_entries() -> None:
    store = MemoryStore()
    image = fill(opened(store), 4)
    store.damage(metadata_snapshot_key(4), lambda _old: b"")
    assert opened(store).image == image


def test_without_a_whole_snapshot_a_pruned_log_is_refused_by_name() -> None:
    store = MemoryStore()
    fill(opened(store), 30)
    for version in (24, 28):
        store.damage(metadata_snapshot_key(version), lambda _old: b"{}")
    with pytest.raises(CorruptFile, match=metadata_snapshot_key(28)):
        opened(store)


@pytest.mark.parametrize("error", [TierUnavailable, AccessDenied])
def test_a_store_that_cannot_be_read_is_not_taken_for_an_empty_one(
    error: type[TierUnavailable | AccessDenied],
) -> None:
    store = MemoryStore()
    fill(opened(store), 2)
    store.add_fault(Fault(operation="list|get", error=error, times=-1))
    before = keys_in(store)
    with pytest.raises(error):
        opened(store)
    assert keys_in(store) == before

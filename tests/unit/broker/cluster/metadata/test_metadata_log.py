"""The metadata log loses nothing, mixes nothing, and says so when it cannot go on."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.documents import (
    NO_ENTRY_CHECKSUM,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    entry_checksum,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata_log import (
    MetadataLog,
    MetadataRaced,
)
from strandline.broker.cluster.metadata.records import (
    BrokerStarted,
    ProducerIdsAllocated,
    TopicDeleted,
)
from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    TierUnavailable,
    UnsupportedFormat,
)
from strandline.storage.remote.keys import metadata_log_key, metadata_snapshot_key
from strandline.storage.remote.object_store.interface import IfAbsent, ObjectStore
from strandline.storage.remote.object_store.memory import Fault, MemoryStore, Moment
from strandline.storage.remote.open_store import open_store
from tests.unit.broker.cluster.metadata_rig import CLUSTER, created, fill, history, keys_in, opened


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return MemoryStore()
    (tmp_path / "store").mkdir()
    return open_store(f"file://{tmp_path / 'store'}")


# --- appending and loading ---------------------------------------------------------------------


def test_an_empty_log_begins_with_its_cluster(store: ObjectStore) -> None:
    image = opened(store).image
    assert (image.version, image.cluster_id) == (1, CLUSTER)


def test_what_was_appended_is_there_after_a_restart(store: ObjectStore) -> None:
    metadata = opened(store)
    for records in history():
        before = metadata.image
        after = metadata.append(records)
        assert after is metadata.image
        assert after == before.apply_entry(records)
        assert opened(store).image == after


def test_loading_costs_only_the_entries_since_the_last_snapshot() -> None:
    store = MemoryStore()
    image = fill(opened(store), 21)
    before = store.count_requests("get")
    assert opened(store).image == image
    assert store.count_requests("get") - before <= 1 + 4


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


# --- failures while appending ------------------------------------------------------------------


def test_a_failed_write_changes_nothing_and_the_next_append_goes_on() -> None:
    store = MemoryStore()
    metadata = opened(store)
    before = metadata.image
    store.add_fault(Fault(operation="put", error=TierUnavailable))
    with pytest.raises(TierUnavailable):
        metadata.append([created(0)])
    assert metadata.image == before
    fill(metadata, 1)
    assert opened(store).image == metadata.image


def test_an_append_whose_answer_was_lost_is_found_by_the_next_one() -> None:
    store = MemoryStore()
    metadata = opened(store)
    store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Moment.AFTER))
    with pytest.raises(TierUnavailable):
        metadata.append([created(0)])
    # Decided again on the old image, the same topic would exist twice.
    with pytest.raises(MetadataRaced):
        metadata.append([created(0)])
    assert "t0" in metadata.image.topics
    fill(metadata, 1, first=1)
    assert sorted(opened(store).image.topics) == ["t0", "t1"]


def test_refreshing_settles_an_open_outcome() -> None:
    store = MemoryStore()
    metadata = opened(store)
    store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Moment.AFTER))
    with pytest.raises(TierUnavailable):
        metadata.append([created(0)])
    assert "t0" not in metadata.image.topics
    assert "t0" in metadata.refresh().topics


def test_of_two_brokers_one_wins_and_the_other_learns_what_was_written(store: ObjectStore) -> None:
    one, two = opened(store), opened(store)
    one.append([ProducerIdsAllocated(next_producer_id=1000)])
    with pytest.raises(MetadataRaced, match="entry 2 was written by somebody else"):
        two.append([ProducerIdsAllocated(next_producer_id=1000)])
    assert two.image == one.image
    two.append([ProducerIdsAllocated(next_producer_id=2000)])
    with pytest.raises(MetadataRaced):
        one.append([created(0)])
    assert one.image.next_producer_id == 2000


def test_two_brokers_that_form_one_cluster_at_once_agree() -> None:
    store, late = MemoryStore(), MemoryStore()
    opened(store)
    # The loser has seen an empty log; the winner's first entry comes in between.
    loser = MetadataLog(late, cluster_id=CLUSTER)
    original_put = late.put

    def put_late(*args: object, **kwargs: object) -> object:
        late.put = original_put  # type: ignore[method-assign]
        original_put(metadata_log_key(1), store.get(metadata_log_key(1)))
        return original_put(*args, **kwargs)  # type: ignore[arg-type]

    late.put = put_late  # type: ignore[method-assign, assignment]
    assert loser.load().version == 1


def test_a_snapshot_that_cannot_be_written_delays_nothing_but_the_next_load(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    metadata = opened(store)
    store.add_fault(Fault(operation="put", key_pattern="snapshot", error=TierUnavailable, times=2))
    with caplog.at_level(logging.WARNING):
        image = fill(metadata, 4)
    assert "metadata snapshot not written" in caplog.text
    assert metadata.statistics().snapshot_version == 0
    assert opened(store).image == image
    fill(metadata, 2, first=10)
    assert metadata.statistics().snapshot_version > 0


def test_records_that_do_not_fit_never_reach_the_store() -> None:
    store = MemoryStore()
    metadata = opened(store)
    before = keys_in(store)
    with pytest.raises(CorruptFile):
        metadata.append([TopicDeleted(topic_id=uuid.UUID(int=1))])
    assert keys_in(store) == before


# --- crashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", list(Moment))
def test_a_crash_at_any_step_loses_no_acknowledged_entry(moment: Moment) -> None:
    """Every write of a long history fails once; whoever comes after finds a whole log."""
    clean = MemoryStore()
    metadata = opened(clean)
    for records in history():
        metadata.append(records)
    step_count = clean.count_requests("put|delete")
    assert step_count > 15
    for step in range(step_count):
        store = MemoryStore()
        store.add_fault(
            Fault(operation="put|delete", error=TierUnavailable, moment=moment, skip=step)
        )
        acknowledged = MetadataImage()
        attempted = acknowledged
        try:
            metadata = MetadataLog(store, cluster_id=CLUSTER, snapshot_interval=4)
            acknowledged = attempted = metadata.load()
            for records in history():
                attempted = acknowledged.apply_entry(records)
                acknowledged = metadata.append(records)
        except TierUnavailable:
            pass  # The process is gone; only the store remains.
        survivor = opened(store)
        if acknowledged.version:
            assert survivor.image in (acknowledged, attempted), step
        survivor.append([BrokerStarted(node_id=1)])
        assert opened(store).image == survivor.image


def test_a_folder_cut_off_while_writing_still_loads(tmp_path: Path) -> None:
    """A temporary file of a dead process is no entry."""
    (tmp_path / "s").mkdir()
    store = open_store(f"file://{tmp_path / 's'}")
    image = fill(opened(store), 3)
    folder = next(path.parent for path in (tmp_path / "s").rglob("*.json"))
    (folder / "00000000000000000005.json.123.tmp").write_bytes(b'{"format"')
    assert opened(store).image == image


# --- damage ------------------------------------------------------------------------------------


def test_any_flipped_bit_in_an_entry_is_noticed() -> None:
    store = MemoryStore()
    fill(opened(store, snapshot_interval=100), 3)
    key = metadata_log_key(3)
    content = store.get(key)
    for position in range(0, len(content) - 1, 7):
        damaged = bytearray(content)
        damaged[position] ^= 1
        store.damage(key, lambda _old, new=bytes(damaged): new)  # type: ignore[misc]
        with pytest.raises((CorruptFile, UnsupportedFormat), match=key):
            opened(store, snapshot_interval=100)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 300, b"[]", b'"x"', b"{}", b'{"format":', b"[" * 100_000, b"\xff\xfe"],
)
def test_garbage_in_place_of_an_entry_is_refused_by_name(content: bytes) -> None:
    store = MemoryStore()
    fill(opened(store), 1)
    store.damage(metadata_log_key(2), lambda _old: content)
    with pytest.raises(CorruptFile, match=metadata_log_key(2)):
        opened(store)


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


def test_an_entry_under_another_number_is_refused() -> None:
    store = MemoryStore()
    fill(opened(store), 1)
    store.put(metadata_log_key(3), store.get(metadata_log_key(2)), condition=IfAbsent())
    with pytest.raises(CorruptFile, match="holds number 2; it was renamed or copied"):
        opened(store)


def test_an_entry_of_another_history_is_refused() -> None:
    mine, theirs = MemoryStore(), MemoryStore()
    fill(opened(mine), 1)
    fill(opened(theirs), 2)
    mine.put(metadata_log_key(3), theirs.get(metadata_log_key(3)), condition=IfAbsent())
    with pytest.raises(CorruptFile, match="does not follow the entry before it"):
        opened(mine)


def test_an_entry_of_a_newer_release_is_refused_as_such() -> None:
    store = MemoryStore()
    opened(store)
    newer = store.get(metadata_log_key(1)).replace(b'"version":1', b'"version":2')
    store.put(metadata_log_key(2), newer, condition=IfAbsent())
    with pytest.raises(UnsupportedFormat, match="version 2"):
        opened(store)


@pytest.mark.parametrize(
    ("version", "writer"), [(2, "a state before the first release"), (4, "a later release")]
)
def test_a_snapshot_of_another_version_is_refused_as_such(version: int, writer: str) -> None:
    content = encode_snapshot(MetadataImage(), head_checksum=NO_ENTRY_CHECKSUM)
    other = content.replace(b'"version":3', b'"version":%d' % version)
    with pytest.raises(UnsupportedFormat, match=f"version {version}, .*: {writer} wrote it"):
        decode_snapshot(other, key=metadata_snapshot_key(0), index=0)


def test_an_entry_without_records_is_refused() -> None:
    store = MemoryStore()
    opened(store)
    empty = encode_entry(
        [],
        index=2,
        cluster_id=CLUSTER,
        previous=entry_checksum(store.get(metadata_log_key(1))),
        writer="w",
    )
    store.put(metadata_log_key(2), empty, condition=IfAbsent())
    with pytest.raises(CorruptFile, match="without records"):
        opened(store)


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

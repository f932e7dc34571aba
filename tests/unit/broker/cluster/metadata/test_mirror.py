"""The mirror of the metadata log: it follows, brings a lost log back, and never mixes two."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.mirror import MirrorDiverged, MirrorTaken
from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    StoreFull,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.keys import metadata_log_key
from tests.support.lagging_lists import LaggingLists
from tests.support.memory_store import Fault, MemoryStore, Timing
from tests.unit.broker.cluster.metadata_rig import (
    CLUSTER,
    copy_of,
    created,
    fill,
    history,
    keys_in,
    opened,
)


def test_the_mirror_gets_everything_and_costs_nothing_when_nothing_changed() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    for records in history():
        metadata.append(records)
    assert metadata.statistics().mirror_lag == metadata.image.version
    assert metadata.mirror_once() == 0
    assert metadata.statistics().mirror_lag == 0
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == metadata.image
    requests = len(store.requests) + len(mirror.requests)
    assert metadata.mirror_once() == 0
    assert len(store.requests) + len(mirror.requests) == requests


def test_the_mirror_follows_step_by_step_and_over_restarts() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    for round_number in range(5):
        metadata = opened(store, mirror)
        fill(metadata, 3, first=round_number * 10)
        assert metadata.mirror_once() == 0
        fill(metadata, 3, first=round_number * 10 + 3)
        assert metadata.mirror_once() == 0
    for key in keys_in(store):
        assert mirror.get(key) == store.get(key)
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == metadata.image


def test_without_a_mirror_there_is_nothing_to_do() -> None:
    assert opened(MemoryStore()).mirror_once() == 0


def test_a_mirror_that_pruning_has_overtaken_goes_on_from_a_snapshot() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    metadata.mirror_once()
    image = fill(metadata, 30)
    assert metadata.mirror_once() == 0
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == image
    fill(metadata, 7, first=50)
    metadata.mirror_once()
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == metadata.image


def test_a_mirror_that_is_away_stops_nothing_and_catches_up() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    metadata.mirror_once()
    mirror.add_fault(Fault(error=TierUnavailable, times=-1))
    image = fill(metadata, 5)
    with pytest.raises(TierUnavailable):
        metadata.mirror_once()
    assert metadata.statistics().mirror_lag == 5
    # A restart does not need the mirror either.
    metadata = opened(store, mirror)
    mirror.clear_faults()
    assert metadata.mirror_once() == 0
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == image


def test_copying_to_the_mirror_can_stop_anywhere_and_go_on() -> None:
    store, counted = MemoryStore(), MemoryStore()
    image = fill(opened(store), 13)
    opened(store, counted).mirror_once()
    for step in range(counted.count_requests("put|delete")):
        for moment in Timing:
            mirror = MemoryStore()
            mirror.add_fault(
                Fault(operation="put|delete", error=TierUnavailable, moment=moment, skip=step)
            )
            with pytest.raises(TierUnavailable):
                opened(store, mirror).mirror_once()
            assert opened(store, mirror).mirror_once() == 0
            assert MetadataLog(mirror, cluster_id=CLUSTER).load() == image


def test_a_lost_log_is_restored_from_its_mirror(caplog: pytest.LogCaptureFixture) -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    for records in history():
        metadata.append(records)
    metadata.mirror_once()
    replacement = MemoryStore()
    with caplog.at_level(logging.WARNING):
        restored = opened(replacement, mirror)
    assert "metadata log restored from its mirror" in caplog.text
    assert restored.image == metadata.image
    fill(restored, 9, first=50)
    assert restored.mirror_once() == 0
    assert opened(replacement).image == restored.image
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == restored.image


@pytest.mark.parametrize("moment", list(Timing))
def test_a_crash_while_restoring_leaves_all_or_nothing(moment: Timing) -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    image = fill(metadata, 6)
    metadata.mirror_once()
    replacement = MemoryStore()
    replacement.add_fault(Fault(operation="put", error=TierUnavailable, moment=moment))
    with pytest.raises(TierUnavailable):
        opened(replacement, mirror)
    assert opened(replacement, mirror).image == image


def test_an_empty_log_does_not_begin_anew_while_its_mirror_cannot_be_asked() -> None:
    mirror = MemoryStore()
    mirror.add_fault(Fault(error=TierUnavailable, times=-1))
    store = MemoryStore()
    with pytest.raises(TierUnavailable):
        opened(store, mirror)
    assert keys_in(store) == []


def test_the_mirror_of_another_cluster_is_neither_read_nor_written() -> None:
    mirror = MemoryStore()
    fill(opened(mirror, cluster_id="c-2"), 2)
    before = keys_in(mirror)
    with pytest.raises(CorruptFile, match="belongs to cluster c-2"):
        opened(MemoryStore(), mirror)
    store = MemoryStore()
    opened(store)
    with pytest.raises(MirrorDiverged, match="belongs to cluster c-2"):
        opened(store, mirror).mirror_once()
    assert keys_in(mirror) == before


def test_a_mirror_that_is_ahead_of_an_old_copy_of_the_log_is_left_alone() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    fill(metadata, 2)
    old_copy = copy_of(store)
    fill(metadata, 2, first=10)
    metadata.mirror_once()
    before = keys_in(mirror)
    with pytest.raises(MirrorDiverged, match="only at 3: the log is an older copy"):
        opened(old_copy, mirror).mirror_once()
    assert keys_in(mirror) == before


def test_a_mirror_with_another_entry_of_the_same_number_is_left_alone() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    metadata.mirror_once()
    copy = copy_of(store)
    fill(metadata, 1)
    metadata.mirror_once()
    fork = opened(copy, mirror)
    fill(fork, 1, first=1)
    with pytest.raises(MirrorDiverged, match="two brokers have written under one cluster id"):
        fork.mirror_once()
    fill(fork, 1, first=2)
    with pytest.raises(MirrorDiverged):
        fork.mirror_once()


@pytest.mark.parametrize("error", [AccessDenied, StoreFull])
def test_a_mirror_that_takes_no_writes_is_another_ones_all_the_same(
    error: type[TierError],
) -> None:
    store, mirror, copy = MemoryStore(), MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    fill(metadata, 5)
    metadata.mirror_once()
    for key in keys_in(store):
        copy.put(key, store.get(key))
    fill(metadata, 1, first=50)
    metadata.mirror_once()
    mirror.add_fault(Fault(operation="put", error=error, times=-1))
    other = opened(copy, mirror)
    fill(other, 1, first=60)
    with pytest.raises(MirrorTaken):
        other.claim_mirror()
    fill(metadata, 1, first=70)
    with pytest.raises(error):
        metadata.claim_mirror()


def test_of_two_copies_of_a_log_that_start_one_claims_the_mirror() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    fill(metadata, 5)
    metadata.mirror_once()
    copy, ahead = MemoryStore(), MemoryStore()
    for key in keys_in(store):
        copy.put(key, store.get(key))
        ahead.put(key, store.get(key))
    one = opened(store, mirror)
    one.append(created(50))
    requests = len(mirror.requests)
    one.claim_mirror()
    assert len(mirror.requests) - requests <= 6, "however many entries there are"
    assert one.mirror_once() == 0
    two = opened(copy, mirror)
    two.append(created(50))
    before = keys_in(mirror)
    with pytest.raises(MirrorTaken):
        two.claim_mirror()
    with pytest.raises(MirrorTaken):
        opened(ahead, mirror).claim_mirror()
    assert keys_in(mirror) == before
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == one.image


def test_a_restored_log_claims_its_mirror_however_many_entries_there_are() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror, snapshot_interval=1000)
    fill(metadata, 50)
    metadata.mirror_once()
    one, two = MemoryStore(), MemoryStore()
    first = opened(one, mirror, snapshot_interval=1000)
    second = opened(two, mirror, snapshot_interval=1000)
    first.append(created(90))
    requests = len(mirror.requests)
    first.claim_mirror()
    assert len(mirror.requests) - requests <= 4
    assert first.mirror_once() == 0
    # Of two restores of one archive the second comes too late, and so does the log before.
    second.append(created(91))
    fill(metadata, 1, first=92)
    for late in (second, metadata):
        with pytest.raises(MirrorTaken):
            late.claim_mirror()
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == first.image


@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_restored_log_whose_mirror_has_another_past_by_now_takes_nothing_of_it(
    is_claimed: bool,
) -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror, snapshot_interval=1000)
    fill(metadata, 5)
    metadata.mirror_once()
    restored = opened(MemoryStore(), mirror, snapshot_interval=1000)
    restored.append(created(50))
    # Somebody put another archive in its place, of the same cluster and as long.
    key = metadata_log_key(metadata.image.version)
    elsewhere = MemoryStore()
    fill(opened(elsewhere, snapshot_interval=1000), 5, first=20)
    for name in keys_in(mirror):
        mirror.put(name, elsewhere.get(name))
    assert key in keys_in(mirror)
    before = copy_of(mirror)
    with pytest.raises(MirrorTaken):
        restored.claim_mirror() if is_claimed else restored.mirror_once()
    assert {name: mirror.get(name) for name in keys_in(mirror)} == {
        name: before.get(name) for name in keys_in(before)
    }


def test_a_fork_that_was_checked_before_is_noticed_at_the_first_name_taken() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    metadata.mirror_once()
    copy = MemoryStore()
    for key in keys_in(store):
        copy.put(key, store.get(key))
    fork = opened(copy, mirror)
    fork.append(created(1))
    fork.mirror_once()
    fill(metadata, 1)
    with pytest.raises(MirrorDiverged, match="is not the one in"):
        metadata.mirror_once()


def test_damage_in_the_log_does_not_spread_to_the_mirror() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    fill(metadata, 2)
    store.damage(metadata_log_key(2), lambda old: old.replace(b"t0", b"t9"))
    with pytest.raises(CorruptFile, match=metadata_log_key(2)):
        metadata.mirror_once()
    assert metadata_log_key(2) not in keys_in(mirror)
    assert metadata.statistics().mirror_version == 1


def test_an_entry_missing_in_the_log_makes_no_gap_in_the_mirror() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    metadata.mirror_once()
    fill(metadata, 2)
    store.delete([metadata_log_key(2)])
    with pytest.raises(CorruptFile, match="gap"):
        metadata.mirror_once()
    assert metadata_log_key(3) not in keys_in(mirror)


def mirrored(count: int = 9) -> tuple[MemoryStore, MemoryStore, MetadataLog]:
    """A log of some entries, with two snapshots by then, and its mirror."""
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    fill(metadata, count)
    assert metadata.mirror_once() == 0
    return store, mirror, metadata


def every_choice(keys: list[str]) -> Iterator[list[str]]:
    """All of them, each alone, all but each, and the rows at the end."""
    yield keys
    for number, key in enumerate(keys):
        yield [key]
        yield keys[:number] + keys[number + 1 :]
        yield keys[number:]


@pytest.mark.parametrize("then", ["a look", "a change", "a restart", "a claim and a change"])
def test_whatever_is_deleted_in_the_mirror_is_written_again_from_the_log(then: str) -> None:
    _, original, _ = mirrored()
    for deleted in every_choice(keys_in(original)):
        store, mirror, metadata = mirrored()
        mirror.delete(deleted)
        if "restart" in then or "claim" in then:
            metadata = opened(store, mirror)
        if "change" in then:
            metadata.append(created(77))
        if "claim" in then:
            metadata.claim_mirror()
        if then == "a look":
            metadata.repair_mirror()
        else:
            assert metadata.mirror_once() == 0
        assert MetadataLog(mirror, cluster_id=CLUSTER).load() == metadata.image, deleted
        assert metadata.statistics().mirror_lag == 0
        assert set(keys_in(store)) <= set(keys_in(mirror)), deleted


def test_a_mirror_is_behind_as_long_as_what_was_deleted_there_cannot_be_written_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, mirror, metadata = mirrored(3)
    mirror.delete([metadata_log_key(2), metadata_log_key(3)])
    mirror.add_fault(Fault(operation="put", error=AccessDenied, times=-1))
    for _ in range(3):
        with pytest.raises(AccessDenied):
            metadata.repair_mirror()
        statistics = metadata.statistics()
        assert (statistics.mirror_lag, statistics.mirror_deleted_count) == (3, 2)
    told = [row.message for row in caplog.records]
    assert told == ["metadata in the bucket were deleted, they are written again"]
    mirror.clear_faults()
    assert metadata.mirror_once() == 0
    assert metadata.statistics().mirror_deleted_count == 2
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == metadata.image


def test_nothing_counts_as_deleted_that_a_listing_lacks_or_that_was_never_there() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    lists = LaggingLists(mirror)
    lagging = MetadataLog(
        store,
        lists,  # type: ignore[arg-type]  # its methods
        cluster_id=CLUSTER,
        snapshot_interval=4,
        intervals_max=1,
    )
    lagging.load()
    for number in range(12):
        lagging.append(created(number))
        assert lagging.mirror_once() == 0
        lagging.repair_mirror()
    assert lagging.statistics().mirror_deleted_count == 0
    assert opened(store).image == lagging.image
    assert metadata.image.version == 1


def test_the_holes_of_a_mirror_that_is_another_ones_are_not_filled() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror, snapshot_interval=1000)
    metadata.mirror_once()
    fork = copy_of(store)
    fill(metadata, 5)
    metadata.mirror_once()
    other = opened(fork, mirror, snapshot_interval=1000)
    for number in range(5):
        other.append(created(40 + number))
    for deleted in ([3], [2, 3], [4], [2, 3, 4, 5]):
        holed = copy_of(mirror)
        holed.delete([metadata_log_key(index) for index in deleted])
        before = keys_in(holed)
        with pytest.raises(MirrorTaken):
            opened(fork, holed, snapshot_interval=1000).mirror_once()
        assert keys_in(holed) == before


def test_an_entry_that_another_broker_wrote_ahead_is_noticed_before_the_next_change() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    metadata.mirror_once()
    fork = opened(copy_of(store), mirror)
    fork.append(created(1))
    fork.mirror_once()
    with pytest.raises(MirrorTaken):
        metadata.repair_mirror()


@pytest.mark.parametrize("fault", ["empty", "flipped"])
def test_whatever_is_damaged_in_the_mirror_is_replaced_at_the_next_start(fault: str) -> None:
    _, original, _ = mirrored()
    for key in keys_in(original):
        store, mirror, _ = mirrored()
        mirror.damage(
            key, lambda old: b"" if fault == "empty" else old.replace(b'"index"', b'"indey"')
        )
        metadata = opened(store, mirror)
        metadata.append(created(77))
        metadata.claim_mirror()
        assert metadata.mirror_once() == 0
        assert MetadataLog(mirror, cluster_id=CLUSTER).load() == metadata.image, key


def test_a_snapshot_that_comes_while_the_mirror_is_listed_is_no_error() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    metadata.mirror_once()
    fill(metadata, 6)
    original_get, appended = store.get, False

    def get_after_pruning(*args: object, **kwargs: object) -> bytes:
        nonlocal appended
        if not appended:
            appended = True
            fill(metadata, 12, first=20)
        return original_get(*args, **kwargs)  # type: ignore[arg-type]

    store.get = get_after_pruning  # type: ignore[method-assign, assignment]
    assert metadata.mirror_once() == 0
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == metadata.image

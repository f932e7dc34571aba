"""A name that pruning has freed is no place for an entry: whoever was paused meanwhile notices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.log_reader import (
    counts,
    freed_through,
    prune,
    raise_boundary,
    salvage_history,
)
from strandline.broker.cluster.metadata.metadata_log import MetadataLog, MetadataRaced
from strandline.broker.cluster.metadata.mirror import MirrorTaken
from strandline.storage.crash_points import (
    CRASH_POINTS,
    ENVIRONMENT_VARIABLE,
    EXIT_STATUS_KILLED,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import (
    CorruptFile,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    TierUnavailable,
)
from strandline.storage.remote.keys import (
    METADATA_BOUNDARY_KEY,
    metadata_log_key,
)
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from tests.support.lagging_lists import LaggingLists
from tests.support.memory_store import Fault, MemoryStore, Timing
from tests.unit.broker.cluster.metadata_rig import CLUSTER, copy_of, created, fill, keys_in, opened

POINTS = [point for point in CRASH_POINTS if point.startswith("metadata.")]


def before_put(store: MemoryStore, key: str, act: Callable[[], object]) -> None:
    """Acts before the next put of `key`, as if its writer had been paused there."""
    original = store.put

    def put(name: str, *args: object, **kwargs: object) -> object:
        if name == key:
            store.put = original  # type: ignore[method-assign]
            act()
        return original(name, *args, **kwargs)  # type: ignore[arg-type]

    store.put = put  # type: ignore[method-assign, assignment]


# --- appending ---------------------------------------------------------------------------------


def test_a_writer_that_was_paused_over_a_pruning_believes_nothing_that_it_appends(
    store: ObjectStore,
) -> None:
    paused, other = opened(store), opened(store)
    fill(other, 20)
    with pytest.raises(MetadataRaced, match="entry 2 was written by another broker"):
        paused.append(created(90))
    assert paused.image == other.image
    assert "t90" not in paused.append(created(91))[1].topics
    assert opened(store).image == paused.image


def test_a_writer_that_is_paused_before_its_request_arrives_believes_nothing_either() -> None:
    store = MemoryStore()
    paused, other = opened(store), opened(store)
    before_put(store, metadata_log_key(2), lambda: fill(other, 20))
    with pytest.raises(MetadataRaced):
        paused.append(created(90))
    assert opened(store).image == paused.image == other.image


def test_an_entry_that_was_pruned_before_its_writer_asked_is_in_the_history_once() -> None:
    """It was the first of its name, but its writer cannot know that any more."""
    store = MemoryStore()
    paused, other = opened(store), opened(store)
    original, asked = store.get, []

    def get(key: str, **kwargs: int) -> bytes:
        if key == METADATA_BOUNDARY_KEY and not asked:
            asked.append(key)
            other.refresh()
            fill(other, 20)
        return original(key, **kwargs)

    store.get = get  # type: ignore[method-assign, assignment]
    with pytest.raises(MetadataRaced):
        paused.append(created(90))
    assert "t90" in paused.image.topics
    assert opened(store).image == paused.image == other.image


def test_an_append_whose_boundary_cannot_be_read_is_open_and_settled_by_the_next_look() -> None:
    store = MemoryStore()
    metadata = opened(store)
    store.add_fault(Fault(operation="get", key_pattern="boundary", error=TierUnavailable))
    with pytest.raises(TierUnavailable):
        metadata.append(created(0))
    assert "t0" not in metadata.image.topics
    assert "t0" in metadata.refresh().topics


def test_an_append_costs_one_request_more_than_the_entry() -> None:
    store = MemoryStore()
    metadata = opened(store)
    before = len(store.requests)
    metadata.append(created(0))
    asked = [(request.operation, request.key) for request in store.requests[before:]]
    assert asked == [("put", metadata_log_key(2)), ("get", METADATA_BOUNDARY_KEY)]


# --- the boundary ------------------------------------------------------------------------------


def test_the_boundary_is_raised_before_anything_is_deleted() -> None:
    store = MemoryStore()
    metadata = opened(store)
    fill(metadata, 6)
    store.add_fault(Fault(operation="put", key_pattern="boundary", error=TierUnavailable))
    fill(metadata, 1, first=6)
    assert metadata_log_key(1) in keys_in(store)
    assert freed_through(store) == 0
    prune(store)
    assert metadata_log_key(1) not in keys_in(store)
    assert freed_through(store) == 3


def test_the_boundary_never_falls() -> None:
    store = MemoryStore()
    raise_boundary(store, 5)
    raise_boundary(store, 3)
    assert freed_through(store) == 5
    # A request that was on its way when a later one was answered.
    store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Timing.LATE))
    with pytest.raises(TierUnavailable):
        raise_boundary(store, 7)
    raise_boundary(store, 9)
    assert store.deliver_late() == 0
    assert freed_through(store) == 9


def test_of_two_that_raise_the_boundary_at_once_both_get_theirs() -> None:
    store = MemoryStore()
    before_put(store, METADATA_BOUNDARY_KEY, lambda: raise_boundary(store, 4))
    raise_boundary(store, 6)
    assert freed_through(store) == 6
    before_put(store, METADATA_BOUNDARY_KEY, lambda: raise_boundary(store, 8))
    raise_boundary(store, 7)
    assert freed_through(store) == 8


def test_raising_the_boundary_does_not_go_on_for_ever() -> None:
    store = MemoryStore()
    store.add_fault(Fault(operation="put", error=PreconditionFailed, times=-1))
    with pytest.raises(PreconditionFailed):
        raise_boundary(store, 4)


@pytest.mark.parametrize("fault", ["missing", "empty", "changed"])
def test_a_log_without_a_usable_boundary_gets_one_at_its_start(
    store: ObjectStore, fault: str
) -> None:
    """A release before it had none."""
    paused, other = opened(store), opened(store)
    image = fill(other, 20)
    content = store.get(METADATA_BOUNDARY_KEY)
    store.delete([METADATA_BOUNDARY_KEY])
    if fault != "missing":
        store.put(METADATA_BOUNDARY_KEY, b"" if fault == "empty" else content.replace(b"15", b"14"))
    assert opened(store).image == image
    assert store.get(METADATA_BOUNDARY_KEY) == content
    with pytest.raises(MetadataRaced):
        paused.append(created(90))


def test_a_boundary_that_is_damaged_while_the_broker_runs_is_repaired_by_the_next_append() -> None:
    store = MemoryStore()
    metadata = opened(store)
    fill(metadata, 20)
    store.damage(METADATA_BOUNDARY_KEY, lambda _: b"")
    assert MetadataLog(store, cluster_id=CLUSTER).refresh() == metadata.image
    store.add_fault(Fault(operation="get", key_pattern="boundary", error=ObjectCorrupt))
    fill(metadata, 1, first=30)
    assert freed_through(store) == 15
    assert not counts(store, 15)
    assert counts(store, 16)


# --- reading -----------------------------------------------------------------------------------


def test_a_reader_is_not_misled_by_an_entry_under_a_freed_name() -> None:
    """A listing that lags shows it no later entry."""
    store = MemoryStore()
    paused, other, reader = opened(store), opened(store), opened(store)
    fill(other, 20)
    lagging = LaggingLists(store)
    late = MetadataLog(lagging, cluster_id=CLUSTER)  # type: ignore[arg-type]  # its methods
    image = late.refresh()
    lone = copy_of(store)
    stray = opened(lone)
    fill(stray, 1, first=90)
    fill(other, 20, first=20)
    # As the writer of `paused` would have left it.
    index = image.version + 1
    store.put(metadata_log_key(index), lone.get(metadata_log_key(index)))
    with pytest.raises((CorruptFile, ObjectNotFound)):
        late.catch_up()
    assert "t90" not in late.image.topics
    lagging.catch_up()
    assert late.catch_up() == other.image
    assert reader.catch_up() == paused.refresh() == other.image


def test_a_history_that_is_pruned_while_it_is_read_is_read_again() -> None:
    store = MemoryStore()
    other = opened(store)
    fill(other, 9)
    reader = MetadataLog(store, cluster_id=CLUSTER)
    original, pruned = store.get, []

    def get(key: str, **kwargs: int) -> bytes:
        if key == metadata_log_key(9) and not pruned:
            pruned.append(key)
            fill(other, 20, first=20)
        return original(key, **kwargs)

    store.get = get  # type: ignore[method-assign, assignment]
    assert reader.refresh() == other.image


def test_a_log_that_lost_its_snapshots_is_refused_and_not_begun_anew() -> None:
    store = MemoryStore()
    fill(opened(store), 20)
    store.delete([key for key in keys_in(store) if key != METADATA_BOUNDARY_KEY])
    with pytest.raises(CorruptFile, match="pruned up to entry 15"):
        opened(store)
    salvaged = salvage_history(store, cluster_id=CLUSTER)
    assert salvaged.damage
    assert salvaged.loaded.image.version == 15, "no freed name is used again"


# --- the mirror --------------------------------------------------------------------------------


def test_a_clone_that_was_paused_does_not_own_the_mirror_by_a_freed_name() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    metadata.mirror_once()
    clone = opened(copy_of(store), mirror)
    clone.append(created(90))

    def go_on() -> None:
        fill(metadata, 20)
        assert metadata.mirror_once() == 0

    before_put(mirror, metadata_log_key(2), go_on)
    with pytest.raises(MirrorTaken, match="another broker has written them"):
        clone.claim_mirror()
    assert MetadataLog(mirror, cluster_id=CLUSTER).load() == metadata.image


def test_the_mirror_has_a_boundary_of_its_own() -> None:
    """It is pruned later than the log."""
    store, mirror = MemoryStore(), MemoryStore()
    metadata = opened(store, mirror)
    metadata.mirror_once()
    assert freed_through(mirror) == 0
    fill(metadata, 20)
    assert (freed_through(store), freed_through(mirror)) == (15, 0)
    metadata.mirror_once()
    assert freed_through(mirror) == 15


def test_a_log_that_was_restored_is_none_for_a_process_of_before() -> None:
    store, mirror = MemoryStore(), MemoryStore()
    paused = opened(store, mirror)
    metadata = opened(store, mirror)
    fill(metadata, 2)
    metadata.mirror_once()
    store.delete(keys_in(store))
    restored = opened(store, mirror)
    for _ in range(2):
        with pytest.raises(MetadataRaced):
            paused.append(created(90))
        assert paused.image == restored.image
        paused = MetadataLog(store, cluster_id=CLUSTER)
        paused.refresh()
        fill(restored, 1, first=restored.image.version)


# --- crashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_each_step_of_a_change_leaves_a_whole_log_and_frees_no_name_unseen(
    point: str,
) -> None:
    store = MemoryStore()
    paused, metadata = opened(store), opened(store)
    for number in range(20):
        with simulated_crash(point):
            try:
                metadata.append(created(number))
            except SimulatedCrash:
                assert metadata_log_key(metadata.image.version) in keys_in(store)
        metadata = opened(store)
        assert sorted(metadata.image.topics) == sorted(f"t{n}" for n in range(number + 1))
        freed = {index for index in range(1, 22) if metadata_log_key(index) not in keys_in(store)}
        assert max(freed - set(range(number + 3, 22)), default=0) <= freed_through(store)
    if metadata_log_key(2) not in keys_in(store):
        with pytest.raises(MetadataRaced):
            paused.append(created(90))


APPENDING = """
import sys, uuid
from pathlib import Path
from strandline.storage.crash_points import check_environment
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from tests.unit.broker.cluster.metadata_rig import created, opened
check_environment()
metadata = opened(LocalDirectoryStore(Path(sys.argv[1])))
for number in range(len(metadata.image.topics), 9):
    metadata.append(created(number))
    print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_at_each_step_of_a_change_loses_nothing_that_it_answered(
    tmp_path: Path, point: str
) -> None:
    store = LocalDirectoryStore(tmp_path)
    opened(store)
    environment = os.environ | {ENVIRONMENT_VARIABLE: point}
    command = [sys.executable, "-c", APPENDING, str(tmp_path)]
    answered_count = deaths = 0
    while answered_count < 9:
        died = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if died.returncode == 0:
            break
        assert died.returncode == EXIT_STATUS_KILLED, died.stderr
        deaths += 1
        answered_count = max([answered_count, *(int(n) + 1 for n in died.stdout.split())])
        topics = opened(store).image.topics
        assert sorted(topics) == sorted(f"t{number}" for number in range(len(topics)))
        assert len(topics) >= answered_count
        answered_count = len(topics)
    assert deaths > 1
    assert len(opened(store).image.topics) == 9

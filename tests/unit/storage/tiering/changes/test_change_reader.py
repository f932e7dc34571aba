"""The change list, from the broker that writes it to the replica that reads it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.errors import AccessDenied, TierUnavailable
from strandline.storage.remote.keys import CHANGES_KEY, changes_key
from strandline.storage.remote.manifest import change_list
from strandline.storage.remote.manifest.change_list import LIST_BYTES_MAX
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.tiering.changes.change_reader import Expectation, PolledChanges
from strandline.storage.tiering.policy.leadership import Lead
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.changes.change_rig import (
    FULL_MS,
    INTERVAL_MS,
    KEY,
    World,
    manifest,
)
from tests.unit.storage.tiering.harness import PARTITION, Rig, asynchronous


def revisions(news: PolledChanges) -> dict[int, int]:
    """By partition; all of one topic."""
    return {partition: order[2] for (_, partition), order in news.orders.items()}


# --- the replica -----------------------------------------------------------------------------


def test_a_replica_is_told_what_changed_and_nothing_else(world: World) -> None:
    world.writer.note(manifest(1))
    world.write(after_ms=0)
    assert world.reader.poll().is_everything, "nothing is known at first"
    asked = len(world.store.requests)
    for _ in range(5):
        assert world.reader.poll() == PolledChanges(is_everything=False, is_complete=True)
    assert len(world.store.requests) == asked + 5, "a HEAD each"
    world.writer.note(manifest(3, partition=1))
    world.writer.note(manifest(4, partition=2))
    world.writer.note_metadata(9)
    world.write()
    news = world.reader.poll()
    assert (news.is_everything, news.metadata_version) == (False, 9)
    assert revisions(news) == {1: 3, 2: 4}
    assert revisions(world.reader.poll()) == {}


def test_changes_that_were_dropped_before_they_were_read_make_a_full_look(world: World) -> None:
    world.follow()
    for number in range(4):
        world.writer.note(manifest(1, partition=number))
    world.write()
    assert not world.reader.poll().is_everything, "just as many as there is room for"
    for number in range(5):
        world.writer.note(manifest(2, partition=number))
    world.write()
    assert world.reader.poll().is_everything
    assert not world.reader.poll().is_everything


def test_each_broker_of_a_cluster_tells_what_it_changed(world: World) -> None:
    writers = [world.new_writer(key=changes_key(number)) for number in (1, 2)]

    def write(number: int, after_ms: int = INTERVAL_MS) -> None:
        world.writer = writers[number]
        world.write(after_ms=after_ms)

    for number in (0, 1):
        writers[number].note(manifest(1, partition=number))
        write(number, 0)
    assert world.reader.poll().is_everything
    assert not world.reader.poll().is_everything
    writers[0].note(manifest(2, partition=0))
    writers[1].note(manifest(2, partition=1))
    writers[1].note_metadata(9)
    write(0)
    write(1)
    news = world.reader.poll()
    assert (news.is_everything, news.is_complete, news.metadata_version) == (False, True, 9)
    assert revisions(news) == {0: 2, 1: 2}
    assert change_list.newest_orders(world.store)[KEY][2] == 2


def test_a_broker_that_came_to_the_cluster_is_heard_after_its_metadata(world: World) -> None:
    first, second = (world.new_writer(key=changes_key(number)) for number in (1, 2))
    world.writer = first
    world.write(after_ms=0)
    world.follow()
    first.note_metadata(4)
    world.write()
    world.reader.poll()
    world.writer = second
    second.note(manifest(1, partition=1))
    world.write()
    assert world.reader.poll().is_everything, "its list is new"
    second.note(manifest(2, partition=1))
    world.write()
    assert revisions(world.reader.poll()) == {1: 2}


def test_another_start_of_the_broker_makes_a_full_look(world: World) -> None:
    world.follow()
    # Killed after a commit, and before its list: the next start does not know of it.
    world.writer.note(manifest(1))
    world.writer = world.new_writer()
    world.follow()
    world.clock.advance_ms(1)
    world.writer = world.new_writer()
    world.write()
    assert world.reader.poll().is_everything
    assert not world.reader.poll().is_everything


def test_a_list_that_went_back_makes_a_full_look(world: World) -> None:
    world.follow()
    older = world.store.get(CHANGES_KEY)
    world.writer.note(manifest(1))
    world.follow()
    world.store.put(CHANGES_KEY, older)
    assert world.reader.poll().is_everything


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{", b" " * (LIST_BYTES_MAX + 1)],
    ids=["missing", "empty", "damaged", "huge"],
)
def test_without_a_list_everything_is_asked_for_each_time(
    world: World, content: bytes | None
) -> None:
    world.follow()
    if content is None:
        world.store.delete([CHANGES_KEY])
    else:
        world.store.put(CHANGES_KEY, content)
    for _ in range(3):
        assert world.reader.poll().is_everything
    # What was known when it was lost is known still.
    if content is None:
        world.writer.note(manifest(1))
        world.write()
        world.write(after_ms=500)
        news = world.reader.poll()
        assert (news.is_everything, revisions(news)) == (False, {0: 1})


@pytest.mark.parametrize("error", [AccessDenied, TierUnavailable])
def test_a_list_that_may_not_be_read_is_none(world: World, error: type[AccessDenied]) -> None:
    world.follow()
    world.store.add_fault(Fault(operation="head", error=error, times=2))
    assert [world.reader.poll().is_everything for _ in range(3)] == [True, True, False]


def test_everything_is_asked_for_now_and_then_whatever_the_list_says(world: World) -> None:
    world.follow()
    world.clock.advance_ms(FULL_MS - 1)
    assert not world.reader.poll().is_everything
    world.clock.advance_ms(1)
    assert world.reader.poll().is_everything
    assert not world.reader.poll().is_everything


def test_a_list_that_kept_silent_is_not_believed_until_it_moves_on(world: World) -> None:
    """Its broker is of an older release by now, or is not allowed to write it any more."""
    world.follow()
    world.reader.doubt()
    for _ in range(3):
        world.clock.advance_ms(10_000)
        assert world.reader.poll().is_everything
    world.writer.note(manifest(1))
    world.write()
    news = world.reader.poll()
    assert (news.is_everything, revisions(news)) == (False, {0: 1})
    # Nor for ever: its broker may have died, and nothing else happened.
    world.reader.doubt()
    world.clock.advance_ms(FULL_MS)
    world.reader.poll()
    world.clock.advance_ms(10_000)
    assert not world.reader.poll().is_everything


# --- one partition of the replica ------------------------------------------------------------


EVERYTHING = PolledChanges(is_everything=True)
NOTHING = PolledChanges(is_everything=False, is_complete=True)


def told(revision: int) -> PolledChanges:
    return replace(NOTHING, orders={KEY: manifest(revision).order})


def looked(held: Manifest | None = None) -> Expectation:
    """One whose manifest was found."""
    expectation = Expectation()
    expectation.found(expectation.asked, None, held)
    return expectation


def test_a_partition_is_due_until_it_was_looked_at() -> None:
    assert Expectation().is_due
    expectation = looked()
    assert not expectation.is_due
    expectation.apply_changes(EVERYTHING, KEY, None)
    assert expectation.is_due
    # A look that failed says nothing.
    expectation.apply_changes(NOTHING, KEY, None)
    assert expectation.is_due


def test_a_look_that_began_before_it_was_asked_for_is_no_answer() -> None:
    expectation = looked()
    began = expectation.asked
    expectation.apply_changes(EVERYTHING, KEY, None)
    expectation.found(began, None, manifest(1))
    assert expectation.is_due


def test_a_manifest_that_is_older_than_was_told_is_looked_at_again() -> None:
    """A bucket that is a copy of another one may have the list first."""
    expectation = looked(manifest(1))
    expectation.apply_changes(told(3), KEY, manifest(1))
    expectation.found(expectation.asked, manifest(1), manifest(2))
    assert expectation.is_due
    expectation.found(expectation.asked, manifest(2), manifest(3))
    assert not expectation.is_due
    # One that is not there at all is not waited for longer than until the next full look.
    expectation.apply_changes(told(2**62), KEY, manifest(3))
    expectation.apply_changes(EVERYTHING, KEY, manifest(3))
    expectation.found(expectation.asked, manifest(3), manifest(3))
    assert not expectation.is_due


def test_what_is_held_already_is_not_looked_at() -> None:
    expectation = looked(manifest(3))
    expectation.apply_changes(told(3), KEY, manifest(3))
    assert not expectation.is_due
    other = replace(NOTHING, orders={(uuid.UUID(int=1), 0): manifest(9).order})
    expectation.apply_changes(other, KEY, manifest(3))
    assert not expectation.is_due


def test_a_change_that_nobody_told_is_noticed_by_a_full_look() -> None:
    expectation = looked(manifest(1))
    full = replace(EVERYTHING, is_complete=True)
    expectation.apply_changes(full, KEY, manifest(1))
    expectation.found(expectation.asked, manifest(1), manifest(1))
    assert not expectation.apply_changes(full, KEY, manifest(1))
    expectation.found(expectation.asked, manifest(1), manifest(2))
    assert expectation.apply_changes(NOTHING, KEY, manifest(2))
    assert not expectation.apply_changes(NOTHING, KEY, manifest(2))
    # Where it was told, or nobody said that all is told, it is none.
    expectation.apply_changes(replace(full, orders={KEY: manifest(3).order}), KEY, manifest(2))
    expectation.found(expectation.asked, manifest(2), manifest(3))
    expectation.apply_changes(EVERYTHING, KEY, manifest(3))
    expectation.found(expectation.asked, manifest(3), manifest(4))
    assert not expectation.apply_changes(NOTHING, KEY, manifest(4))


@asynchronous
async def test_a_replica_asks_for_nothing_that_it_was_not_told_of(tmp_path: Path) -> None:
    async with Rig(tmp_path / "origin") as origin:
        origin.produce_segments(1)
        await origin.settle()
        replica = Rig(tmp_path / "replica", store=origin.memory, clock=origin.clock)
        replica.lead = Lead.FOLLOWING
        async with replica:
            partition = replica.manager._partitions[PARTITION]
            assert not partition.is_due
            asked = len(origin.memory.requests)
            replica.manager.apply_changes(NOTHING)
            assert not partition.is_due
            origin.produce_segments(1)
            await origin.settle()
            assert origin.manifest is not None
            replica.manager.apply_changes(replace(NOTHING, orders={KEY: origin.manifest.order}))
            # The store is away for a moment: it stays to be done.
            fault = Fault(operation="head", error=TierUnavailable)
            origin.memory.add_fault(fault)
            await replica.manager.run_once()
            assert fault.hit_count == 1
            assert partition.is_due
            replica.pass_ms(60_000)
            await replica.manager.run_once()
            assert not partition.is_due
            assert partition.remote.manifest == origin.manifest
            assert len(origin.memory.requests) > asked

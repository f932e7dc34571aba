"""The list of what changed, from the broker that writes it to the replica that reads it."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.clock import ManualClock
from strandline.storage.errors import AccessDenied, StoreFull, TierUnavailable
from strandline.storage.remote.keys import CHANGES_KEY
from strandline.storage.remote.manifest import change_list
from strandline.storage.remote.manifest.change_list import CHANGES_MAX, LIST_BYTES_MAX, ChangeList
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.object_store.memory import Fault, MemoryStore, Timing
from strandline.storage.tiering.changes.change_reader import ChangeReader, Expectation, News
from strandline.storage.tiering.changes.change_writer import ChangeWriter
from strandline.storage.tiering.policy.ownership import Ownership, OwnershipState
from strandline.storage.tiering.policy.retry import RetryPolicy
from tests.unit.storage.tiering.harness import PARTITION, TOPIC_ID, Rig, asynchronous

INTERVAL_MS = 5_000
FULL_MS = 600_000
KEY = (TOPIC_ID, 0)


def manifest(revision: int, *, partition: int = 0, generation: str = "") -> Manifest:
    return Manifest(
        topic="flights",
        topic_id=TOPIC_ID,
        partition=partition,
        revision=revision,
        generation=generation,
    )


class World:
    """A store, a broker that writes the list, and a replica that reads it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.thread = ThreadPoolExecutor(1)
        self.ownership = Ownership()
        self.writer = self.new_writer()
        self.reader = ChangeReader(self.store, clock=self.clock, full_interval_ms=FULL_MS)

    def new_writer(self, *, interval_ms: int = INTERVAL_MS, changes_max: int = 4) -> ChangeWriter:
        """As the next start of the broker has it."""
        return ChangeWriter(
            self.store,
            executor=self.thread,
            clock=self.clock,
            retry=RetryPolicy(backoff_ms=500, jitter=0),
            ownership=self.ownership,
            interval_ms=interval_ms,
            changes_max=changes_max,
        )

    def write(self, *, after_ms: int = INTERVAL_MS) -> None:
        self.clock.advance_ms(after_ms)
        asyncio.run(self.writer.step())

    @property
    def written(self) -> ChangeList:
        return change_list.load(self.store).changes

    @property
    def put_count(self) -> int:
        return self.store.count_requests("put")

    def follow(self) -> None:
        """What the writer has is written, and read."""
        self.write()
        self.reader.ask()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.thread.shutdown()


def revisions(news: News) -> dict[int, int]:
    """By partition; all of one topic."""
    return {partition: order[2] for (_, partition), order in news.orders.items()}


# --- the broker ------------------------------------------------------------------------------


def test_a_start_says_that_it_is_another_one_and_then_only_what_is_new_is_written(
    world: World,
) -> None:
    world.write(after_ms=0)
    first = world.written
    for _ in range(3):
        world.write()
    assert world.put_count == 1
    world.writer.note(manifest(1))
    world.writer.note_metadata(7)
    world.write()
    assert world.put_count == 2
    assert (world.written.sequence, world.written.metadata_version) == (2, 7)
    assert world.written.incarnation == first.incarnation
    # What is known already is no news.
    world.writer.note_metadata(7)
    world.writer.note_metadata(-1)
    world.write()
    assert world.put_count == 2
    world.writer = world.new_writer()
    world.write(after_ms=0)
    assert world.written.incarnation != first.incarnation
    assert world.put_count == 3


def test_changes_wait_for_one_another_and_the_first_one_does_not_wait(world: World) -> None:
    world.write(after_ms=0)
    world.writer.note(manifest(1))
    world.write(after_ms=INTERVAL_MS - 1)
    assert world.put_count == 1
    for revision in range(2, 9):
        world.writer.note(manifest(revision))
    world.write(after_ms=1)
    assert world.put_count == 2
    assert [change.order[2] for change in world.written.changes] == [8]
    world.clock.advance_ms(INTERVAL_MS)
    world.writer.note(manifest(9))
    world.write(after_ms=0)
    assert world.put_count == 3


def test_the_list_keeps_what_changed_last_and_says_where_it_begins(world: World) -> None:
    for number in range(7):
        world.writer.note(manifest(1, partition=number))
    world.writer.note(manifest(2, partition=4))
    world.write(after_ms=0)
    changes = world.written.changes
    assert [change.partition for change in changes] == [3, 5, 6, 4]
    assert (world.written.complete_after, world.written.sequence) == (3, 8)
    assert all(change.sequence > world.written.complete_after for change in changes)


def test_a_full_list_is_one_that_is_read(world: World) -> None:
    world.writer = world.new_writer(changes_max=CHANGES_MAX)
    for number in range(2 * CHANGES_MAX):
        world.writer.note(manifest(1, partition=number, generation="0001700000000000-abcdef01"))
    world.write(after_ms=0)
    assert len(world.written.changes) == CHANGES_MAX
    assert world.store.head(CHANGES_KEY).size_bytes < LIST_BYTES_MAX


@pytest.mark.parametrize("state", [OwnershipState.UNKNOWN, OwnershipState.LOST])
def test_who_does_not_own_the_archive_asks_and_writes_nothing(
    world: World, state: OwnershipState
) -> None:
    world.ownership = Ownership(state)
    world.writer = world.new_writer()
    world.writer.note(manifest(1))
    world.write()
    assert world.store.requests == []


def test_a_broker_that_is_told_to_write_none_writes_none(world: World) -> None:
    world.writer = world.new_writer(interval_ms=-1)
    world.writer.note(manifest(1))
    asyncio.run(world.writer.run())
    assert world.store.requests == []


@pytest.mark.parametrize("error", [AccessDenied, StoreFull, TierUnavailable])
def test_a_list_that_cannot_be_written_is_tried_again_with_growing_waits(
    world: World, error: type[AccessDenied]
) -> None:
    world.store.add_fault(Fault(operation="put", error=error, times=-1))
    for _ in range(60):
        world.write(after_ms=500)
    # After 0.5, 1, 2, 4 and 8 seconds, and so on.
    assert world.put_count <= 7
    world.store.clear_faults()
    world.writer.note(manifest(1))
    world.write(after_ms=30_000)
    assert [change.order[2] for change in world.written.changes] == [1]


def test_a_request_that_was_given_up_does_not_bury_a_newer_list(world: World) -> None:
    world.write(after_ms=0)
    world.store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Timing.LATE))
    world.writer.note(manifest(1))
    world.write()
    world.writer.note(manifest(2))
    world.write()
    assert world.store.deliver_late() == 0
    assert [change.order[2] for change in world.written.changes] == [2]


def test_a_dead_broker_s_last_list_does_not_bury_the_next_one_s(world: World) -> None:
    world.write(after_ms=0)
    world.writer.note(manifest(1))
    world.store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Timing.LATE))
    world.write()
    world.writer = world.new_writer()
    world.write(after_ms=0)
    ours = world.written
    assert world.store.deliver_late() == 0
    assert world.written == ours


def test_a_list_of_somebody_else_s_is_replaced_by_the_one_who_owns_the_archive(
    world: World,
) -> None:
    world.write(after_ms=0)
    ours = world.written.incarnation
    world.store.put(CHANGES_KEY, b"not ours")
    world.writer.note(manifest(1))
    world.write()
    world.write(after_ms=500)
    assert world.written.incarnation == ours


@asynchronous
async def test_a_list_that_hangs_or_fails_delays_no_copy_and_no_deletion(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        hanging = threading.Event()
        own_thread = ThreadPoolExecutor(1)
        rig.memory.add_fault(
            Fault(operation="put", key_pattern=CHANGES_KEY, error=TierUnavailable, gate=hanging)
        )
        changes = ChangeWriter(
            rig.store,
            executor=own_thread,
            clock=rig.clock,
            retry=RetryPolicy(),
            ownership=Ownership(),
            interval_ms=0,
        )
        writing = asyncio.create_task(changes.step())
        rig.produce_segments(3)
        await rig.settle()
        assert rig.statistics.copy_lag_segments == 0
        rig.log.delete_records(15)
        rig.pass_ms(10 * FULL_MS)
        await rig.settle()
        assert rig.log.log_start_offset == 15
        assert not writing.done()
        hanging.set()
        await writing
        assert rig.manager.health.is_up
        own_thread.shutdown()


@asynchronous
async def test_every_commit_of_a_manifest_is_told_and_never_before_it_is_there(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        for _ in range(3):
            rig.produce_segments(1)
            await rig.settle()
            rig.pass_ms(INTERVAL_MS)
            await rig.manager.changes.step()
            [change] = change_list.load(rig.store).changes.changes
            assert rig.manifest is not None
            assert (change.topic_id, change.partition) == KEY
            assert change.order == rig.manifest.order
        # An answer that was lost: the manifest is read again, and that is told.
        rig.memory.add_fault(
            Fault(
                operation="(put|get)",
                key_pattern="manifest.json$",
                error=TierUnavailable,
                moment=Timing.AFTER,
                times=2,
            )
        )
        rig.produce_segments(1)
        await rig.settle()
        rig.pass_ms(60_000)
        await rig.settle()
        await rig.manager.changes.step()
        [change] = change_list.load(rig.store).changes.changes
        assert rig.manifest is not None
        assert change.order == rig.manifest.order


# --- the replica -----------------------------------------------------------------------------


def test_a_replica_is_told_what_changed_and_nothing_else(world: World) -> None:
    world.writer.note(manifest(1))
    world.write(after_ms=0)
    assert world.reader.ask().is_everything, "nothing is known at first"
    asked = len(world.store.requests)
    for _ in range(5):
        assert world.reader.ask() == News(is_everything=False, is_told=True)
    assert len(world.store.requests) == asked + 5, "a HEAD each"
    world.writer.note(manifest(3, partition=1))
    world.writer.note(manifest(4, partition=2))
    world.writer.note_metadata(9)
    world.write()
    news = world.reader.ask()
    assert (news.is_everything, news.metadata_version) == (False, 9)
    assert revisions(news) == {1: 3, 2: 4}
    assert revisions(world.reader.ask()) == {}


def test_changes_that_were_dropped_before_they_were_read_make_a_full_look(world: World) -> None:
    world.follow()
    for number in range(4):
        world.writer.note(manifest(1, partition=number))
    world.write()
    assert not world.reader.ask().is_everything, "just as many as there is room for"
    for number in range(5):
        world.writer.note(manifest(2, partition=number))
    world.write()
    assert world.reader.ask().is_everything
    assert not world.reader.ask().is_everything


def test_another_start_of_the_broker_makes_a_full_look(world: World) -> None:
    world.follow()
    # Killed after a commit, and before its list: the next start does not know of it.
    world.writer.note(manifest(1))
    world.writer = world.new_writer()
    world.follow()
    world.clock.advance_ms(1)
    world.writer = world.new_writer()
    world.write()
    assert world.reader.ask().is_everything
    assert not world.reader.ask().is_everything


def test_a_list_that_went_back_makes_a_full_look(world: World) -> None:
    world.follow()
    older = world.store.get(CHANGES_KEY)
    world.writer.note(manifest(1))
    world.follow()
    world.store.put(CHANGES_KEY, older)
    assert world.reader.ask().is_everything


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
        assert world.reader.ask().is_everything
    # What was known when it was lost is known still.
    if content is None:
        world.writer.note(manifest(1))
        world.write()
        world.write(after_ms=500)
        news = world.reader.ask()
        assert (news.is_everything, revisions(news)) == (False, {0: 1})


@pytest.mark.parametrize("error", [AccessDenied, TierUnavailable])
def test_a_list_that_may_not_be_read_is_none(world: World, error: type[AccessDenied]) -> None:
    world.follow()
    world.store.add_fault(Fault(operation="head", error=error, times=2))
    assert [world.reader.ask().is_everything for _ in range(3)] == [True, True, False]


def test_everything_is_asked_for_now_and_then_whatever_the_list_says(world: World) -> None:
    world.follow()
    world.clock.advance_ms(FULL_MS - 1)
    assert not world.reader.ask().is_everything
    world.clock.advance_ms(1)
    assert world.reader.ask().is_everything
    assert not world.reader.ask().is_everything


def test_a_list_that_kept_silent_is_not_believed_until_it_moves_on(world: World) -> None:
    """Its broker is of an older release by now, or is not allowed to write it any more."""
    world.follow()
    world.reader.doubt()
    for _ in range(3):
        world.clock.advance_ms(10_000)
        assert world.reader.ask().is_everything
    world.writer.note(manifest(1))
    world.write()
    news = world.reader.ask()
    assert (news.is_everything, revisions(news)) == (False, {0: 1})
    # Nor for ever: its broker may have died, and nothing else happened.
    world.reader.doubt()
    world.clock.advance_ms(FULL_MS)
    world.reader.ask()
    world.clock.advance_ms(10_000)
    assert not world.reader.ask().is_everything


# --- one partition of the replica ------------------------------------------------------------


EVERYTHING = News(is_everything=True)
NOTHING = News(is_everything=False, is_told=True)


def told(revision: int) -> News:
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
    expectation.hear(EVERYTHING, KEY, None)
    assert expectation.is_due
    # A look that failed says nothing.
    expectation.hear(NOTHING, KEY, None)
    assert expectation.is_due


def test_a_look_that_began_before_it_was_asked_for_is_no_answer() -> None:
    expectation = looked()
    began = expectation.asked
    expectation.hear(EVERYTHING, KEY, None)
    expectation.found(began, None, manifest(1))
    assert expectation.is_due


def test_a_manifest_that_is_older_than_was_told_is_looked_at_again() -> None:
    """A bucket that is a copy of another one may have the list first."""
    expectation = looked(manifest(1))
    expectation.hear(told(3), KEY, manifest(1))
    expectation.found(expectation.asked, manifest(1), manifest(2))
    assert expectation.is_due
    expectation.found(expectation.asked, manifest(2), manifest(3))
    assert not expectation.is_due
    # One that is not there at all is not waited for longer than until the next full look.
    expectation.hear(told(2**62), KEY, manifest(3))
    expectation.hear(EVERYTHING, KEY, manifest(3))
    expectation.found(expectation.asked, manifest(3), manifest(3))
    assert not expectation.is_due


def test_what_is_held_already_is_not_looked_at() -> None:
    expectation = looked(manifest(3))
    expectation.hear(told(3), KEY, manifest(3))
    assert not expectation.is_due
    other = replace(NOTHING, orders={(uuid.UUID(int=1), 0): manifest(9).order})
    expectation.hear(other, KEY, manifest(3))
    assert not expectation.is_due


def test_a_change_that_nobody_told_is_noticed_by_a_full_look() -> None:
    expectation = looked(manifest(1))
    full = replace(EVERYTHING, is_told=True)
    expectation.hear(full, KEY, manifest(1))
    expectation.found(expectation.asked, manifest(1), manifest(1))
    assert not expectation.hear(full, KEY, manifest(1))
    expectation.found(expectation.asked, manifest(1), manifest(2))
    assert expectation.hear(NOTHING, KEY, manifest(2))
    assert not expectation.hear(NOTHING, KEY, manifest(2))
    # Where it was told, or nobody said that all is told, it is none.
    expectation.hear(replace(full, orders={KEY: manifest(3).order}), KEY, manifest(2))
    expectation.found(expectation.asked, manifest(2), manifest(3))
    expectation.hear(EVERYTHING, KEY, manifest(3))
    expectation.found(expectation.asked, manifest(3), manifest(4))
    assert not expectation.hear(NOTHING, KEY, manifest(4))


@asynchronous
async def test_a_replica_asks_for_nothing_that_it_was_not_told_of(tmp_path: Path) -> None:
    async with Rig(tmp_path / "origin") as origin:
        origin.produce_segments(1)
        await origin.settle()
        replica = Rig(tmp_path / "replica", store=origin.memory, clock=origin.clock)
        replica.tiering_config = replace(replica.tiering_config, follows=True)
        async with replica:
            partition = replica.manager._partitions[PARTITION]
            assert not partition.is_due
            asked = len(origin.memory.requests)
            replica.manager.hear(NOTHING)
            assert not partition.is_due
            origin.produce_segments(1)
            await origin.settle()
            assert origin.manifest is not None
            replica.manager.hear(replace(NOTHING, orders={KEY: origin.manifest.order}))
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

"""The broker writes the change list in order, and only for an archive that it owns."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.storage.errors import AccessDenied, StoreFull, TierUnavailable
from strandline.storage.remote.keys import CHANGES_KEY
from strandline.storage.remote.manifest import change_list
from strandline.storage.remote.manifest.change_list import CHANGES_MAX, LIST_BYTES_MAX
from strandline.storage.tiering.changes.change_writer import ChangeWriter
from strandline.storage.tiering.policy.retry import RetryPolicy
from tests.support.memory_store import Fault, Timing
from tests.unit.storage.tiering.changes.change_rig import FULL_MS, INTERVAL_MS, KEY, World, manifest
from tests.unit.storage.tiering.harness import Rig, asynchronous

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


def test_who_does_not_own_the_archive_asks_and_writes_nothing(world: World) -> None:
    world.is_ours = False
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
            may_write=lambda: True,
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

"""Grace times of deletion marks end neither early nor late, whatever the wall clock says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.remote.manifest.compaction_mark import CompactionMark, next_mark
from tests.support.manual_clock import ManualClock
from tests.unit.storage.tiering.harness import COMPACTED, GRACE_MS, Rig, asynchronous
from tests.unit.storage.tiering.slow_reader import DELETE_RETENTION_MS

YEAR_MS = 365 * 24 * 3600 * 1000


class JumpingClock(ManualClock):
    """Its monotonic half goes on as ever; the wall goes where it is told."""

    def jump_ms(self, delta_ms: int) -> None:
        self._now_ms += delta_ms


async def let_one_go(rig: Rig) -> str:
    """Archives a segment and deletes its records; the key of its object."""
    rig.produce_segments(2)
    await rig.settle()
    assert rig.manifest is not None
    key = rig.manifest.segments[0].log_key
    rig.log.delete_records(10)
    await rig.settle()
    assert [mark.log_key for mark in rig.manifest.deleting] == [key]
    return key


@asynchronous
async def test_what_was_marked_by_a_clock_that_went_back_goes_after_the_grace_time(
    tmp_path: Path,
) -> None:
    clock = JumpingClock()
    async with Rig(tmp_path, clock=clock) as rig:
        clock.jump_ms(10 * YEAR_MS)
        key = await let_one_go(rig)
        clock.jump_ms(-10 * YEAR_MS)
        await rig.crash()
        await rig.settle()
        rig.pass_ms(GRACE_MS - 1)
        await rig.settle()
        assert key in rig.data_keys()
        rig.pass_ms(1)
        await rig.settle()
        assert key not in rig.data_keys()
        assert rig.manifest is not None
        assert not rig.manifest.deleting


@asynchronous
async def test_a_clock_that_jumps_ahead_makes_no_grace_time_shorter(tmp_path: Path) -> None:
    clock = JumpingClock()
    async with Rig(tmp_path, clock=clock) as rig:
        key = await let_one_go(rig)
        clock.jump_ms(YEAR_MS)
        await rig.settle()
        assert key in rig.data_keys()
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        assert key not in rig.data_keys()


@pytest.mark.parametrize("restarts", [False, True])
@asynchronous
async def test_a_topic_that_was_buried_by_a_clock_that_went_back_is_purged(
    tmp_path: Path, restarts: bool
) -> None:
    clock = JumpingClock()
    async with Rig(tmp_path, clock=clock) as rig:
        rig.produce_segments(2)
        await rig.settle()
        clock.jump_ms(10 * YEAR_MS)
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        clock.jump_ms(-10 * YEAR_MS)
        if restarts:
            await rig.crash()
            rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        rig.pass_ms(GRACE_MS - 1)
        await rig.manager.run_once()
        assert list(rig.store.list("topics/"))
        rig.pass_ms(1)
        await rig.manager.run_once()
        assert not list(rig.store.list("topics/"))


def test_tombstones_whose_time_begins_in_the_future_get_another_one() -> None:
    wrong = CompactionMark(cleaned_offset=50, horizon_offset=40, horizon_ms=10 * YEAR_MS)
    known = {"cleaned_offset": 60, "local_start_offset": 60, "delete_retention_ms": 1000}
    mark = next_mark(wrong, now_ms=5000, **known)
    assert mark.horizon_ms == 5000
    assert mark.droppable_below(now_ms=5999, delete_retention_ms=1000) == 0
    assert mark.droppable_below(now_ms=6000, delete_retention_ms=1000) == 60


def test_a_round_does_not_begin_the_time_of_tombstones_anew() -> None:
    """A log that is compacted often would keep them for ever."""
    before = CompactionMark(cleaned_offset=50, horizon_offset=40, horizon_ms=1000)
    known = {"cleaned_offset": 90, "local_start_offset": 80, "delete_retention_ms": 100}
    waits = next_mark(before, now_ms=1099, **known)
    assert (waits.cleaned_offset, waits.horizon_offset, waits.horizon_ms) == (90, 40, 1000)
    over = next_mark(before, now_ms=1100, **known)
    # And where this disk begins is below what is clean: there are older values before it.
    assert (over.cleaned_offset, over.horizon_offset, over.horizon_ms) == (90, 80, 1100)


@asynchronous
async def test_a_clock_that_jumps_ahead_takes_no_tombstone_from_either_tier(
    tmp_path: Path,
) -> None:
    clock = JumpingClock()
    config = replace(COMPACTED, delete_retention_ms=DELETE_RETENTION_MS)
    async with Rig(tmp_path, config=config, clock=clock) as rig:

        async def archive(key: bytes, value: bytes | None, *, pass_ms: int) -> None:
            rig.put((key, value))
            rig.seal()
            await rig.clean()
            rig.pass_ms(pass_ms)
            await rig.settle()

        async def tombstones() -> list[bytes | None]:
            return [record.key for record in await rig.records() if record.value is None]

        await archive(b"a", b"1", pass_ms=2 * DELETE_RETENTION_MS)
        await archive(b"a", None, pass_ms=2 * DELETE_RETENTION_MS)
        # Since this round its key is nowhere, and the time of its tombstone begins.
        await archive(b"z", b"1", pass_ms=2 * DELETE_RETENTION_MS)
        rig.put((b"b", b"1"))
        rig.put((b"b", None))
        rig.seal()
        await rig.clean()
        assert await tombstones() == [b"a", b"b"]
        clock.jump_ms(YEAR_MS)
        await archive(b"z", b"2", pass_ms=1)
        assert await tombstones() == [b"a", b"b"]
        clock.jump_ms(-YEAR_MS)
        for value in (b"3", b"4", b"5"):
            await archive(b"z", value, pass_ms=2 * DELETE_RETENTION_MS)
        assert await tombstones() == []
        await rig.assert_nothing_is_lost()


@asynchronous
async def test_a_restart_does_not_begin_the_grace_time_of_a_topic_anew(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.manager.delete_topic(rig.topic_info)
        await rig.manager.run_once()
        for _ in range(2):
            rig.pass_ms(GRACE_MS // 2)
            await rig.crash()
            rig.manager.delete_topic(rig.topic_info)
            await rig.manager.run_once()
        assert not list(rig.store.list("topics/"))


@pytest.mark.parametrize("restarts", [False, True])
@asynchronous
async def test_an_archive_that_is_begun_anew_by_a_clock_that_went_back_is_the_later_one(
    tmp_path: Path, restarts: bool
) -> None:
    """A replica that did not look meanwhile would refuse it for an older one."""
    clock = JumpingClock()
    async with Rig(tmp_path, clock=clock) as rig:
        rig.produce_segments(2)
        await rig.settle()
        before = rig.manifest
        assert before is not None
        rig.manager.disable_topic(rig.topic_info)
        for _ in range(2):
            await rig.manager.run_once()
            rig.pass_ms(GRACE_MS)
        assert not list(rig.store.list("topics/"))
        clock.jump_ms(-YEAR_MS)
        if restarts:
            await rig.crash()
        else:
            rig.attach()
        await rig.settle()
        after = rig.manifest
        assert after is not None
        assert after.order > before.order
        assert after.generation != before.generation

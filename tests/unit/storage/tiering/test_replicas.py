"""A replica learns of the archive that its leader writes when it has to: to free, or to go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from strandline.storage.errors import TierUnavailable
from strandline.storage.model import EpochStart
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import COMPACTED, PARTITION, Rig, asynchronous
from tests.unit.storage.tiering.test_leadership import next_leader, replicate


@asynccontextmanager
async def follower_of(leader: Rig, folder: Path) -> AsyncIterator[Rig]:
    """A broker without any record of the partition."""
    rig = Rig(folder, config=leader.config, store=leader.memory, clock=leader.clock)
    await rig.open(start=False)
    try:
        rig.manager.end_leading(PARTITION)
        yield rig
    finally:
        rig._end()


async def restart(rig: Rig) -> None:
    assert rig.log.remote is not None
    assert rig.log.remote.restart_replica is not None
    await rig.log.remote.restart_replica()


@asynchronous
async def test_a_log_that_ends_below_the_archive_goes_on_behind_it(tmp_path: Path) -> None:
    async with Rig(tmp_path / "leader", leader_epoch=7) as leader:
        leader.put((b"key", b"first"), producer_id=5)
        leader.roll()
        leader.produce_segments(2)
        leader.log.move_log_start(1)
        await leader.manager.run_once()
        async with follower_of(leader, tmp_path / "follower") as rig:
            await restart(rig)
            log = rig.log
            assert (log.local.start_offset, log.end_offset, log.high_watermark) == (21, 21, 21)
            assert log.log_start_offset == 1
            assert log.local.leader_epochs.starts[-1] == EpochStart(7, 1)
            assert 5 in log.local.producers.entries
            # It is the leader's archive still.
            before = rig.memory.requests
            await rig.manager.run_once()
            assert rig.memory.requests == before
            assert rig.manifest is not None
            assert rig.manifest.leader_epoch == 7


@asynchronous
async def test_a_log_that_reaches_the_end_of_the_archive_keeps_its_records(tmp_path: Path) -> None:
    async with Rig(tmp_path / "leader") as leader:
        leader.produce_segments(2)
        leader.produce(10)
        await leader.manager.run_once()
        async with next_leader(leader, tmp_path / "follower") as rig:
            rig.manager.end_leading(PARTITION)
            await restart(rig)
            assert (rig.log.local.start_offset, rig.log.end_offset) == (0, 30)


@asynchronous
async def test_nothing_restarts_while_there_is_no_archive(tmp_path: Path) -> None:
    async with Rig(tmp_path / "leader") as leader:
        leader.produce(10)
        async with follower_of(leader, tmp_path / "follower") as rig:
            await restart(rig)
            assert (rig.log.local.start_offset, rig.log.end_offset) == (0, 0)


@asynchronous
async def test_a_replica_frees_what_its_leader_archived_since(tmp_path: Path) -> None:
    async with Rig(tmp_path / "first") as first:
        first.produce_segments(2)
        first.produce(10)
        await first.manager.run_once()
        first.manager.end_leading(PARTITION)
        first.roll()
        async with next_leader(first, tmp_path / "next") as rig:
            first.pass_ms(10_000)
            assert await first.enforcer.run_once() == 2
            assert first.log.local.start_offset == 20
            rig.roll()
            await rig.manager.run_once()
            assert rig.archived == [(0, 10), (10, 20), (20, 30)]
            assert await first.enforcer.run_once() == 1
            assert first.log.local.start_offset == 30
            assert first.log.log_start_offset == 0


@asynchronous
async def test_a_replica_frees_nothing_that_only_replicas_have(tmp_path: Path) -> None:
    async with Rig(tmp_path / "first") as first:
        first.produce_segments(3)
        first.manager.end_leading(PARTITION)
        first.pass_ms(10_000)
        assert await first.enforcer.run_once() == 0
        assert first.log.local.start_offset == 0


@asynchronous
async def test_while_the_store_is_away_a_replica_frees_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.manager.run_once()
        rig.manager.end_leading(PARTITION)
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        rig.pass_ms(10_000)
        assert await rig.enforcer.run_once() == 0
        with pytest.raises(TierUnavailable):
            await restart(rig)


@asynchronous
async def test_a_replica_frees_nothing_that_somebody_deleted_in_the_bucket(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.manager.run_once()
        rig.manager.end_leading(PARTITION)
        rig.memory.delete([one.key for one in rig.memory.list("")])
        rig.pass_ms(10_000)
        assert await rig.enforcer.run_once() == 0


@asynchronous
async def test_a_replica_that_was_started_again_serves_what_is_archived(tmp_path: Path) -> None:
    """Nobody has told it of the archive since: it has nothing to free, and misses nothing."""
    async with Rig(tmp_path / "leader") as leader:
        leader.produce_segments(2)
        await leader.manager.run_once()
        async with follower_of(leader, tmp_path / "follower") as rig:
            await restart(rig)
            await rig.crash(start=False)
            rig.manager.end_leading(PARTITION)
            await rig.manager.start()
            assert rig.log.local_start_offset == 20
            rig.sent = leader.sent
            await rig.assert_everything_is_readable()


@asynchronous
async def test_a_replica_removes_no_tombstone_of_a_key_that_its_leader_has_archived(
    tmp_path: Path,
) -> None:
    """It came late: its leader had cleaned the tombstone, and died before it archived it."""
    async with Rig(tmp_path / "leader", config=COMPACTED) as leader:
        leader.put((b"gone", b"1"), (b"kept", b"1"))
        leader.seal()
        await leader.clean()
        await leader.manager.run_once()
        assert leader.archived == [(0, 2)]
        leader.put((b"gone", None))
        leader.seal()
        await leader.clean()
        leader.pass_ms(COMPACTED.delete_retention_ms + 1)
        rig = Rig(tmp_path / "next", config=COMPACTED, store=leader.memory, clock=leader.clock)
        await rig.open(start=False)
        rig.manager.detach(PARTITION)
        # Its topic was made a moment ago, as far as it knows.
        rig.manager.attach(
            rig.log, rig.topic_info, leader_epoch=0, is_leader=False, is_lone=False, is_new=True
        )
        replicate(leader, rig)
        rig.seal()
        await rig.clean()
        rig.manager.begin_leading(PARTITION, 2, is_lone=False)
        rig.leader_epoch = 2
        rig.latest = dict(leader.latest)
        rig.put((b"later", b"1"))
        rig.seal()
        await rig.clean()
        rig.pass_ms(10_000)
        await rig.settle()
        assert rig.log.local_start_offset == rig.log.end_offset
        await rig.assert_nothing_is_lost()
        rig._end()

"""What is tried again beside the connections, and how often."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.metadata.controller_messages import Controller
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.loading import load_config
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.server.upkeep.background import (
    PRODUCER_CHECK_S,
    RESTARTS,
    REVIVE_CHECK_S,
    UNCREATED_RETRY_S,
    FinishedPurges,
    LogUpkeep,
    keep_running,
)
from strandline.broker.server.workers import Workers
from strandline.retention.jump_guard import JumpGuard
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import StrandlineError
from strandline.storage.local.formats.producer_state import ProducerEntry, ProducerState
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from tests.sim.loop import VirtualClock, run
from tests.sim.pools import InlinePool
from tests.unit.storage.local.builders import fill, open_log


class CountingClient:
    """Takes requests, and cures nothing."""

    def __init__(self) -> None:
        self.change_count = 0

    async def ask(self, _request: object) -> tuple[()]:
        self.change_count += 1
        return ()


def test_partitions_that_find_no_room_are_not_a_change_of_the_metadata_each_second() -> None:
    metadata = CountingClient()

    async def minutes() -> None:
        clock = VirtualClock()
        upkeep = LogUpkeep(
            cast(ReplicaManager, SimpleNamespace(has_uncreated=True, replace_logs=len)),
            cast(LogDirs, SimpleNamespace(has_failed=False, is_short_of_room=False)),
            controller=cast(Controller, metadata),
            running=cast(RunningConfig, SimpleNamespace(static=SimpleNamespace(node_id=1))),
            workers=cast(Workers, None),
            clock=clock,
            believed_ms=clock.now_ms,
        )
        task = asyncio.ensure_future(upkeep.revive_folders_forever())
        await asyncio.sleep(UNCREATED_RETRY_S)
        assert metadata.change_count == 1
        await asyncio.sleep(2 * REVIVE_CHECK_S)
        assert metadata.change_count == 2
        task.cancel()

    run(minutes)


@pytest.mark.parametrize("flush_messages", [1, 1000])
def test_a_roll_waits_for_no_record_behind_it_unless_flush_messages_is_due(
    tmp_path: Path, flush_messages: int
) -> None:
    log = open_log(tmp_path, config=LogConfig(flush_messages=flush_messages))
    fill(log, 2)
    log.roll()
    fill(log, 1)
    wanted: list[int | None] = []

    async def flush(up_to: int | None) -> None:
        wanted.append(up_to)
        log.flush(up_to)

    partition = SimpleNamespace(log=SimpleNamespace(local=log), flush=flush)

    async def a_minute() -> None:
        clock = VirtualClock()
        upkeep = LogUpkeep(
            cast(ReplicaManager, SimpleNamespace(partitions=lambda: [partition])),
            cast(LogDirs, None),
            controller=cast(Controller, None),
            running=cast(RunningConfig, None),
            workers=cast(Workers, SimpleNamespace(disk=None)),
            clock=clock,
            believed_ms=clock.now_ms,
        )
        task = asyncio.ensure_future(upkeep.flush_forever())
        await asyncio.sleep(60)
        task.cancel()

    run(a_minute)
    assert wanted == [None if flush_messages == 1 else 20]
    assert log.recovery_point == (30 if flush_messages == 1 else 20)


def test_revived_logs_are_served_although_the_metadata_could_not_be_told_at_first() -> None:
    """The folder does not count as failed any more: nobody would open its logs a second time."""
    pair = SimpleNamespace(lost_records=True)
    folders = SimpleNamespace(has_failed=True, is_short_of_room=False)
    changes: list[int] = []
    served: list[object] = []

    def revive() -> list[object]:
        folders.has_failed = False
        return [pair]

    async def raise_leader_epochs(_request: object) -> None:
        changes.append(1)
        if len(changes) == 1:
            raise StrandlineError("no room for the entry")

    folders.revive = revive

    async def some_seconds() -> None:
        clock = VirtualClock()
        upkeep = LogUpkeep(
            cast(ReplicaManager, SimpleNamespace(has_uncreated=False, replace_logs=served.extend)),
            cast(LogDirs, folders),
            controller=cast(Controller, SimpleNamespace(ask=raise_leader_epochs)),
            running=cast(RunningConfig, SimpleNamespace(static=SimpleNamespace(node_id=1))),
            workers=cast(Workers, SimpleNamespace(disk=InlinePool())),
            clock=clock,
            believed_ms=clock.now_ms,
        )
        with pytest.raises(StrandlineError):
            await upkeep.revive_folders_forever()
        assert served == []
        task = asyncio.ensure_future(upkeep.revive_folders_forever())
        await asyncio.sleep(10)
        task.cancel()

    run(some_seconds)
    assert (served, len(changes)) == ([pair], 2)


def producer_upkeep(
    clock: VirtualClock, running: SimpleNamespace
) -> tuple[ProducerState, LogUpkeep]:
    """Of a log with one producer, which was there a moment ago."""
    producers = ProducerState()
    entry = ProducerEntry(producer_id=7, epoch=0)
    entry.last_timestamp_ms = clock.now_ms()
    producers.entries[7] = entry
    partition = SimpleNamespace(log=SimpleNamespace(local=SimpleNamespace(producers=producers)))
    upkeep = LogUpkeep(
        cast(ReplicaManager, SimpleNamespace(partitions=lambda: [partition])),
        cast(LogDirs, None),
        controller=cast(Controller, None),
        running=cast(RunningConfig, running),
        workers=cast(Workers, None),
        clock=clock,
        believed_ms=JumpGuard(clock).now_ms,
    )
    return producers, upkeep


def test_idle_producers_go_by_the_limit_of_the_moment() -> None:
    async def some_checks() -> None:
        running = SimpleNamespace(current=BrokerConfig())
        producers, upkeep = producer_upkeep(VirtualClock(), running)
        task = asyncio.ensure_future(upkeep.expire_producers_forever())
        await asyncio.sleep(PRODUCER_CHECK_S + 1)
        assert 7 in producers.entries
        running.current = load_config(None, ["producer.id.expiration.ms=60000"])
        await asyncio.sleep(PRODUCER_CHECK_S)
        assert not producers.entries
        task.cancel()

    run(some_checks)


def test_a_clock_that_jumps_ahead_forgets_no_producer() -> None:
    """What a forgotten one repeats would be taken a second time."""

    async def a_day() -> None:
        clock = VirtualClock()
        producers, upkeep = producer_upkeep(clock, SimpleNamespace(current=BrokerConfig()))
        task = asyncio.ensure_future(upkeep.expire_producers_forever())
        clock.jump_ms(100 * 86_400_000)
        await asyncio.sleep(PRODUCER_CHECK_S + 1)
        assert 7 in producers.entries
        clock.jump_ms(-100 * 86_400_000)
        await asyncio.sleep(86_400 + PRODUCER_CHECK_S)
        assert not producers.entries
        task.cancel()

    run(a_day)


def test_a_loop_that_ran_for_long_is_begun_again_soon_however_often_it_failed_before() -> None:
    ran_s = [0.0, 0.0, 0.0, RESTARTS.max_s, 0.0]
    ended_s: list[float] = []
    waits_s: list[float] = []

    async def some_failures() -> None:
        loop = asyncio.get_running_loop()

        async def fail() -> None:
            waits_s.extend(loop.time() - at_s for at_s in ended_s[-1:])
            if not ran_s:
                raise asyncio.CancelledError
            await asyncio.sleep(ran_s.pop(0))
            ended_s.append(loop.time())
            raise StrandlineError("again")

        with pytest.raises(asyncio.CancelledError):
            await keep_running("loop", fail)

    run(some_failures)
    assert waits_s == [1, 2, 4, 1, 2]


def test_topics_that_are_gone_from_both_tiers_are_noted_together() -> None:
    metadata, purges = CountingClient(), FinishedPurges()

    async def some_seconds() -> None:
        for number in range(100):
            purges.add(uuid.UUID(int=number))
        task = asyncio.ensure_future(purges.note_forever(cast(Controller, metadata)))
        await asyncio.sleep(10)
        task.cancel()

    run(some_seconds)
    assert metadata.change_count == 1

"""What is tried again beside the connections, and how often."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.metadata.controller_messages import Controller
from strandline.broker.cluster.replicas.partition import RecordsCut
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
from strandline.retention.jump_guard import JumpGuard
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError, StrandlineError
from strandline.storage.local.formats.producer_state import ProducerEntry, ProducerState
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.local.log_dirs.log_dir import LogDir
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicPartition
from tests.sim.loop import VirtualClock, run
from tests.sim.pools import InlinePool, JobTime, TimedPool
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
            folders=FolderWork(lambda _: InlinePool()),
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


def flush_for_a_minute(log: LocalLog, partition: SimpleNamespace) -> None:
    folder = LogDir(log.directory.parent, lock_descriptor=-1)
    folder.logs[log.topic_partition] = log

    async def a_minute() -> None:
        clock = VirtualClock()
        upkeep = LogUpkeep(
            cast(ReplicaManager, SimpleNamespace(partition=lambda *_: partition)),
            cast(LogDirs, SimpleNamespace(directories=[folder])),
            controller=cast(Controller, None),
            running=cast(RunningConfig, None),
            folders=FolderWork(lambda _: InlinePool()),
            clock=clock,
            believed_ms=clock.now_ms,
        )
        task = asyncio.ensure_future(upkeep.flush_forever())
        await asyncio.sleep(60)
        task.cancel()

    run(a_minute)


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
    flush_for_a_minute(log, partition)
    assert wanted == [None if flush_messages == 1 else 20]
    assert log.recovery_point == (30 if flush_messages == 1 else 20)


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_follower_that_is_truncated_during_its_flush_has_no_broken_disk(
    tmp_path: Path, is_cut: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path)
    fill(log, 2)
    log.roll()
    asked: list[int | None] = []

    async def flush(up_to: int | None) -> None:
        asked.append(up_to)
        if len(asked) == 1:
            raise (RecordsCut if is_cut else DiskError)("t-0")
        log.flush(up_to)

    place = log.topic_partition
    partition = SimpleNamespace(
        log=SimpleNamespace(local=log), flush=flush, topic_partition=place, is_gone=False
    )
    flush_for_a_minute(log, partition)
    assert log.recovery_point == 20
    assert [record.message for record in caplog.records] == ([] if is_cut else ["flush failed"])


def test_a_folder_that_hangs_delays_no_flush_of_another(tmp_path: Path) -> None:
    for name in ("hangs", "works"):
        (tmp_path / name).mkdir()
    logs = [open_log(tmp_path / name / "t-0") for name in ("hangs", "works")]
    flushes: list[Path] = []

    def partition_of(local: LocalLog) -> SimpleNamespace:
        async def flush(up_to: int | None) -> None:
            folder = local.directory.parent
            flushes.append(folder)
            if folder.name == "hangs":
                await asyncio.sleep(3600)
            local.flush(up_to)

        return SimpleNamespace(log=SimpleNamespace(local=local), flush=flush)

    folders = [LogDir(one.directory.parent, lock_descriptor=-1) for one in logs]
    for number, (folder, one) in enumerate(zip(folders, logs, strict=True)):
        folder.logs[TopicPartition("t", number)] = one
    partitions = [partition_of(one) for one in logs]

    async def some_rolls() -> None:
        clock = VirtualClock()
        upkeep = LogUpkeep(
            cast(ReplicaManager, SimpleNamespace(partition=lambda _, index: partitions[index])),
            cast(LogDirs, SimpleNamespace(directories=folders)),
            controller=cast(Controller, None),
            running=cast(RunningConfig, None),
            folders=FolderWork(lambda _: InlinePool()),
            clock=clock,
            believed_ms=clock.now_ms,
        )
        task = asyncio.ensure_future(upkeep.flush_forever())
        for _ in range(3):
            for one in logs:
                fill(one, 1)
                one.roll()
            await asyncio.sleep(5)
        task.cancel()

    run(some_rolls)
    # It is not asked again before it has answered.
    assert [one.name for one in flushes if one.name == "hangs"] == ["hangs"]
    assert [one.recovery_point for one in logs] == [0, 30]


def test_a_folder_that_hangs_while_it_comes_back_delays_no_other() -> None:
    """It is asked once, and its logs are served when it answers."""
    hanging, working = (LogDir(Path(name), lock_descriptor=-1) for name in ("hangs", "works"))
    hanging.failure = working.failure = DiskError("gone")
    served: list[object] = []
    asked: list[LogDir] = []

    def revive(within: tuple[LogDir, ...]) -> list[object]:
        (folder,) = within
        asked.append(folder)
        folder.failure = None
        return [SimpleNamespace(lost_records=False, folder=folder)]

    folders = SimpleNamespace(
        has_failed=True, is_short_of_room=False, directories=[hanging, working], revive=revive
    )

    async def a_minute() -> None:
        clock = VirtualClock()
        takes_s = {hanging.path: 30.0, working.path: 0.1}
        pools = {
            path: TimedPool(1, path.name, partial(_late, seconds))
            for path, seconds in takes_s.items()
        }
        upkeep = LogUpkeep(
            cast(ReplicaManager, SimpleNamespace(has_uncreated=False, replace_logs=served.extend)),
            cast(LogDirs, folders),
            controller=cast(Controller, None),
            running=cast(RunningConfig, None),
            folders=FolderWork(pools.__getitem__),
            clock=clock,
            believed_ms=clock.now_ms,
        )
        task = asyncio.ensure_future(upkeep.revive_folders_forever())
        await asyncio.sleep(10)
        assert [one.folder for one in served] == [working]  # type: ignore[attr-defined]
        await asyncio.sleep(50)
        assert [one.folder for one in served] == [working, hanging]  # type: ignore[attr-defined]
        task.cancel()

    run(a_minute)
    assert asked == [working, hanging]


def _late(seconds: float, _name: str) -> JobTime:
    return JobTime(seconds=seconds, is_late=True)


def test_revived_logs_are_served_although_the_metadata_could_not_be_told_at_first() -> None:
    """The folder does not count as failed any more: nobody would open its logs a second time."""
    pair = SimpleNamespace(lost_records=True)
    folder = LogDir(Path("a"), lock_descriptor=-1)
    folder.failure = DiskError("gone")
    folders = SimpleNamespace(has_failed=True, is_short_of_room=False, directories=[folder])
    changes: list[int] = []
    served: list[object] = []

    def revive(_within: object) -> list[object]:
        folders.has_failed, folder.failure = False, None
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
            folders=FolderWork(lambda _: InlinePool()),
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
        folders=FolderWork(lambda _: InlinePool()),
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

"""A partition on its way to another log folder, and what becomes of its log meanwhile."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.cluster.replicas.replica_moves import ReplicaMoves
from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.copy_pace import unbounded
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.local.log_dirs.move import LogMove
from strandline.storage.local.log_dirs.revival import RevivedLog
from tests.support.manual_clock import ManualClock
from tests.unit.broker.cluster.served import serving
from tests.unit.storage.local.builders import NOW_MS, assert_dense, fill
from tests.unit.storage.local.log_folders import kill, load_all, open_dirs

WAIT_S_MAX = 60.0


def about_to_move(
    replicas: ReplicaManager, dirs: LogDirs, worker: Executor
) -> tuple[Partition, Path, ReplicaMoves]:
    """The one partition, with 30 records, the log folder that it is not in, and who moves it."""
    (served,) = replicas.partitions()
    fill(served.log.local, 3)
    (target,) = {one.path for one in dirs.directories} - {served.log.local.directory.parent}
    moves = ReplicaMoves(
        replicas,
        dirs,
        worker=worker,
        clock=ManualClock(NOW_MS),
        pace=unbounded(ManualClock(NOW_MS)),
        cleaning_paused=lambda _key: nullcontext(),
    )
    return served, target, moves


def test_a_log_that_was_opened_anew_during_its_move_loses_nothing_that_came_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    synced = LogMove.sync

    async def move() -> None:
        with ThreadPoolExecutor(1) as disk, ThreadPoolExecutor(1) as worker:
            replicas = await serving(dirs, disk, partitions=1)
            served, target, moves = about_to_move(replicas, dirs, worker)
            old = served.log.local

            def fails_and_comes_back(move: LogMove) -> None:
                synced(move)
                if served.log.local is old:
                    assert old.on_failure is not None
                    old.on_failure(DiskError("input/output error"))
                    replicas.replace_logs(dirs.revive())
                    fill(served.log.local, 1)

            monkeypatch.setattr(LogMove, "sync", fails_and_comes_back)
            moves.request(served, target)
            await moves.note()
            running = asyncio.ensure_future(moves.run())
            async with asyncio.timeout(WAIT_S_MAX):
                while served.log.local.directory.parent != target or moves.current():
                    await asyncio.sleep(0.001)
            running.cancel()
            assert served.log.end_offset == 40
            assert_dense(served.log.local)

    asyncio.run(move())
    dirs.close()


def test_a_copy_of_a_log_that_has_stopped_takes_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    synced = LogMove.sync
    revived: list[RevivedLog] = []

    async def move() -> None:
        with ThreadPoolExecutor(1) as disk, ThreadPoolExecutor(1) as worker:
            replicas = await serving(dirs, disk, partitions=1)
            served, target, moves = about_to_move(replicas, dirs, worker)
            old = served.log.local

            def fails_and_comes_back(move: LogMove) -> None:
                synced(move)
                if not revived:
                    assert old.on_failure is not None
                    old.on_failure(DiskError("input/output error"))
                    revived.extend(dirs.revive())

            monkeypatch.setattr(LogMove, "sync", fails_and_comes_back)
            moves.request(served, target)
            await moves.note()
            running = asyncio.ensure_future(moves.run())
            async with asyncio.timeout(WAIT_S_MAX):
                while not revived or moves.current():
                    await asyncio.sleep(0.001)
            running.cancel()
            # The metadata is told first, and then these are served.
            replicas.replace_logs(revived)
            fill(served.log.local, 1)
            assert served.log.local is dirs.logs[served.topic_partition]
            assert served.log.end_offset == 40
            assert not (target / "t-0").exists()

    asyncio.run(move())
    dirs.close()


def test_a_copy_that_cannot_be_synced_is_not_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is appended from then on goes to the old log, and a start would have taken the copy."""
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    synced, flush = LogMove.sync, LocalLog.flush

    async def move() -> None:
        with ThreadPoolExecutor(1) as disk, ThreadPoolExecutor(1) as worker:
            replicas = await serving(dirs, disk, partitions=1)
            served, target, moves = about_to_move(replicas, dirs, worker)
            old = served.log.local

            def sync_what_is_not_all(move: LogMove) -> None:
                synced(move)
                fill(old, 1)

            def fail_on_the_loop(log: LocalLog) -> None:
                if log.directory.parent == target and threading.current_thread() is loop_thread:
                    failed.set()
                    raise DiskError("input/output error")
                flush(log)

            loop_thread, failed = threading.current_thread(), asyncio.Event()
            monkeypatch.setattr(LogMove, "sync", sync_what_is_not_all)
            monkeypatch.setattr(LocalLog, "flush", fail_on_the_loop)
            moves.request(served, target)
            await moves.note()
            running = asyncio.ensure_future(moves.run())
            async with asyncio.timeout(WAIT_S_MAX):
                await failed.wait()
                while moves.current():
                    await asyncio.sleep(0.001)
            running.cancel()
            assert served.log.local is old
            fill(old, 1)

    asyncio.run(move())
    monkeypatch.undo()
    (key,) = dirs.logs
    end_offset = dirs.logs[key].end_offset
    kill(dirs)
    again = open_dirs(tmp_path / "a", tmp_path / "b")
    assert load_all(again)[key].end_offset == end_offset
    again.close()


@pytest.mark.parametrize("is_noticed", [True, False])
def test_nothing_moves_into_a_folder_whose_volume_is_gone(
    tmp_path: Path, *, is_noticed: bool
) -> None:
    """What was written in its place would be hidden when the volume is mounted again."""
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")

    async def move() -> None:
        with ThreadPoolExecutor(1) as disk, ThreadPoolExecutor(1) as worker:
            replicas = await serving(dirs, disk, partitions=1)
            served, target, moves = about_to_move(replicas, dirs, worker)
            moves.request(served, target)
            await moves.note()
            target.rename(tmp_path / "unmounted")
            if is_noticed:
                dirs.failures[target] = DiskError("is its volume mounted?")
            running = asyncio.ensure_future(moves.run())
            async with asyncio.timeout(WAIT_S_MAX):
                while moves.waiting() or moves.current():
                    await asyncio.sleep(0.001)
            running.cancel()
            assert served.log.local.directory.parent != target
            assert not target.exists()
            (tmp_path / "unmounted").rename(target)

    asyncio.run(move())
    dirs.close()

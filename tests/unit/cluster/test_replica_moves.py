"""A partition on its way to another log folder, and what becomes of its log meanwhile."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from strandline.broker.cluster.replica_moves import ReplicaMoves
from strandline.storage.clock import ManualClock
from strandline.storage.errors import DiskError
from strandline.storage.local.log_move import LogMove
from tests.unit.cluster.served import serving
from tests.unit.local.builders import NOW_MS, assert_dense, fill
from tests.unit.local.log_folders import open_dirs

WAIT_S_MAX = 60.0


def test_a_log_that_was_opened_anew_during_its_move_loses_nothing_that_came_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    synced = LogMove.sync

    async def move() -> None:
        with ThreadPoolExecutor(1) as disk, ThreadPoolExecutor(1) as worker:
            replicas = await serving(dirs, disk, partitions=1)
            (served,) = replicas.partitions()
            old = served.log.local
            (target,) = {tmp_path / "a", tmp_path / "b"} - {old.directory.parent}
            fill(old, 3)
            moves = ReplicaMoves(
                replicas,
                dirs,
                worker=worker,
                clock=ManualClock(NOW_MS),
                cleaning_paused=lambda _key: nullcontext(),
            )

            def fails_and_comes_back(move: LogMove) -> None:
                synced(move)
                if served.log.local is old:
                    assert old.on_failure is not None
                    old.on_failure(DiskError("input/output error"))
                    replicas.replace_logs(dirs.revive())
                    fill(served.log.local, 1)

            monkeypatch.setattr(LogMove, "sync", fails_and_comes_back)
            moves.ask(served, target)
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

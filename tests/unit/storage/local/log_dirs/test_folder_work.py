"""Work in log folders: a disk that hangs is waited for once, and delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.storage.errors import DiskError
from strandline.storage.local.log_dirs.folder_work import HANGS_AFTER_S, FolderWork
from strandline.storage.local.log_dirs.log_dir import LogDir
from tests.sim.loop import run
from tests.sim.pools import JobTime, TimedPool

HANGING, FAILING, WORKING = (LogDir(Path(name), lock_descriptor=-1) for name in "abc")
ALL = (HANGING, FAILING, WORKING)


def folder_work(hangs_s: float) -> FolderWork:
    takes_s = {HANGING.path: hangs_s, FAILING.path: 0.1, WORKING.path: 0.1}
    pools = {
        path: TimedPool(1, path.name, lambda _, seconds=seconds: JobTime(seconds=seconds))  # type: ignore[misc]  # a default
        for path, seconds in takes_s.items()
    }
    return FolderWork(pools.__getitem__)


def test_a_folder_that_does_not_answer_is_left_out_until_it_does() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        work = folder_work(hangs_s=60.0)
        assert set(await work.on_each(ALL, str)) == {FAILING, WORKING}
        assert work.hangs(HANGING)
        began_s = loop.time()
        assert set(await work.on_each(ALL, str)) == {FAILING, WORKING}
        assert loop.time() - began_s < HANGS_AFTER_S
        await asyncio.sleep(60)
        assert not work.hangs(HANGING)

    run(scenario)


def test_an_error_of_one_folder_hides_neither_the_work_of_another_nor_that_one_hangs() -> None:
    worked: list[LogDir] = []

    def fail_in_one(folder: LogDir) -> None:
        if folder is FAILING:
            raise DiskError("no room")
        worked.append(folder)

    async def scenario() -> None:
        work = folder_work(hangs_s=60.0)
        order: tuple[Callable[[], tuple[LogDir, ...]], ...] = (
            lambda: ALL,
            lambda: tuple(reversed(ALL)),
        )
        for folders in order:
            with pytest.raises(DiskError, match="no room"):
                await work.on_each(folders(), fail_in_one)
            assert work.hangs(HANGING)
        assert worked.count(WORKING) == 2

    run(scenario)

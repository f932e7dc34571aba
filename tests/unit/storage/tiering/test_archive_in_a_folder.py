"""The loops themselves, over `file://` and with the real inspection process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from strandline.storage.clock import SystemClock
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.tiering.audit.listing import list_partitions
from strandline.storage.tiering.copy.inspector import SegmentInspector
from tests.unit.storage.tiering.harness import TOPIC, Rig, asynchronous

WAIT_S_MAX = 60.0


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Rig]:
    """A rig whose manager and enforcer run by themselves, over a folder as the bucket."""
    bucket = folder / "mount" / "bucket"
    bucket.parent.mkdir()
    inspector = SegmentInspector(SystemClock())
    store = LocalDirectoryStore(bucket, clock=SystemClock())
    async with Rig(folder / "disk", store=store, grace_ms=500, inspector=inspector) as rig:
        loops = asyncio.gather(rig.manager.run(), rig.manager.watch_store(), rig.enforcer.run())
        try:
            yield rig
        finally:
            loops.cancel()
            await asyncio.gather(loops, return_exceptions=True)
            inspector.close()


async def until(rig: Rig, condition: Callable[[], bool]) -> None:
    """Lets time pass, in both senses, until `condition` holds."""
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():
            rig.pass_ms(100)
            await asyncio.sleep(0.01)


@pytest.mark.slow
@asynchronous
async def test_segments_travel_to_the_folder_and_back(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        for _ in range(5):
            rig.produce(100)
            rig.roll()
        rig.produce(7)
        await until(rig, lambda: rig.log.local_start_offset == 507)
        assert rig.log.highest_remote_offset == 506
        await rig.assert_everything_is_readable()
        (row,) = list_partitions(rig.store, topic=TOPIC)
        assert (row.log_start_offset, row.end_offset) == (0, 507)
        assert row.size_bytes == sum(map(len, rig.sent))
        deleted: list[Path] = [p for p in rig.folder.iterdir() if p.suffix == ".deleted"]
        await until(rig, lambda: not any(path.exists() for path in deleted))
        rig.manager.delete_topic(rig.topic_info)
        rig.pass_ms(1000)
        # Grace is counted by the clock of the rig, which runs ten times as fast.
        # Beside it there may be a list of what changed, which is written now and then.
        await until(rig, lambda: list(rig.store.list("topics/")) == [])


@pytest.mark.slow
@asynchronous
async def test_copying_resumes_by_itself_when_the_bucket_is_back(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.produce_segments(2)
        await until(rig, lambda: rig.log.local_start_offset == 20)
        mount, away = tmp_path / "mount", tmp_path / "away"
        mount.rename(away)
        mount.touch()  # A file in its place: whatever is tried fails.
        rig.produce_segments(3)
        await until(rig, lambda: rig.statistics.copy_failure is not None)
        for _ in range(50):
            rig.pass_ms(100)
            await asyncio.sleep(0.01)
        assert rig.log.local_start_offset == 20
        assert rig.log.highest_remote_offset == 19
        rig.produce_segments(1)
        mount.unlink()
        away.rename(mount)
        await until(rig, lambda: rig.log.local_start_offset == 60)
        await rig.assert_everything_is_readable()

"""A flush of a partition, and a move to another log folder that comes in its middle."""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.storage.errors import DiskError
from strandline.storage.model import TopicPartition
from strandline.storage.tiering.log.unified_log import UnifiedLog

END = 10
WAIT_S_MAX = 60.0


class MovedLog:
    """A log whose folder goes away while it is flushed."""

    recovery_point = 0

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.moved = threading.Event()

    def flush(self) -> None:
        self.begun.set()
        assert self.moved.wait(30)
        raise DiskError("cannot sync t-0: No such file or directory")


def flushed(*, is_replaced: bool, callers: int) -> list[BaseException | None]:
    """What each caller of a flush gets whose log's folder went away under it."""

    async def run() -> list[BaseException | None]:
        old = MovedLog()
        log = SimpleNamespace(end_offset=END, local=old)
        with ThreadPoolExecutor(1) as syncs:
            partition = Partition(
                TopicPartition("t", 0),
                uuid.uuid4(),
                cast(UnifiedLog, log),
                0,
                syncs=syncs,
                traffic=TopicTraffic(),
            )
            asked = [asyncio.create_task(partition.flush()) for _ in range(callers)]
            assert await asyncio.to_thread(old.begun.wait, 30)
            if is_replaced:
                log.local = SimpleNamespace(recovery_point=END)
            old.moved.set()
            return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(run())


@pytest.mark.parametrize("callers", [1, 3])
def test_who_waits_for_a_flush_is_not_refused_because_of_a_move(callers: int) -> None:
    assert flushed(is_replaced=True, callers=callers) == [None] * callers


@pytest.mark.parametrize("callers", [1, 3])
def test_a_folder_that_fails_refuses_everybody_who_waits(callers: int) -> None:
    assert [type(one) for one in flushed(is_replaced=False, callers=callers)] == (
        [DiskError] * callers
    )


def test_who_waits_for_a_flush_of_what_was_cut_off_meanwhile_is_refused() -> None:
    """The log never reaches that end again, or with other records."""

    class CutLog:
        recovery_point = 0

        def flush(self) -> None:
            self.recovery_point = log.end_offset = END // 2

    async def run() -> None:
        with ThreadPoolExecutor(1) as syncs:
            partition = Partition(
                TopicPartition("t", 0),
                uuid.uuid4(),
                cast(UnifiedLog, log),
                0,
                syncs=syncs,
                traffic=TopicTraffic(),
            )
            async with asyncio.timeout(WAIT_S_MAX):
                with pytest.raises(DiskError, match="was cut below 10"):
                    await partition.flush()

    log = SimpleNamespace(end_offset=END, local=CutLog())
    asyncio.run(run())

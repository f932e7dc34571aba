"""Workers over one queue whose number changes while they work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from strandline.storage.clock import ManualClock
from strandline.storage.tiering.policy.work_queue import WorkQueue
from strandline.storage.tiering.policy.worker_pool import WorkCrew


class Steps:
    """Steps that last until `go_on`, and how many are under way."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.done: list[int] = []
        self.gate = asyncio.Event()

    async def step(self, key: int) -> bool:
        self.running.add(key)
        await self.gate.wait()
        self.running.discard(key)
        self.done.append(key)
        return False


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(count: int, check: Callable[[WorkCrew[int], Steps], Awaitable[None]]) -> None:
    async def whole() -> None:
        queue: WorkQueue[int] = WorkQueue()
        steps = Steps()
        crew = WorkCrew(count, queue, steps.step, clock=ManualClock())
        for key in range(40):
            queue.add(key)
        working = asyncio.ensure_future(crew.run())
        try:
            await settle()
            await check(crew, steps)
            steps.gate.set()
            async with asyncio.timeout(60):
                while len(steps.done) < 40:
                    await asyncio.sleep(0)
            assert sorted(steps.done) == list(range(40))
        finally:
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working

    asyncio.run(whole())


def test_as_many_steps_are_under_way_as_there_are_workers() -> None:
    async def check(crew: WorkCrew[int], steps: Steps) -> None:
        assert len(steps.running) == 3

    run(3, check)


def test_a_crew_that_grows_takes_up_more_at_once() -> None:
    async def check(crew: WorkCrew[int], steps: Steps) -> None:
        for count in (4, 5, 9, 18):
            crew.count = count
            await settle()
            assert len(steps.running) == count

    run(3, check)


def test_a_crew_that_shrinks_ends_its_steps_and_takes_up_fewer() -> None:
    async def check(crew: WorkCrew[int], steps: Steps) -> None:
        crew.count = 2
        steps.gate.set()
        await settle()
        steps.gate.clear()
        await settle()
        assert len(steps.running) <= 2

    run(8, check)


def test_a_crew_that_shrank_while_it_had_nothing_to_do_leaves_nothing_undone() -> None:
    async def whole() -> None:
        queue: WorkQueue[int] = WorkQueue()
        steps = Steps()
        crew = WorkCrew(8, queue, steps.step, clock=ManualClock())
        working = asyncio.ensure_future(crew.run())
        await settle()
        crew.count = 1
        for key in range(5):
            queue.add(key)
        await settle()
        assert len(steps.running) == 1
        steps.gate.set()
        async with asyncio.timeout(60):
            while len(steps.done) < 5:
                await asyncio.sleep(0)
        working.cancel()

    asyncio.run(whole())


def test_a_step_that_fails_by_our_mistake_ends_nothing_but_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []

    async def step(key: str) -> bool:
        if key == "wrong":
            raise ValueError("ours")
        done.append(key)
        return False

    async def whole() -> None:
        queue: WorkQueue[str] = WorkQueue()
        clock = ManualClock()
        crew = WorkCrew(1, queue, step, clock=clock)
        working = asyncio.ensure_future(crew.run())
        for key in ("wrong", "wrong", "a", "wrong", "b"):
            queue.add(key)
            await settle()
            clock.advance_ms(40_000)
        assert done == ["a", "b"]
        assert not working.done()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(whole())
    said = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert said == [{"key": "wrong"}, {"key": "wrong", "not_logged": 1}]

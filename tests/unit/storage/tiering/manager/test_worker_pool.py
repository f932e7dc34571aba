"""Workers over one queue whose number changes while they work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from strandline.storage.tiering.manager.worker_pool import WorkerPool
from tests.support.manual_clock import ManualClock


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


def run(count: int, check: Callable[[WorkerPool[int], Steps], Awaitable[None]]) -> None:
    async def whole() -> None:
        steps = Steps()
        pool = WorkerPool(count, steps.step, clock=ManualClock())
        for key in range(40):
            pool.add(key)
        working = asyncio.ensure_future(pool.run())
        try:
            await settle()
            await check(pool, steps)
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
    async def check(pool: WorkerPool[int], steps: Steps) -> None:
        assert len(steps.running) == 3

    run(3, check)


def test_a_pool_that_grows_takes_up_more_at_once() -> None:
    async def check(pool: WorkerPool[int], steps: Steps) -> None:
        for count in (4, 5, 9, 18):
            pool.resize(count)
            await settle()
            assert len(steps.running) == count

    run(3, check)


def test_a_pool_that_shrinks_ends_its_steps_and_takes_up_fewer() -> None:
    async def check(pool: WorkerPool[int], steps: Steps) -> None:
        pool.resize(2)
        steps.gate.set()
        await settle()
        steps.gate.clear()
        await settle()
        assert len(steps.running) <= 2

    run(8, check)


def test_a_pool_that_shrank_while_it_had_nothing_to_do_leaves_nothing_undone() -> None:
    async def whole() -> None:
        steps = Steps()
        pool = WorkerPool(8, steps.step, clock=ManualClock())
        working = asyncio.ensure_future(pool.run())
        await settle()
        pool.resize(1)
        for key in range(5):
            pool.add(key)
        await settle()
        assert len(steps.running) == 1
        steps.gate.set()
        async with asyncio.timeout(60):
            while len(steps.done) < 5:
                await asyncio.sleep(0)
        working.cancel()

    asyncio.run(whole())


def test_a_key_waits_once_however_often_it_is_added() -> None:
    async def whole() -> None:
        steps = Steps()
        pool = WorkerPool(1, steps.step, clock=ManualClock())
        for key in (1, 2, 1, 1):
            pool.add(key)
        assert repr(pool) == "<WorkerPool waiting=2 running=0>"
        steps.gate.set()
        working = asyncio.ensure_future(pool.run())
        await settle()
        assert steps.done == [1, 2]
        working.cancel()

    asyncio.run(whole())


def test_a_key_added_while_it_is_worked_on_comes_again_afterwards() -> None:
    async def whole() -> None:
        steps = Steps()
        pool = WorkerPool(2, steps.step, clock=ManualClock())
        working = asyncio.ensure_future(pool.run())
        pool.add(1)
        await settle()
        pool.add(1)
        await settle()
        assert repr(pool) == "<WorkerPool waiting=0 running=1>", "nobody else gets it meanwhile"
        steps.gate.set()
        await settle()
        assert steps.done == [1, 1]
        working.cancel()

    asyncio.run(whole())


def test_workers_wait_for_something_to_do() -> None:
    async def whole() -> None:
        steps = Steps()
        pool = WorkerPool(2, steps.step, clock=ManualClock())
        working = asyncio.ensure_future(pool.run())
        await settle()
        pool.add(1)
        await settle()
        pool.add(2)
        await settle()
        assert steps.running == {1, 2}
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
        clock = ManualClock()
        pool = WorkerPool(1, step, clock=clock)
        working = asyncio.ensure_future(pool.run())
        for key in ("wrong", "wrong", "a", "wrong", "b"):
            pool.add(key)
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

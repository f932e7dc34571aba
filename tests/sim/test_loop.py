"""The loop of virtual time, its clock, and the pools over it."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.sim.loop import BEGIN_MS, Stuck, VirtualClock, run
from tests.sim.pools import JobTime, TimedPool


def test_a_day_passes_at_once_and_timers_fire_in_their_order() -> None:
    fired: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        fired.append((name, asyncio.get_running_loop().time()))

    async def days() -> None:
        await asyncio.gather(wait("late", 3 * 86400.0), wait("first", 0.1), wait("then", 0.3))

    began_s = time.monotonic()
    run(days)
    assert fired == [("first", 0.1), ("then", 0.3), ("late", 3 * 86400.0)]
    assert time.monotonic() - began_s < 3600


def test_the_clock_is_the_loop_s_and_only_its_wall_time_jumps() -> None:
    async def waits() -> None:
        clock = VirtualClock()
        await asyncio.sleep(1.5)
        assert (clock.now_ms(), clock.monotonic_s()) == (BEGIN_MS + 1500, 1.5)
        clock.jump_ms(-3_600_000)
        assert (clock.now_ms(), clock.monotonic_s()) == (BEGIN_MS - 3_598_500, 1.5)

    run(waits)


def test_time_that_is_spent_within_a_turn_makes_timers_due() -> None:
    async def waits() -> None:
        clock = VirtualClock()
        waiting = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        clock.advance_ms(60_000)
        await waiting
        assert clock.monotonic_s() == 60.0

    run(waits)


def test_a_timeout_ends_what_waits_too_long() -> None:
    async def waits() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.get_running_loop().create_future()
        assert asyncio.get_running_loop().time() == 5.0

    run(waits)


def test_a_run_in_which_nothing_will_ever_happen_fails_instead_of_hanging() -> None:
    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck, match="nothing will ever happen"):
        run(waits)


def test_a_job_without_a_pool_runs_at_once() -> None:
    async def works() -> None:
        assert await asyncio.to_thread(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        assert asyncio.get_running_loop().time() == 0.0

    run(works)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_pool_works_on_as_many_jobs_as_it_has_room_for(is_late: bool) -> None:
    async def works() -> None:
        loop = asyncio.get_running_loop()
        pool = TimedPool(2, "tried", lambda _: JobTime(seconds=1.0, is_late=is_late))
        effects: list[float] = []

        async def job() -> float:
            await loop.run_in_executor(pool, lambda: effects.append(loop.time()))
            return loop.time()

        assert await asyncio.gather(*(job() for _ in range(5))) == [1.0, 1.0, 2.0, 2.0, 3.0]
        assert effects == ([1.0, 1.0, 2.0, 2.0, 3.0] if is_late else [0.0, 0.0, 1.0, 1.0, 2.0])
        assert pool.idle_part == 1.0

    run(works)


def test_a_cancelled_job_that_waits_never_runs() -> None:
    async def works() -> None:
        loop = asyncio.get_running_loop()
        pool = TimedPool(1, "tried", lambda _: JobTime(seconds=1.0))
        first = loop.run_in_executor(pool, lambda: 1)
        second = loop.run_in_executor(pool, lambda: 2)
        assert pool.waiting_count == 1
        second.cancel()
        assert await first == 1
        await asyncio.sleep(2)
        assert pool.waiting_count == 0

    run(works)

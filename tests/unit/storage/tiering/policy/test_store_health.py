"""What is known of the store: it is asked, whoever finds a failure tells, and it is said why."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from strandline.storage.errors import (
    AccessDenied,
    StoreFull,
    TierError,
    TierUnavailable,
)
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState
from strandline.storage.tiering.policy.store_health import (
    PROBE_ANSWER_S,
    PROBE_INTERVAL_S,
    REMINDER_S,
    StoreHealth,
)
from tests.sim.loop import VirtualClock
from tests.sim.pools import JobTime, TimedPool
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.storage.tiering.harness import Executors, asynchronous, virtual

INTERVAL_MS = int(PROBE_INTERVAL_S * 1000)


class Rig:
    """A store, and what is known of it."""

    def __init__(self, executors: Executors) -> None:
        self.clock, self.store = ManualClock(), MemoryStore()
        self.health = StoreHealth(self.store, executor=executors.metadata, clock=self.clock)

    async def look_after(self, ms: int) -> bool:
        self.clock.advance_ms(ms)
        return await self.health.probe_if_due()

    def ages_s(self) -> dict[str, float]:
        now_s = self.clock.monotonic_s()
        return {what: now_s - at_s for what, at_s in self.health.last_answers_s.items()}


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    executors = Executors.new()
    yield Rig(executors)
    executors.shutdown()


def test_a_store_that_is_away_is_one_reason_whichever_request_met_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = RetryState("mirror", "metadata", policy=RetryPolicy(), clock=ManualClock())
    for operation in ("put", "get", "list"):
        state.failed(TierUnavailable("key", operation))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@asynchronous
async def test_an_outage_is_logged_when_it_begins_and_when_it_ends() -> None:
    async with rig() as found:
        health, store = found.health, found.store
        assert not await health.probe_if_due(), "too early"
        store.add_fault(Fault(operation="check", error=TierUnavailable, times=2))
        health.failed(TierUnavailable("key", "put", "refused"))
        health.failed(TierUnavailable("key", "put", "refused"))
        assert not health.is_up
        assert not await health.probe_if_due(), "too early"
        came_back = [await found.look_after(500) for _ in range(10)]
        assert came_back.count(True) == 1
        assert store.count_requests("check") == 3


@asynchronous
async def test_an_idle_broker_asks_for_reads_and_for_writes_and_knows_when_they_were_answered() -> (
    None
):
    async with rig() as found:
        found.health.note_claim(None, None)
        for _ in range(3):
            assert not await found.look_after(INTERVAL_MS)
            assert found.ages_s() == {"read": 0.0, "write": 0.0}
        assert found.store.keys() == []
        found.clock.advance_ms(7000)
        assert found.ages_s() == {"read": 7.0, "write": 7.0}
        found.store.add_fault(Fault(operation="put", error=TierUnavailable, times=-1))
        await found.look_after(INTERVAL_MS)
        assert not found.health.is_up
        assert found.ages_s() == {"read": 0.0, "write": 7.0 + PROBE_INTERVAL_S}


@asynchronous
async def test_writes_are_not_tried_before_the_archive_is_this_broker_s() -> None:
    async with rig() as found:
        await found.look_after(INTERVAL_MS)
        found.health.note_claim(None, StoreFull("k", "put", "507"))
        await found.look_after(INTERVAL_MS)
        assert found.store.count_requests("put") == 0
        assert not found.health.takes_writes


@virtual
async def test_a_store_that_hangs_is_down_although_it_never_answers() -> None:
    hang = TimedPool(1, "probes", lambda _: JobTime(seconds=30.0))
    store = MemoryStore()
    health = StoreHealth(store, executor=hang, clock=VirtualClock())
    await asyncio.sleep(PROBE_INTERVAL_S)
    assert not await health.probe_if_due()
    await asyncio.sleep(1)
    assert not await health.probe_if_due()
    assert health.outage is not None
    silent_s = PROBE_INTERVAL_S + 1 + 2 * PROBE_ANSWER_S
    assert health.outage.reason == f"probe: no answer for {silent_s:.0f} s"
    assert store.count_requests("get") == 1, "one request waits for all"
    await asyncio.sleep(PROBE_INTERVAL_S)
    assert await health.probe_if_due()
    assert health.is_up


@pytest.mark.parametrize("answers_after_s", [PROBE_ANSWER_S, 30.0])
@virtual
async def test_a_refusal_that_comes_when_the_patience_ends_or_later_is_no_error_of_the_loop(
    answers_after_s: float,
) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    late = TimedPool(1, "probes", lambda _: JobTime(seconds=answers_after_s))
    store = MemoryStore()
    store.add_fault(Fault(operation="get", times=-1, error=TierUnavailable))
    health = StoreHealth(store, executor=late, clock=VirtualClock())
    watching = asyncio.create_task(health.watch(lambda: None))
    await asyncio.sleep(PROBE_INTERVAL_S + PROBE_ANSWER_S + 0.5)
    assert not health.is_up
    watching.cancel()
    await asyncio.wait((watching,))
    await asyncio.sleep(60)
    del health
    gc.collect()
    assert not told


@pytest.mark.parametrize("error", [TierUnavailable, AccessDenied, TierError])
@asynchronous
async def test_a_claim_that_fails_tells_it_and_one_that_succeeds_ends_it(
    error: type[TierError],
) -> None:
    async with rig() as found:
        assert not found.health.note_claim(error("cluster.json", "get", "why"), None)
        assert not found.health.is_up
        assert found.health.outage is not None
        assert found.health.outage.reason == "get cluster.json: why"
        # The store answers, as the folder of a volume that is not mounted does.
        assert not await found.look_after(INTERVAL_MS)
        assert not found.health.is_up
        assert found.health.note_claim(None, None)
        assert found.health.is_up


@asynchronous
async def test_reads_that_are_refused_are_an_outage_and_a_refused_write_is_not() -> None:
    async with rig() as found:
        found.health.note_claim(None, None)
        found.store.add_fault(Fault(operation="put", error=AccessDenied, times=1))
        await found.look_after(INTERVAL_MS)
        assert (found.health.is_up, found.health.takes_writes) == (True, False)
        assert await found.look_after(INTERVAL_MS), "copies go on"
        found.store.add_fault(Fault(operation="get", error=AccessDenied, times=1))
        await found.look_after(INTERVAL_MS)
        assert not found.health.is_up


@asynchronous
async def test_a_cold_read_that_fails_has_the_store_asked_at_once() -> None:
    async with rig() as found:
        await found.look_after(1000)
        assert found.store.requests == []
        found.health.doubt()
        await found.look_after(1000)
        assert found.store.count_requests("get") == 1
        assert found.health.is_up


@asynchronous
async def test_what_lasts_is_said_every_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with rig() as found:
        found.store.add_fault(Fault(operation="get", error=TierUnavailable, times=-1))
        found.health.failed(TierUnavailable("key", "put", "connection refused"))
        for _ in range(5 * int(REMINDER_S)):
            await found.look_after(1000)
            found.health.remind()
        texts = [record.message for record in caplog.records]
        assert texts[0].startswith("remote tier is unreachable")
        assert texts[1:] == ["remote tier still does not serve this broker"] * 5

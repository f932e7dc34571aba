"""An outage of the store has one reason, logged at its start and at its end."""

from __future__ import annotations

import pytest

from strandline.storage.errors import AccessDenied, TierUnavailable
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState
from strandline.storage.tiering.policy.store_health import StoreHealth
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.storage.tiering.harness import Executors, asynchronous


def test_a_store_that_is_away_is_one_reason_whichever_request_met_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = RetryState("mirror", "metadata", policy=RetryPolicy(), clock=ManualClock())
    for operation in ("put", "get", "list"):
        state.failed(TierUnavailable("key", operation))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@asynchronous
async def test_an_outage_is_logged_when_it_begins_and_when_it_ends() -> None:
    clock, store, executors = ManualClock(), MemoryStore(), Executors.new()
    health = StoreHealth(store, executor=executors.metadata, clock=clock)
    assert not await health.probe_if_due(), "nobody asks a store that is up"
    store.add_fault(Fault(operation="check", error=TierUnavailable, times=2))
    health.failed(TierUnavailable("key", "put", "refused"))
    health.failed(TierUnavailable("key", "put", "refused"))
    assert not health.is_up
    assert not await health.probe_if_due(), "too early"
    came_back = []
    for _ in range(10):
        clock.advance_ms(500)
        came_back.append(await health.probe_if_due())
    assert came_back.count(True) == 1
    assert store.count_requests("check") == 3
    store.add_fault(Fault(operation="check", error=AccessDenied))
    health.failed(TierUnavailable("key", "put", "refused"))
    clock.advance_ms(500)
    assert await health.probe_if_due(), "who refuses is there"
    executors.shutdown()

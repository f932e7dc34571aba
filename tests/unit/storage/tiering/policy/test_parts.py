"""The small parts: the waits after failures, and the points where a process may die."""

from __future__ import annotations

import logging
import subprocess
import sys
from itertools import pairwise

import pytest

from strandline.storage.clock import ManualClock
from strandline.storage.crash_points import (
    COPY_AFTER_LOG,
    COPY_AFTER_META,
    CRASH_POINTS,
    EXIT_STATUS_KILLED,
    SimulatedCrash,
    crash_point,
    simulated_crash,
)
from strandline.storage.errors import AccessDenied, ObjectCorrupt, TierUnavailable
from strandline.storage.remote.object_store.memory import Fault, MemoryStore
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState
from strandline.storage.tiering.policy.store_health import StoreHealth
from tests.unit.storage.tiering.harness import Executors, asynchronous

# --- failures ----------------------------------------------------------------------------------


def test_waits_double_up_to_the_bound_and_begin_anew_after_success() -> None:
    clock = ManualClock()
    state = RetryState("copy", "t-0", policy=RetryPolicy(jitter=0), clock=clock)
    waits_ms = []
    for _ in range(9):
        state.failed(AccessDenied("key", "put"))
        waited_ms = 0
        while not state.may_try:
            clock.advance_ms(500)
            waited_ms += 500
        waits_ms.append(waited_ms)
    assert waits_ms == [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]
    assert all(earlier <= later for earlier, later in pairwise(waits_ms))
    state.succeeded()
    assert state.failure is None
    state.failed(AccessDenied("key", "put"))
    clock.advance_ms(500)
    assert state.may_try


def test_a_reason_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    state = RetryState("copy", "t-0", policy=RetryPolicy(), clock=ManualClock())
    with caplog.at_level(logging.INFO):
        for number in range(3):
            state.failed(AccessDenied(f"key-{number}", "put"))
        state.failed(ObjectCorrupt("key", "verify"))
        state.failed(ObjectCorrupt("other", "verify"))
        state.failed(AccessDenied("key", "put"))
        state.succeeded()
        state.succeeded()
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "WARNING", "WARNING", "INFO"]


def test_a_clock_that_is_put_back_does_not_shorten_how_long_something_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An alert goes by it."""
    clock = ManualClock()
    state = RetryState("copy", "t-0", policy=RetryPolicy(), clock=clock)
    state.failed(AccessDenied("key", "put"))
    clock.advance_ms(10_000)
    clock.advance_ms(-7_200_000)
    with caplog.at_level(logging.INFO):
        state.failed(ObjectCorrupt("key", "verify"))
        state.succeeded()
    _, again, over = (vars(record)["fields"] for record in caplog.records)
    assert (again["for_s"], over["failed_for_s"]) == (10, 10)


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


# --- crash points ------------------------------------------------------------------------------


def test_a_simulated_crash_happens_at_its_point_only_and_only_inside_the_block() -> None:
    with simulated_crash(COPY_AFTER_LOG):
        crash_point(COPY_AFTER_META)
        with pytest.raises(SimulatedCrash):
            crash_point(COPY_AFTER_LOG)
    crash_point(COPY_AFTER_LOG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "status"), [(COPY_AFTER_LOG, EXIT_STATUS_KILLED), (COPY_AFTER_META, 0)]
)
def test_the_environment_makes_the_process_die_at_the_named_point(point: str, status: int) -> None:
    program = (
        "from strandline.storage.crash_points import check_environment, crash_point\n"
        "check_environment()\n"
        f"crash_point({COPY_AFTER_LOG!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"STRANDLINE_CRASH_AT": point, "PYTHONPATH": ":".join(filter(None, sys.path))},
        check=False,
        timeout=30,
    )
    assert done.returncode == status


def test_no_two_crash_points_have_one_name() -> None:
    assert len(set(CRASH_POINTS)) == len(CRASH_POINTS)

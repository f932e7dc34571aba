"""Waits after failures: they grow to a bound, and a reason is logged once."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from strandline.storage.errors import AccessDenied, ObjectCorrupt
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState
from tests.support.manual_clock import ManualClock

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

"""The believed time line under jumps of the wall clock."""

from __future__ import annotations

import pytest

from strandline.retention.jump_guard import HOLD_S, JUMP_MS_MIN, START_GAP_MS, JumpGuard
from tests.support.manual_clock import ManualClock

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


class JumpingClock(ManualClock):
    """A manual clock whose wall time can be set without time passing."""

    def jump_ms(self, delta_ms: int) -> None:
        self._now_ms += delta_ms


def test_the_guard_follows_a_clock_that_runs_evenly() -> None:
    clock = JumpingClock(START_MS)
    guard = JumpGuard(clock)
    for _ in range(5):
        clock.advance_ms(HOUR_MS)
        assert guard.now_ms() == clock.now_ms()


def test_small_steps_of_clock_discipline_are_believed() -> None:
    clock = JumpingClock(START_MS)
    guard = JumpGuard(clock)
    clock.jump_ms(JUMP_MS_MIN)
    assert guard.now_ms() == START_MS + JUMP_MS_MIN


@pytest.mark.parametrize("jump_ms", [JUMP_MS_MIN + 1, 1000 * HOUR_MS])
def test_a_jump_forward_is_not_believed_and_time_goes_on(jump_ms: int) -> None:
    clock = JumpingClock(START_MS)
    guard = JumpGuard(clock)
    clock.jump_ms(jump_ms)
    assert guard.now_ms() == START_MS
    clock.advance_ms(60_000)
    assert guard.now_ms() == START_MS + 60_000


def test_a_corrected_jump_leaves_no_trace() -> None:
    clock = JumpingClock(START_MS)
    guard = JumpGuard(clock)
    clock.jump_ms(1000 * HOUR_MS)
    guard.now_ms()
    clock.jump_ms(-1000 * HOUR_MS)
    clock.advance_ms(1000)
    assert guard.now_ms() == clock.now_ms() == START_MS + 1000


def test_a_jump_that_lasts_is_believed_in_the_end() -> None:
    clock = JumpingClock(START_MS)
    guard = JumpGuard(clock)
    clock.jump_ms(1000 * HOUR_MS)
    guard.now_ms()
    clock.advance_ms(int(HOLD_S * 1000) - 1)
    assert guard.now_ms() < START_MS + 2 * HOUR_MS
    clock.advance_ms(1)
    assert guard.now_ms() == clock.now_ms()


def test_a_clock_that_jumps_once_more_is_waited_for_anew() -> None:
    clock = JumpingClock(START_MS)
    guard = JumpGuard(clock)
    # A clock that was years behind is put right, and then goes wrong in the other direction.
    clock.jump_ms(-1000 * HOUR_MS)
    guard.now_ms()
    clock.jump_ms(1000 * HOUR_MS)
    guard.now_ms()
    clock.advance_ms(HOUR_MS - 1000)
    clock.jump_ms(24 * HOUR_MS)
    guard.now_ms()
    clock.advance_ms(2000)
    assert guard.now_ms() < START_MS
    clock.advance_ms(HOUR_MS)
    assert guard.now_ms() == clock.now_ms()


def test_a_jump_back_is_believed_at_once() -> None:
    clock = JumpingClock(START_MS)
    guard = JumpGuard(clock)
    clock.jump_ms(-1000 * HOUR_MS)
    assert guard.now_ms() == START_MS - 1000 * HOUR_MS


def test_a_clock_that_goes_back_and_forth_holds_up_by_no_more_than_it_went_back() -> None:
    """As where two time servers do not agree: age limits are late by that, and not by an hour."""
    clock = JumpingClock(START_MS)
    guard = JumpGuard(clock)
    wobble_ms = 5 * JUMP_MS_MIN
    for turn in range(24):
        clock.jump_ms(wobble_ms if turn % 2 else -wobble_ms)
        for _ in range(10):
            clock.advance_ms(60_000)
            assert 0 <= clock.now_ms() - guard.now_ms() <= wobble_ms
    clock.advance_ms(HOUR_MS)
    assert guard.now_ms() == clock.now_ms()


def test_a_start_in_another_year_goes_on_with_the_time_of_the_run_before() -> None:
    clock = JumpingClock(START_MS)
    clock.jump_ms(9000 * HOUR_MS)
    guard = JumpGuard(clock, last_ms=START_MS)
    assert guard.now_ms() == START_MS
    clock.advance_ms(60_000)
    assert guard.now_ms() == START_MS + 60_000
    # The time service was late, but it came.
    clock.jump_ms(-9000 * HOUR_MS)
    assert guard.now_ms() == START_MS + 60_000 == clock.now_ms()


def test_a_second_start_in_the_wrong_year_waits_anew() -> None:
    clock = JumpingClock(START_MS)
    clock.jump_ms(9000 * HOUR_MS)
    first = JumpGuard(clock, last_ms=START_MS)
    clock.advance_ms(HOUR_MS // 2)
    second = JumpGuard(clock, last_ms=first.now_ms())
    assert second.now_ms() == START_MS + HOUR_MS // 2


def test_after_an_absence_the_clock_is_believed_an_hour_later() -> None:
    clock = JumpingClock(START_MS)
    clock.jump_ms(9000 * HOUR_MS)
    guard = JumpGuard(clock, last_ms=START_MS)
    guard.now_ms()
    clock.advance_ms(int(HOLD_S * 1000))
    assert guard.now_ms() == clock.now_ms()


def test_a_short_absence_and_a_clock_that_was_ahead_hold_nothing_up() -> None:
    for last_ms in (START_MS - START_GAP_MS, START_MS + HOUR_MS, None):
        assert JumpGuard(JumpingClock(START_MS), last_ms=last_ms).now_ms() == START_MS

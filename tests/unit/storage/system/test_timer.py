"""Ticks come again and again, and say how late they were read."""

from __future__ import annotations

import os
import select
import time

import pytest

from strandline.storage.system.timer import Ticks

PERIOD_S = 0.001


def _await_due(ticks: Ticks) -> None:
    readable = select.poll()
    readable.register(ticks.fileno(), select.POLLIN)
    assert readable.poll(60_000)


def test_a_tick_is_due_again_and_again_until_it_is_stopped() -> None:
    ticks = Ticks()
    try:
        ticks.start(PERIOD_S, time.monotonic())
        for _ in range(3):
            _await_due(ticks)
            assert ticks.read_lateness_s(time.monotonic()) is not None
        ticks.stop()
        assert ticks.read_lateness_s(time.monotonic()) is None
    finally:
        ticks.close()


def test_what_is_not_due_is_not_late() -> None:
    ticks = Ticks()
    try:
        assert ticks.read_lateness_s(time.monotonic()) is None
        ticks.start(3600, time.monotonic())
        assert ticks.read_lateness_s(time.monotonic()) is None
    finally:
        ticks.close()


def test_lateness_is_that_of_the_oldest_unread_tick_and_counts_all_as_read() -> None:
    ticks = Ticks()
    try:
        began_s = time.monotonic()
        ticks.start(PERIOD_S, began_s)
        while time.monotonic() < began_s + 5 * PERIOD_S:
            _await_due(ticks)
        # Read as if it were exactly then: the oldest was due after one period.
        found_s = ticks.read_lateness_s(began_s + 5 * PERIOD_S)
        assert found_s == pytest.approx(4 * PERIOD_S, abs=1e-6)
        _await_due(ticks)
        now_s = time.monotonic()
        later_s = ticks.read_lateness_s(now_s)
        assert later_s is not None
        assert 0 <= later_s <= now_s - began_s - 5 * PERIOD_S
    finally:
        ticks.close()


def test_closing_gives_the_descriptor_back_once() -> None:
    ticks = Ticks()
    descriptor = ticks.fileno()
    ticks.close()
    ticks.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)

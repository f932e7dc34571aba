"""Waits grow from the first to the longest, and those of many are spread."""

from __future__ import annotations

from strandline.storage.backoff import Backoff


def test_waits_double_up_to_the_longest_however_often_it_failed() -> None:
    backoff = Backoff(0.5, 5.0)
    assert [backoff.wait_s(failures) for failures in range(1, 7)] == [0.5, 1, 2, 4, 5, 5]
    assert backoff.wait_s(10**9) == 5


def test_waits_are_spread_by_the_jitter_and_no_further() -> None:
    backoff = Backoff(10.0, 10.0, jitter=0.2)
    waits_s = {backoff.wait_s(1) for _ in range(100)}
    assert len(waits_s) > 1
    assert all(8 <= wait_s <= 12 for wait_s in waits_s)

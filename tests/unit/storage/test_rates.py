"""A rate is what Kafka calls one, and a pause is as long as it must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.quotas.quotas import QuotaWindows
from strandline.storage.rates import TokenBucket, WindowRate

START_MS = 1_700_000_000_000
START_S = START_MS / 1000
WINDOWS = QuotaWindows()


def rate_of(windows: QuotaWindows) -> WindowRate:
    return WindowRate(count=windows.count, length_ms=windows.length_ms, counts_idle=True)


def test_a_young_rate_counts_as_if_the_time_before_had_been_idle() -> None:
    rate = rate_of(WINDOWS)
    rate.record(1000, START_MS)
    # Ten full windows, and nothing of the current one.
    assert rate.elapsed_ms(START_MS) == 10_000
    assert rate.per_second(START_MS) == 100


def test_a_pause_brings_the_rate_down_to_its_bound() -> None:
    rate = rate_of(WINDOWS)
    rate.record(3000, START_MS)
    assert rate.throttle_ms(100, START_MS) == 20_000
    assert rate.throttle_ms(300, START_MS) == 0
    assert rate.throttle_ms(300.1, START_MS) == 0


def test_what_is_older_than_all_windows_is_forgotten() -> None:
    rate = rate_of(WINDOWS)
    rate.record(3000, START_MS)
    assert rate.per_second(START_MS + 10_999) > 0
    assert rate.per_second(START_MS + 11_000) == 0


def test_what_is_taken_back_does_not_count() -> None:
    rate = rate_of(WINDOWS)
    rate.record(3000, START_MS)
    rate.record(-3000, START_MS)
    assert rate.throttle_ms(1, START_MS) == 0


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 3000)), min_size=1, max_size=60),
    st.integers(1000, 2000),
)
def test_a_client_that_pauses_as_told_keeps_its_rate(
    requests: list[tuple[int, int]], bound: int
) -> None:
    """Over any time: at most the bound, and one burst of all windows.

    For requests that are small beside what a second allows; Kafka forgets one that is larger than
    all windows together when they are over, and so do we.
    """
    rate, now_ms, sent, largest = rate_of(WINDOWS), START_MS, 0, 0
    for size, gap_ms in requests:
        now_ms += gap_ms
        rate.record(size, now_ms)
        sent += size
        largest = max(largest, size)
        now_ms += rate.throttle_ms(bound, now_ms)
    elapsed_s = (now_ms - START_MS) / 1000
    burst_s = WINDOWS.count * WINDOWS.length_ms / 1000
    assert sent <= bound * (elapsed_s + burst_s) + largest + len(requests)


def test_a_bucket_gives_a_burst_and_is_paid_back_at_its_rate() -> None:
    bucket = TokenBucket()
    assert bucket.tokens(START_S, per_s=2, burst=20) == 20
    bucket.take(26)
    assert bucket.debt_ms(2) == 3000
    bucket.tokens(START_S + 2, per_s=2, burst=20)
    assert bucket.debt_ms(2) == 1000
    bucket.tokens(START_S + 3, per_s=2, burst=20)
    assert bucket.debt_ms(2) == 0
    assert bucket.tokens(START_S + 3600, per_s=2, burst=20) == 20


@pytest.mark.parametrize("count", [1, 11, 100])
def test_the_number_of_windows_is_what_was_asked_for(count: int) -> None:
    rate = rate_of(QuotaWindows(count=count, length_ms=500))
    rate.record(1, START_MS)
    assert rate.elapsed_ms(START_MS + 499) == (count - 1) * 500 + 499

"""connection_creation_rate and max.connection.creation.rate: who waits, and for how long."""

from __future__ import annotations

from strandline.broker.quotas.quotas import ClientQuotas, ConnectionRates
from strandline.broker.quotas.rates import QuotaWindows
from strandline.storage.clock import ManualClock

TWO_PER_SECOND = ConnectionRates(all_listeners=2.0, by_listener={})


def quotas(clock: ManualClock) -> ClientQuotas:
    return ClientQuotas(clock, QuotaWindows())


def test_no_rate_makes_nobody_wait() -> None:
    found = quotas(ManualClock())
    unlimited = ConnectionRates(all_listeners=None, by_listener={})
    assert not any(found.accepted("A", unlimited) for _ in range(1000))


def test_a_burst_of_what_the_windows_hold_is_free_and_then_one_waits() -> None:
    clock = ManualClock()
    found = quotas(clock)
    # Ten windows of a second at two each.
    assert [found.accepted("A", TWO_PER_SECOND) for _ in range(20)] == [0] * 20
    assert found.accepted("B", TWO_PER_SECOND) == 500


def test_no_wait_is_longer_than_a_window() -> None:
    found = quotas(ManualClock())
    assert max(found.accepted("A", TWO_PER_SECOND) for _ in range(100)) == 1000


def test_over_time_the_rate_is_kept_by_those_who_wait_as_they_are_told() -> None:
    clock = ManualClock()
    found = quotas(clock)
    began_ms = clock.now_ms()
    for _ in range(220):
        clock.advance_ms(found.accepted("A", TWO_PER_SECOND))
    assert 90_000 <= clock.now_ms() - began_ms <= 110_000


def test_a_listener_of_its_own_rate_waits_for_whichever_is_slower() -> None:
    found = quotas(ManualClock())
    rates = ConnectionRates(all_listeners=100.0, by_listener={"SLOW": 1.0})
    assert [found.accepted("SLOW", rates) for _ in range(11)] == [0] * 10 + [1000]
    assert found.accepted("FAST", rates) == 0

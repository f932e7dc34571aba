"""Time in which the controller could not hear its brokers does not count against them."""

from __future__ import annotations

from strandline.broker.controller.attended_time import GAP_MAX_S, AttendedTime
from strandline.broker.controller.sessions import BrokerSessions, Session
from tests.support.manual_clock import ManualClock
from tests.unit.broker.controller.cluster_of_brokers import broker, cluster


def test_time_that_is_looked_at_often_is_that_of_the_clock() -> None:
    clock = ManualClock()
    attended = AttendedTime(clock.monotonic_s)
    for _ in range(100):
        clock.advance_ms(500)
        attended.now_s()
    assert attended.now_s() == 50


def test_a_process_that_stood_still_counts_one_gap() -> None:
    clock = ManualClock()
    attended = AttendedTime(clock.monotonic_s)
    clock.advance_ms(500)
    assert attended.now_s() == 0.5
    clock.advance_ms(3_600_000)
    assert attended.now_s() == 0.5 + GAP_MAX_S
    assert attended.now_s() == 0.5 + GAP_MAX_S


def test_a_controller_that_was_stopped_for_a_minute_fences_nobody() -> None:
    clock = ManualClock()
    attended = AttendedTime(clock.monotonic_s)
    sessions = BrokerSessions(cluster(broker(1), broker(2)), timeout_s=9, now_s=attended.now_s())
    clock.advance_ms(60_000)
    assert sessions.expire(attended.now_s()) is None
    assert sessions.session((1, 0), attended.now_s()) is not Session.NONE
    # Broker 1 is heard again, broker 2 is gone: its session ends as if nothing had been.
    for _ in range(20):
        clock.advance_ms(500)
        sessions.heard((1, 0), attended.now_s())
    assert sessions.expire(attended.now_s()) == (2, 0)
    assert sessions.expire(attended.now_s()) is None

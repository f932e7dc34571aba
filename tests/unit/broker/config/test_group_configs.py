"""What a single group may be set to, and what holds for its members."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.config.group_configs import check_group_change, member_times
from tests.unit.broker.config.loaded import load

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"consumer.session.timeout": "50000"}, f"Unknown group config name.*{SESSION}"),
        ({SESSION: "soon"}, "expected a whole number"),
        ({SESSION: "44999"}, "expected 45000 to 60000"),
        ({HEARTBEAT: "15001"}, "expected 5000 to 15000"),
    ],
)
def test_what_a_group_could_not_run_with_is_refused(
    properties: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Refusal, match=complaint):
        check_group_change(load(), properties)
    check_group_change(load(), {SESSION: "50000", HEARTBEAT: "6000"})


def test_a_session_lasts_longer_than_the_time_between_heartbeats() -> None:
    config = load("group.consumer.min.session.timeout.ms=5000")
    with pytest.raises(Refusal, match="must be greater than"):
        check_group_change(config, {SESSION: "6000", HEARTBEAT: "6000"})


def test_what_was_stored_is_held_within_the_brokers_bounds() -> None:
    """They may have changed since, and another release may have stored what this one lacks."""
    times = member_times(load(), {SESSION: "1", HEARTBEAT: "999999", "unknown": "1"})
    assert (times.session_timeout_ms, times.heartbeat_interval_ms) == (45_000, 15_000)

"""Groups are looked at in time, and once per alarm."""

from __future__ import annotations

from strandline.broker.coordination.runtime.deadlines import GroupDeadlines


def test_alarms_ring_in_order_once_their_time_has_come() -> None:
    alarms = GroupDeadlines()
    assert alarms.arm("b", 200)
    assert alarms.arm("a", 100)
    assert not alarms.arm("c", 300)
    assert alarms.next_ms == 100
    assert list(alarms.ring(99)) == []
    assert list(alarms.ring(200)) == ["a", "b"]
    assert list(alarms.ring(200)) == []
    assert alarms.next_ms == 300


def test_an_earlier_alarm_replaces_a_later_one_and_not_the_reverse() -> None:
    alarms = GroupDeadlines()
    alarms.arm("a", 200)
    assert not alarms.arm("a", 300)
    assert alarms.arm("a", 100)
    assert list(alarms.ring(150)) == ["a"]
    assert list(alarms.ring(1000)) == []


def test_a_group_can_be_armed_again_after_its_alarm() -> None:
    alarms = GroupDeadlines()
    alarms.arm("a", 100)
    list(alarms.ring(100))
    alarms.arm("a", 150)
    assert list(alarms.ring(150)) == ["a"]


def test_a_group_that_fails_when_it_is_due_takes_no_others_with_it() -> None:
    alarms = GroupDeadlines()
    for group_id in "abc":
        alarms.arm(group_id, 100)
    for group_id in alarms.ring(100):
        assert group_id == "a"
        break  # as the loop does, which begins anew after a failure
    assert list(alarms.ring(100)) == ["b", "c"]

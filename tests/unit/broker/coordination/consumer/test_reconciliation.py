"""What a member is to give back comes first, and nobody gets what another still has."""

from __future__ import annotations

from strandline.broker.coordination.model.classic_messages import GroupState
from tests.unit.broker.coordination.consumer_trace import ConsumerTrace


def test_the_first_member_gets_everything_at_once() -> None:
    trace = ConsumerTrace()
    trace.join("a")
    trace.ack("a")
    trace.beat("a")
    trace.shows("""
        join a    a: epoch 1 has t:0-3
        ack a     a: epoch 1
        beat a    a: epoch 1
    """)
    assert trace.group.state is GroupState.STABLE


def test_a_partition_is_revoked_before_another_member_gets_it() -> None:
    trace = ConsumerTrace()
    trace.join("a")
    trace.ack("a")
    trace.join("b")
    trace.beat("b")
    trace.beat("a")
    trace.beat("b")
    trace.ack("a")
    trace.beat("b")
    trace.ack("b")
    trace.shows("""
        join a    a: epoch 1 has t:0-3
        ack a     a: epoch 1
        join b    b: epoch 2 has -
        beat b    b: epoch 2
        beat a    a: epoch 1 has t:0-1
        beat b    b: epoch 2
        ack a     a: epoch 2
        beat b    b: epoch 2 has t:2-3
        ack b     b: epoch 2
    """)
    assert trace.group.state is GroupState.STABLE


def test_a_member_that_says_at_once_that_it_has_nothing_to_give_moves_on_at_once() -> None:
    trace = ConsumerTrace()
    trace.join("a")
    trace.join("b")
    trace.skip()
    trace.clients["a"].told = {}
    trace.ack("a")
    trace.beat("b")
    trace.shows("""
        ack a     a: epoch 2 has t:0-1
        beat b    b: epoch 2 has t:2-3
    """)


def test_a_member_that_subscribes_to_less_gives_the_rest_back() -> None:
    trace = ConsumerTrace("t:2 u:2")
    trace.join("a", "t u")
    trace.ack("a")
    trace.subscribe("a", "u")
    trace.ack("a")
    trace.shows("""
        join a         a: epoch 1 has t:0-1 u:0-1
        ack a          a: epoch 1
        subscribe a    a: epoch 1 has u:0-1
        ack a          a: epoch 2
    """)

"""Clocks of a KIP-848 group: sessions, rebalance timeouts, searches for topics."""

from __future__ import annotations

from tests.unit.broker.coordination.consumer_trace import ConsumerTrace


def test_a_silent_member_is_fenced_when_its_session_ends() -> None:
    trace = ConsumerTrace()
    trace.join("a")
    trace.join("b")
    trace.after(30_000)
    trace.beat("a")
    trace.ack("a")
    trace.after(30_000)
    trace.beat("a")
    trace.shows("""
        join a      a: epoch 1 has t:0-3
        join b      b: epoch 2 has -
        beat a      a: epoch 1 has t:0-1
        ack a       a: epoch 2
        at 45000    fenced b
        beat a      a: epoch 3 has t:0-3
    """)


def test_a_member_that_lives_but_does_not_give_back_is_fenced_after_its_rebalance_timeout() -> None:
    trace = ConsumerTrace()
    trace.join("a", rebalance_ms=10_000)
    trace.ack("a")
    trace.join("b")
    trace.beat("a")
    trace.after(5_000)
    trace.beat("a")
    trace.after(6_000)
    trace.beat("b")
    trace.shows("""
        join a      a: epoch 1 has t:0-3
        ack a       a: epoch 1
        join b      b: epoch 2 has -
        beat a      a: epoch 1 has t:0-1
        beat a      a: epoch 1
        at 10000    fenced a
        beat b      b: epoch 3 has t:0-3
    """)


def test_sessions_and_rebalance_timeouts_begin_anew_after_a_restart() -> None:
    trace = ConsumerTrace()
    trace.join("a", rebalance_ms=10_000)
    trace.ack("a")
    trace.join("b")
    trace.beat("a")
    trace.after(8_000)
    trace.restart()
    trace.skip()
    trace.after(9_000)
    trace.beat("b")
    trace.after(2_000)
    trace.after(50_000)
    trace.shows("""
        beat b      b: epoch 2
        at 18000    fenced a
        at 62000    fenced b
    """)


def test_a_static_member_that_does_not_come_back_is_fenced() -> None:
    trace = ConsumerTrace()
    trace.join("a", instance="i")
    trace.join("b")
    trace.leave("a", for_a_while=True)
    trace.skip()
    trace.after(20_000)
    trace.beat("b")
    trace.after(25_000)
    trace.beat("b")
    trace.shows("""
        beat b      b: epoch 2
        at 45000    fenced a
        beat b      b: epoch 3 has t:0-3
    """)


def test_topics_of_a_regular_expression_are_assigned_once_they_are_found() -> None:
    trace = ConsumerTrace("orders-eu:1 orders-us:1 other:1")
    trace.join("a", "", regex="orders-.*")
    trace.search()
    trace.beat("a")
    trace.create("orders-jp", 1)
    trace.beat("a")
    trace.search()
    trace.after(10_001)
    trace.search()
    trace.beat("a")
    trace.shows("""
        join a    a: epoch 1 has -
        search    orders-.* finds orders-eu orders-us
        beat a    a: epoch 2 has orders-eu:0 orders-us:0
        beat a    a: epoch 2
        search    -
        search    orders-.* finds orders-eu orders-jp orders-us
        beat a    a: epoch 3 has orders-eu:0 orders-jp:0 orders-us:0
    """)


def test_an_expression_that_another_member_brought_is_known_already() -> None:
    trace = ConsumerTrace("t1:1 t2:1")
    trace.join("a", "", regex="t.")
    trace.search()
    trace.beat("a")
    trace.ack("a")
    trace.skip()
    trace.join("b", "", regex="t.")
    trace.search()
    trace.beat("a")
    trace.ack("a")
    trace.beat("b")
    trace.shows("""
        join b    b: epoch 3 has -
        search    -
        beat a    a: epoch 2 has t2:0
        ack a     a: epoch 3
        beat b    b: epoch 3 has t1:0
    """)

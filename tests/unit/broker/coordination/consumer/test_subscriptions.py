"""What members of a KIP-848 group read: topics that come and go, and regular expressions."""

from __future__ import annotations

from tests.unit.broker.coordination.consumer_trace import ConsumerTrace

# --- subscriptions and topics ----------------------------------------------------------------


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


def test_new_partitions_and_topics_that_come_later_are_assigned() -> None:
    trace = ConsumerTrace("t:1")
    trace.join("a", "t later")
    trace.ack("a")
    trace.grow("t", 3)
    trace.beat("a")
    trace.create("later", 1)
    trace.beat("a")
    trace.create("other", 1)
    trace.beat("a")
    trace.shows("""
        join a    a: epoch 1 has t:0
        ack a     a: epoch 1
        beat a    a: epoch 2 has t:0-2
        beat a    a: epoch 3 has later:0 t:0-2
        beat a    a: epoch 3
    """)


def test_a_deleted_topic_is_taken_away() -> None:
    trace = ConsumerTrace("t:1 u:1")
    trace.join("a", "t u")
    trace.ack("a")
    trace.delete("u")
    trace.beat("a")
    trace.ack("a")
    trace.shows("""
        join a    a: epoch 1 has t:0 u:0
        ack a     a: epoch 1
        beat a    a: epoch 1 has t:0
        ack a     a: epoch 2
    """)


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    trace = ConsumerTrace("t:2 u:2")
    trace.join("a", "t u", assignor="range")
    trace.join("b", "t u")
    trace.beat("a")
    trace.ack("a")
    trace.beat("b")
    trace.shows("""
        join a    a: epoch 1 has t:0-1 u:0-1
        join b    b: epoch 2 has -
        beat a    a: epoch 1 has t:0 u:0
        ack a     a: epoch 2
        beat b    b: epoch 2 has t:1 u:1
    """)


# --- regular expressions ---------------------------------------------------------------------


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


def test_an_expression_without_readers_is_forgotten() -> None:
    trace = ConsumerTrace("t1:1 t2:1")
    trace.join("a", "", regex="t.")
    trace.search()
    assert set(trace.group.roster.regexes) == {"t."}
    trace.subscribe("a", "t2", regex="")
    assert not trace.group.roster.regexes
    trace.join("b", "", regex="t.")
    trace.leave("b")
    assert not trace.group.roster.regexes


def test_an_expression_that_is_none_is_refused() -> None:
    trace = ConsumerTrace()
    trace.join("a", "", regex="(")
    trace.join("b", "", regex="(?=look)ahead")
    trace.join("c", "", regex="x" * 5000)
    trace.shows("""
        join a    INVALID_REGULAR_EXPRESSION
        join b    INVALID_REGULAR_EXPRESSION
        join c    INVALID_REGULAR_EXPRESSION
    """)

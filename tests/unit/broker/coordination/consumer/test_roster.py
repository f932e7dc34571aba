"""What the records of a KIP-848 group say, whatever became of its topics and its log."""

from __future__ import annotations

from tests.unit.broker.coordination.consumer_trace import ConsumerTrace


def test_a_group_goes_on_where_it_was_after_a_restart_and_compaction() -> None:
    trace = ConsumerTrace()
    trace.join("a")
    trace.ack("a")
    trace.join("b")
    trace.beat("a")
    trace.compact()
    trace.restart()
    trace.skip()
    trace.beat("b")
    trace.ack("a")
    trace.beat("b")
    trace.shows("""
        beat b    b: epoch 2
        ack a     a: epoch 2
        beat b    b: epoch 2 has t:2-3
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

"""Members of a KIP-848 group: what each is told, step by step."""

from __future__ import annotations

import random

import pytest

from strandline.broker.coordination.values.consumer_values import ConsumerRules
from strandline.broker.coordination.values.group_values import GroupState
from tests.unit.broker.coordination.consumer_trace import Client, ConsumerTrace


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


def test_those_who_stay_keep_what_they_have_when_one_leaves() -> None:
    trace = ConsumerTrace("t:6")
    for who in "abc":
        trace.join(who)
        settle(trace)
    trace.skip()
    trace.leave("b")
    trace.beat("a")
    trace.beat("c")
    trace.shows("""
        leave b    b: epoch -1
        beat a     a: epoch 4 has t:0-1,3
        beat c     c: epoch 4 has t:2,4-5
    """)


def settle(trace: ConsumerTrace) -> None:
    """Everybody gives back and takes over what there is to."""
    for _ in range(3):
        for who in trace.clients:
            trace.beat(who)
            trace.ack(who)


def test_the_last_member_leaves_an_empty_group() -> None:
    trace = ConsumerTrace()
    trace.join("a")
    trace.leave("a")
    assert trace.group.state is GroupState.EMPTY
    trace.join("b")
    trace.shows("""
        join a     a: epoch 1 has t:0-3
        leave a    a: epoch -1
        join b     b: epoch 3 has t:0-3
    """)


def test_a_member_may_join_before_it_wants_any_topic() -> None:
    trace = ConsumerTrace()
    trace.join("a", topics="")
    trace.beat("a")
    trace.join("b")
    trace.shows("""
        join a    a: epoch 1 has -
        beat a    a: epoch 1
        join b    b: epoch 2 has t:0-3
    """)


# --- epochs ----------------------------------------------------------------------------------


def test_an_answer_that_was_lost_is_given_again() -> None:
    trace = ConsumerTrace()
    trace.join("a")
    trace.ack("a")
    trace.join("b")
    trace.beat("a")
    trace.ack("a")
    trace.skip()
    trace.ack("a", epoch=1)
    trace.shows("ack a   a: epoch 2")


def test_a_member_in_an_epoch_that_is_long_over_is_fenced_and_comes_back() -> None:
    trace = ConsumerTrace()
    trace.join("a")
    trace.ack("a")
    trace.skip()
    trace.beat("a", epoch=7)
    trace.beat("a", epoch=0)
    trace.join("a")
    trace.shows("""
        beat a    FENCED_MEMBER_EPOCH
        beat a    INVALID_REQUEST
        join a    a: epoch 1 has t:0-3
    """)


def test_a_previous_epoch_is_accepted_only_with_a_part_of_what_was_given() -> None:
    trace = ConsumerTrace()
    trace.join("a")
    trace.ack("a")
    trace.join("b")
    trace.beat("a")
    trace.ack("a")
    trace.skip()
    topic_id = trace.image.topics["t"].topic_id
    trace.clients["a"].told = {topic_id: frozenset(range(4))}
    trace.ack("a", epoch=1)
    trace.shows("ack a   FENCED_MEMBER_EPOCH")


def test_who_is_no_member_is_told_so() -> None:
    trace = ConsumerTrace()
    trace.clients["x"] = Client(epoch=3)
    trace.beat("x")
    trace.join("a")
    trace.beat("x")
    trace.shows("""
        beat x    GROUP_ID_NOT_FOUND
        join a    a: epoch 1 has t:0-3
        beat x    UNKNOWN_MEMBER_ID
    """)


# --- time ------------------------------------------------------------------------------------


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


# --- static members --------------------------------------------------------------------------


def test_a_static_member_that_comes_back_gets_what_it_had() -> None:
    trace = ConsumerTrace()
    trace.join("a", instance="i")
    trace.join("b")
    trace.beat("a")
    trace.ack("a")
    trace.beat("b")
    trace.ack("b")
    trace.skip()
    trace.leave("a", for_a_while=True)
    trace.beat("b")
    trace.join("a2", instance="i")
    trace.beat("b")
    trace.shows("""
        leave a    a: epoch -2
        beat b     b: epoch 2
        join a2    a2: epoch 2 has t:0-1
        beat b     b: epoch 2
    """)


def test_an_instance_id_is_given_to_one_member_at_a_time() -> None:
    trace = ConsumerTrace()
    trace.join("a", instance="i")
    trace.join("a2", instance="i")
    trace.clients.pop("a2")
    trace.leave("a", for_a_while=True)
    trace.join("a2", instance="i")
    trace.clients["a"] = Client(epoch=1, instance="i")
    trace.beat("a")
    trace.shows("""
        join a     a: epoch 1 has t:0-3
        join a2    UNRELEASED_INSTANCE_ID
        leave a    a: epoch -2
        join a2    a2: epoch 1 has t:0-3
        beat a     FENCED_INSTANCE_ID
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


# --- limits and restarts ---------------------------------------------------------------------


def test_a_full_group_takes_no_more_members() -> None:
    trace = ConsumerTrace(rules=ConsumerRules(size_max=1))
    trace.join("a")
    trace.join("b")
    trace.beat("a")
    trace.shows("""
        join a    a: epoch 1 has t:0-3
        join b    GROUP_MAX_SIZE_REACHED
        beat a    a: epoch 1
    """)


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


@pytest.mark.parametrize("seed", range(12))
def test_whatever_members_do_nothing_is_read_twice_and_in_the_end_all_is_read(seed: int) -> None:
    """The trace checks after every step that no partition has two readers."""
    chance = random.Random(seed)
    trace = ConsumerTrace("t:5 u:3 v:1", reads_log_every=10)
    names = iter(range(10_000))
    for _ in range(120):
        who = chance.choice(list(trace.clients)) if trace.clients else None
        action = chance.random()
        if who is None or (action < 0.15 and len(trace.clients) < 8):
            topics = chance.choice(["t", "t u", "u v", "t u v"])
            assignor = chance.choice([None, "uniform", "range"])
            trace.join(f"m{next(names)}", topics, assignor=assignor)
        elif action < 0.25:
            trace.leave(who)
        elif action < 0.32:
            trace.subscribe(who, chance.choice(["t", "t u", "v", "u v"]))
        elif action < 0.35:
            trace.after(chance.choice([1_000, 20_000, 46_000]))
        elif action < 0.37:
            trace.grow("u", trace.image.topics["u"].partition_count + 1)
        elif action < 0.39:
            trace.restart()
        elif action < 0.42:
            trace.compact()
        elif action < 0.7:
            trace.beat(who)
        else:
            trace.ack(who)
    if not trace.clients:
        trace.join("last", "t u v")
    settle(trace)
    settle(trace)
    assert trace.group.state is GroupState.STABLE
    read = {partition for client in trace.clients.values() for partition in client.reads()}
    wanted = {
        (topic.topic_id, partition)
        for name in {name for client in trace.clients.values() for name in client.topics}
        for topic in [trace.image.topics[name]]
        for partition in range(topic.partition_count)
    }
    assert read == wanted, "\n".join(trace.lines)

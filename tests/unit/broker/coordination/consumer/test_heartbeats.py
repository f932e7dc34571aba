"""What becomes of a heartbeat: epochs, identities, limits, and who leaves."""

from __future__ import annotations

from strandline.broker.coordination.model.classic_messages import GroupState
from strandline.broker.coordination.model.consumer_messages import ConsumerRules
from tests.unit.broker.coordination.consumer_trace import Client, ConsumerTrace


def test_those_who_stay_keep_what_they_have_when_one_leaves() -> None:
    trace = ConsumerTrace("t:6")
    for who in "abc":
        trace.join(who)
        trace.settle()
    trace.skip()
    trace.leave("b")
    trace.beat("a")
    trace.beat("c")
    trace.shows("""
        leave b    b: epoch -1
        beat a     a: epoch 4 has t:0-1,3
        beat c     c: epoch 4 has t:2,4-5
    """)


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

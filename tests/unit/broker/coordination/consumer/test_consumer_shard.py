"""Members are known by what the log says, and commit in the epochs they may (KIP-1251)."""

from __future__ import annotations

import random

import pytest

from strandline.broker.coordination.model.offset_messages import CommitRequest, OffsetToCommit
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.coordination.consumer_trace import Client, ConsumerTrace


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
    trace.settle()
    trace.settle()
    trace.check_that_all_is_read()


def after_a_second_member(trace: ConsumerTrace) -> None:
    """Two members: a had t:0-3 in epoch 1 and kept t:0-1, b was given t:2-3 in epoch 2."""
    trace.join("a")
    trace.join("b")
    trace.beat("a")
    trace.ack("a")
    trace.beat("b")
    trace.skip()


def test_a_member_commits_what_it_kept_in_the_epoch_before_it_heard_of_the_new_one() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    trace.commit("a", "t:0,1", epoch=2)
    trace.commit("a", "t:0,1", epoch=1)
    trace.shows("""
        commit a t:0,1 in 2  NONE
        commit a t:0,1 in 1  NONE
    """)


def test_an_epoch_from_before_the_partition_was_given_or_from_the_future_is_stale() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    trace.commit("a", "t:0", epoch=0)
    trace.commit("a", "t:0", epoch=-1)
    trace.commit("a", "t:0", epoch=3)
    trace.commit("b", "t:2", epoch=1)
    trace.shows("""
        commit a t:0 in 0   STALE_MEMBER_EPOCH
        commit a t:0 in -1  STALE_MEMBER_EPOCH
        commit a t:0 in 3   STALE_MEMBER_EPOCH
        commit b t:2 in 1   STALE_MEMBER_EPOCH
    """)


def test_what_the_member_gave_away_cannot_be_committed_in_an_older_epoch() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    trace.commit("a", "t:2", epoch=1)
    trace.commit("a", "gone:0", epoch=1)
    trace.shows("""
        commit a t:2 in 1     STALE_MEMBER_EPOCH
        commit a gone:0 in 1  STALE_MEMBER_EPOCH
    """)


def test_one_partition_that_is_not_the_members_refuses_the_whole_commit_as_kafka_does() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    trace.commit("a", "t:0,2", epoch=1)
    trace.shows("commit a t:0,2 in 1 STALE_MEMBER_EPOCH")
    assert trace.shard.offsets_of("g") is None


def test_metadata_that_is_too_large_is_told_without_a_look_at_the_epoch() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    topic_id = trace.image.topics["t"].topic_id
    request = CommitRequest(
        member_id="a",
        generation=1,
        offsets=(
            OffsetToCommit("t", 0, 5, topic_id=topic_id),
            OffsetToCommit("t", 2, 5, metadata="x" * 101, topic_id=topic_id),
        ),
    )
    decision = trace.shard.commit("g", request, trace.now)
    assert decision.error_codes == (ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE)


def test_what_is_to_be_given_back_is_committed_until_it_is() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    trace.join("c")
    trace.join("d")
    trace.beat("a")
    trace.commit("a", "t:0,1", epoch=1)
    trace.ack("a")
    trace.commit("a", "t:1", epoch=1)
    trace.commit("a", "t:0", epoch=1)
    trace.shows("""
        join c               c: epoch 3 has -
        join d               d: epoch 4 has -
        beat a               a: epoch 2 has t:0
        commit a t:0,1 in 1  NONE
        ack a                a: epoch 4
        commit a t:1 in 1    STALE_MEMBER_EPOCH
        commit a t:0 in 1    NONE
    """)


def test_a_partition_that_left_and_came_back_counts_from_when_it_came_back() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    trace.leave("b")
    trace.beat("a")
    trace.commit("a", "t:0,1", epoch=1)
    trace.commit("a", "t:2,3", epoch=1)
    trace.commit("a", "t:2,3", epoch=2)
    trace.join("b")
    trace.ack("a")
    trace.commit("a", "t:0", epoch=1)
    trace.shows("""
        leave b               b: epoch -1
        beat a                a: epoch 3 has t:0-3
        commit a t:0,1 in 1   NONE
        commit a t:2,3 in 1   STALE_MEMBER_EPOCH
        commit a t:2,3 in 2   STALE_MEMBER_EPOCH
        join b                b: epoch 4 has -
        ack a                 a: epoch 3 has t:0-1
        commit a t:0 in 1     NONE
    """)


def test_the_epochs_outlive_the_coordinator() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    trace.compact()
    trace.restart()
    trace.commit("a", "t:0,1", epoch=1)
    trace.commit("a", "t:2", epoch=1)
    trace.commit("b", "t:2", epoch=1)
    trace.shows("""
        commit a t:0,1 in 1  NONE
        commit a t:2 in 1    STALE_MEMBER_EPOCH
        commit b t:2 in 1    STALE_MEMBER_EPOCH
    """)


def test_a_fenced_member_that_comes_back_has_its_partitions_since_then() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    trace.beat("a", epoch=7)
    trace.join("a")
    trace.commit("a", "t:0", epoch=1)
    trace.commit("a", "t:0", epoch=2)
    trace.shows("""
        beat a           FENCED_MEMBER_EPOCH
        join a           a: epoch 2 has t:0-1
        commit a t:0 in 1  STALE_MEMBER_EPOCH
        commit a t:0 in 2  NONE
    """)


def test_a_member_that_was_taken_out_is_unknown_in_every_epoch() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    trace.leave("a")
    trace.beat("b")
    trace.commit("a", "t:0", epoch=1)
    trace.commit("b", "t:0", epoch=2)
    trace.commit("b", "t:2", epoch=2)
    trace.shows("""
        leave a            a: epoch -1
        beat b             b: epoch 3 has t:0-3
        commit a t:0 in 1  UNKNOWN_MEMBER_ID
        commit b t:0 in 2  STALE_MEMBER_EPOCH
        commit b t:2 in 2  NONE
    """)


def test_a_static_member_that_is_away_commits_nothing_and_its_successor_what_it_took_over() -> None:
    trace = ConsumerTrace()
    trace.join("a", instance="i")
    trace.join("b")
    trace.ack("a")
    trace.beat("b")
    trace.skip()
    trace.leave("a", for_a_while=True)
    trace.commit("a", "t:0", epoch=1)
    trace.join("a2", instance="i")
    trace.commit("a", "t:0", epoch=2)
    trace.commit("a2", "t:0,1")
    trace.join("c")
    trace.beat("a2")
    trace.commit("a2", "t:0,1")
    trace.shows("""
        leave a              a: epoch -2
        commit a t:0 in 1    STALE_MEMBER_EPOCH
        join a2              a2: epoch 2 has t:0-1
        commit a t:0 in 2    UNKNOWN_MEMBER_ID
        commit a2 t:0,1 in 2 NONE
        join c               c: epoch 3 has -
        beat a2              a2: epoch 2 has t:0
        commit a2 t:0,1 in 2 NONE
    """)
    current = trace.group.roster.current_of("a2")
    assert current.assignment_epoch(trace.image.topics["t"].topic_id, 0) == 0


def test_a_classic_member_of_a_mixed_group_commits_what_it_kept_in_its_older_generation() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1,2,3"})
    trace.join("b")
    trace.classic_join("a")
    trace.classic_sync("a")
    trace.classic_join("a")
    trace.skip()
    trace.commit("a", "t:0,1")
    trace.commit("a", "t:0,1", epoch=3)
    trace.commit("a", "t:2", epoch=3)
    trace.commit("a", "t:0", epoch=2)
    trace.commit("a", "t:0", epoch=9)
    trace.shows("""
        commit a t:0,1 in 4  NONE
        commit a t:0,1 in 3  NONE
        commit a t:2 in 3    ILLEGAL_GENERATION
        commit a t:0 in 2    ILLEGAL_GENERATION
        commit a t:0 in 9    ILLEGAL_GENERATION
    """)


def test_offsets_are_fetched_in_the_members_own_epoch_alone() -> None:
    trace = ConsumerTrace()
    after_a_second_member(trace)
    consumers, group = trace.shard.consumers, trace.group
    assert consumers.check_fetch(group, member_id="a", member_epoch=2) is ErrorCode.NONE
    for epoch in (1, 3):
        code = consumers.check_fetch(group, member_id="a", member_epoch=epoch)
        assert code is ErrorCode.STALE_MEMBER_EPOCH

"""In which epochs a member of a KIP-848 group may commit what (KIP-1251)."""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.coordination.records.consumer_records import (
    decode_consumer_record,
    encode_consumer_record,
)
from strandline.broker.coordination.values.consumer_values import (
    CurrentAssignment,
    CurrentRecord,
    MemberState,
)
from strandline.broker.coordination.values.shard_values import CommitRequest, OffsetToCommit
from strandline.broker.protocol.formats.consumer_group_records import (
    CURRENT_ASSIGNMENT_TYPE,
    ConsumerGroupKey,
    CurrentAssignmentValue,
    CurrentPartitions,
    encode_consumer_key,
    encode_consumer_value,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.coordination.consumer_trace import ConsumerTrace

TOPIC_ID = uuid.UUID(int=7)


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


# --- in the log ------------------------------------------------------------------------------


def current_record(partitions: list[int], epochs: list[int], *, epoch: int = 9) -> CurrentRecord:
    """What is read of a record with these epochs beside its partitions."""
    row = CurrentPartitions(topic_id=TOPIC_ID, partitions=partitions, assignment_epochs=epochs)
    value = CurrentAssignmentValue(
        epoch=epoch, previous_epoch=8, state=0, assigned=[row], revoking=[]
    )
    key = ConsumerGroupKey(record_type=CURRENT_ASSIGNMENT_TYPE, group="g", name="m")
    found = decode_consumer_record(encode_consumer_key(key), encode_consumer_value(value))
    assert isinstance(found, CurrentRecord)
    return found


def test_each_partitions_epoch_is_in_the_record_also_of_those_to_be_given_back() -> None:
    current = CurrentAssignment(
        epoch=9,
        previous_epoch=8,
        state=MemberState.UNREVOKED,
        assigned={TOPIC_ID: {2: 9, 0: 5}},
        revoking={TOPIC_ID: {1: 7}},
    )
    record = CurrentRecord("g", "m", current)
    key, value = encode_consumer_record(record)
    assert decode_consumer_record(key, value) == record
    assert [current.assignment_epoch(TOPIC_ID, p) for p in range(4)] == [5, 7, 9, None]


@pytest.mark.parametrize("epochs", [[], [5], [5, 6, 7]])
def test_partitions_without_their_epochs_were_given_in_the_members_as_in_kafka(
    epochs: list[int],
) -> None:
    record = current_record([0, 2], epochs)
    assert record.current is not None
    assert record.current.assigned == {TOPIC_ID: {0: 9, 2: 9}}


def test_partitions_without_their_epochs_of_a_static_member_that_is_away_count_from_zero() -> None:
    record = current_record([0], [], epoch=-2)
    assert record.current is not None
    assert record.current.assigned == {TOPIC_ID: {0: 0}}

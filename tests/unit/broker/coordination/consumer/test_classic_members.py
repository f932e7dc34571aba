"""Members that speak the classic protocol in a KIP-848 group."""

from __future__ import annotations

from tests.unit.broker.coordination.consumer_trace import ConsumerTrace


def test_a_cooperative_member_gives_partitions_back_between_two_joins() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1,2,3"})
    trace.join("n")
    trace.classic_join("a")
    trace.classic_sync("a")
    trace.classic_beat("a")
    trace.classic_join("a")
    trace.classic_sync("a")
    trace.classic_beat("a")
    trace.beat("n")
    trace.shows("""
        join n            n: epoch 4 has -
        classic join a    a: generation 3
        classic sync a    a: has t:0-1
        classic beat a    join again
        classic join a    a: generation 4
        classic sync a    a: has t:0-1
        classic beat a    -
        beat n            n: epoch 4 has t:2-3
    """)


def test_a_classic_member_that_does_not_join_again_is_fenced() -> None:
    trace = ConsumerTrace()
    trace.classic_group_of({"a": "t:0,1,2,3"})
    trace.join("n")
    trace.classic_beat("a")
    trace.skip()
    for _ in range(7):
        trace.after(9_000)
        trace.beat("n")
        if "a" in trace.clients:
            trace.classic_beat("a")
    assert "at 60000 fenced a" in trace.lines
    assert trace.lines[-1] == "beat n n: epoch 5 has t:0-3"


def test_a_classic_member_joins_a_group_of_the_new_protocol() -> None:
    trace = ConsumerTrace()
    trace.join("n")
    trace.ack("n")
    trace.classic_join("new", is_new=True)
    trace.classic_join("id-1")
    trace.classic_sync("id-1")
    trace.beat("n")
    trace.ack("n")
    trace.classic_beat("id-1")
    trace.classic_join("id-1")
    trace.classic_sync("id-1")
    trace.classic_leave("nobody")
    trace.classic_leave("id-1")
    trace.shows("""
        join n               n: epoch 1 has t:0-3
        ack n                n: epoch 1
        classic join new     MEMBER_ID_REQUIRED id-1
        classic join id-1    id-1: generation 2
        classic sync id-1    id-1: has -
        beat n               n: epoch 1 has t:0-1
        ack n                n: epoch 2
        classic beat id-1    join again
        classic join id-1    id-1: generation 2
        classic sync id-1    id-1: has t:2-3
        classic leave nobody UNKNOWN_MEMBER_ID
        classic leave id-1   NONE
    """)


def test_a_classic_member_that_shares_no_protocol_with_the_others_is_refused() -> None:
    trace = ConsumerTrace()
    trace.join("n")
    trace.classic_join("a", protocols="range sticky")
    trace.classic_join("b", protocols="mine")
    trace.classic_join("c", protocols="mine sticky")
    assert trace.lines[-2:] == [
        "classic join b INCONSISTENT_GROUP_PROTOCOL",
        "classic join c c: generation 3",
    ]


def test_a_static_member_changes_its_protocol_and_back() -> None:
    trace = ConsumerTrace()
    trace.join("n", instance="i")
    trace.join("m")
    trace.leave("n", for_a_while=True)
    trace.skip()
    trace.classic_join("old", instance="i", is_new=True)
    assert trace.lines[-1] == "classic join old id-1: generation 2"
    assert trace.group.roster.subscriptions["id-1"].classic is not None
    trace.clients.pop("id-1")
    trace.join("n2", instance="i")
    assert trace.group.roster.subscriptions["n2"].classic is None
    assert "id-1" not in trace.group.roster.subscriptions

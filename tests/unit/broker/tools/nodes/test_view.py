"""Who is in a cluster and in which state, of what several requests tell."""

from __future__ import annotations

from collections import Counter

from strandline.broker.tools.client.cluster import RegisteredBroker, Share
from strandline.broker.tools.nodes.pages import NodeFigures
from strandline.broker.tools.nodes.quorum import MetadataFollower, MetadataQuorum
from strandline.broker.tools.nodes.view import FENCED, GONE, IN_SHUTDOWN, ONLINE, members


def broker(node_id: int, *, is_fenced: bool = False) -> RegisteredBroker:
    return RegisteredBroker(node_id=node_id, address=f"h:{node_id}", rack=None, is_fenced=is_fenced)


def follower(end_offset: int, fetched_ms: int) -> MetadataFollower:
    return MetadataFollower(end_offset=end_offset, fetched_ms=fetched_ms, caught_up_ms=None)


SHARE = Share(
    cluster_id="c",
    brokers=(broker(1), broker(2)),
    leads=Counter({1: 2, 2: 1}),
    replicas=Counter({1: 2, 2: 2, 9: 4}),
    in_sync=Counter({1: 2, 2: 2}),
    leaderless=(),
)
QUORUM = MetadataQuorum(
    leader_id=3000,
    leader_address=None,
    epoch=1,
    end_offset=100,
    followers={1: follower(100, 5000), 2: follower(90, 4000), 9: follower(10, 1000)},
)


def test_states_are_those_of_all_who_are_registered_or_have_replicas() -> None:
    registered = [broker(1), broker(2), broker(3, is_fenced=True)]
    figures = {2: NodeFigures(began_ms=7, registration_state=20)}
    found = members(SHARE, registered, QUORUM, figures)
    assert [(one.node_id, one.state) for one in found] == [
        (1, ONLINE),
        (2, IN_SHUTDOWN),
        (3, FENCED),
        (9, GONE),
    ]
    assert [one.replicas for one in found] == [2, 2, 0, 4]


def test_the_lag_is_what_the_last_fetch_lacked() -> None:
    found = members(SHARE, [broker(1), broker(2), broker(3)], QUORUM, {})
    assert [one.metadata_lag for one in found] == [0, 10, None, 90]


def test_since_is_the_begin_of_who_serves_and_the_last_word_of_who_does_not() -> None:
    figures = {1: NodeFigures(began_ms=77, registration_state=30)}
    found = members(SHARE, [broker(1), broker(2, is_fenced=True)], QUORUM, figures)
    assert [one.since_ms for one in found] == [77, 4000, 1000]


def test_a_follower_is_behind_for_as_long_as_the_leader_that_misses_it_longest() -> None:
    figures = {
        1: NodeFigures(began_ms=7, registration_state=30, behind_s={2: 7.0, 9: 1.0}),
        2: NodeFigures(began_ms=7, registration_state=30, behind_s={9: 2.5}),
    }
    found = members(SHARE, [broker(1), broker(2)], QUORUM, figures)
    assert [one.behind_s for one in found] == [None, 7.0, 2.5]


def test_without_the_quorum_the_rest_is_told() -> None:
    found = members(SHARE, [broker(1)], None, {})
    assert [(one.state, one.metadata_lag) for one in found] == [
        (ONLINE, None),
        (GONE, None),
        (GONE, None),
    ]

"""Who is believed to be the active controller."""

from __future__ import annotations

from strandline.broker.cluster.membership.quorum import Quorum
from strandline.broker.peers.address import Address

SERVERS = [Address("a", 1), Address("b", 2)]
ONE, TWO = Address("one", 1), Address("two", 2)


def test_the_bootstrap_servers_are_asked_in_turn() -> None:
    quorum = Quorum(SERVERS)
    assert [quorum.next_server() for _ in range(3)] == [*SERVERS, SERVERS[0]]


def test_a_higher_epoch_deposes_and_a_lower_one_is_ignored() -> None:
    quorum = Quorum(SERVERS)
    quorum.note(1, 5, ONE)
    assert quorum.active is not None
    quorum.note(2, 4, TWO)
    assert quorum.active.address == ONE
    quorum.note(2, 6, TWO)
    assert (quorum.active.node_id, quorum.active.epoch) == (2, 6)
    quorum.note(1, 5, ONE)
    assert quorum.active.node_id == 2
    assert quorum.epoch == 6


def test_a_new_epoch_without_a_leader_leaves_nobody() -> None:
    quorum = Quorum(SERVERS)
    quorum.note(1, 5, ONE)
    quorum.note(-1, 6, None)
    assert quorum.active is None
    quorum.note(1, 5, ONE)
    assert quorum.active is None


def test_a_doubt_about_a_former_controller_does_not_touch_the_present_one() -> None:
    quorum = Quorum(SERVERS)
    quorum.note(1, 5, ONE)
    former = quorum.active
    assert former is not None
    quorum.note(2, 6, TWO)
    quorum.doubt(former)
    assert quorum.active is not None
    quorum.doubt(quorum.active)
    assert quorum.active is None
    assert quorum.epoch == 6

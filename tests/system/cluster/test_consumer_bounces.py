"""Groups over three brokers while brokers and members are bounced: kafkatest's consumer_test.

Each partition has one replica here: while its broker is away it waits, and nobody else takes over.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from tests.support.broker import eventually
from tests.support.heavy import all_but, heavy
from tests.system.cluster.bounced import WAIT_S, BouncedCluster, bounced_cluster
from tests.system.cluster.group_members import GroupMembers

pytestmark = [pytest.mark.slow, pytest.mark.crash]

PROTOCOLS = ("classic", "consumer")
MEMBERS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BouncedCluster]:
    with bounced_cluster(tmp_path_factory.mktemp("bounced")) as running:
        yield running


@contextmanager
def producing(cluster: BouncedCluster, partitions: int = 1) -> Iterator[str]:
    """A topic that is written to all the while, each record once."""
    topic, over = f"topic-{uuid.uuid4().hex[:6]}", threading.Event()
    cluster.create(topic, partitions=partitions)
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            # Longer than a broker takes to stop and start on a slow disk.
            "delivery.timeout.ms": 5 * WAIT_S * 1000,
        }
    )

    def send() -> None:
        number = 0
        while not over.is_set():
            producer.produce(
                topic,
                b"%d" % number,
                partition=number % partitions,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            number += 1
            producer.poll(0.002)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield topic
    finally:
        over.set()
        thread.join()
        assert producer.flush(5 * WAIT_S) == 0
    assert failed == []


def assert_each_record_was_read_once(members: GroupMembers) -> None:
    """After clean ends; a member that was killed may have read what it did not commit."""
    members.stop()
    assert members.committed == dict(members.consumed)


@pytest.mark.parametrize("protocol", all_but(("consumer",), PROTOCOLS))
def test_brokers_that_are_restarted_in_turn_cause_no_rebalance(
    cluster: BouncedCluster, protocol: str
) -> None:
    with producing(cluster) as topic, GroupMembers(cluster, topic, protocol=protocol) as members:
        members.await_shared(1)
        members.await_consumed(100)
        before = members.rebalance_count
        cluster.roll(is_clean=True)
        members.await_consumed(100)
        assert members.rebalance_count == before
        assert_each_record_was_read_once(members)


@pytest.mark.parametrize(
    ("protocol", "is_rolling"),
    [("classic", True), heavy("classic", False), heavy("consumer", True), heavy("consumer", False)],
)
def test_members_that_are_restarted_read_each_record_once(
    cluster: BouncedCluster, protocol: str, is_rolling: bool
) -> None:
    with producing(cluster) as topic, GroupMembers(cluster, topic, protocol=protocol) as members:
        members.await_shared(1)
        members.await_consumed(100)
        if is_rolling:
            for member in members.all:
                member.end(is_clean=True)
                member.start()
                members.await_shared(1)
        else:
            for member in members.all:
                member.end(is_clean=True)
            for member in members.all:
                member.start()
        members.await_shared(1)
        members.await_consumed(100)
        assert_each_record_was_read_once(members)


@pytest.mark.parametrize(
    ("protocol", "is_clean"), [heavy("classic", False), heavy("consumer", True)]
)
def test_static_members_that_are_restarted_cause_no_rebalance(
    cluster: BouncedCluster, protocol: str, is_clean: bool
) -> None:
    """One of the new protocol that was killed is in its group until its session ends (KIP-848)."""
    with (
        producing(cluster, MEMBERS) as topic,
        GroupMembers(cluster, topic, protocol=protocol, are_static=True) as members,
    ):
        members.await_shared(MEMBERS)
        members.await_consumed(100)
        others = members.all[1:]
        held = [set(one.assignment) for one in others]
        before = [one.assigned_count for one in others]
        own = set(members.all[0].assignment)
        members.all[0].end(is_clean=is_clean)
        members.all[0].start()
        eventually(lambda: members.all[0].assignment == own)
        members.await_consumed(100)
        assert [set(one.assignment) for one in others] == held
        assert [one.assigned_count for one in others] == before


@pytest.mark.parametrize("protocol", [heavy(one) for one in PROTOCOLS])
def test_of_a_member_that_is_killed_others_take_over(
    cluster: BouncedCluster, protocol: str
) -> None:
    with (
        producing(cluster, MEMBERS) as topic,
        GroupMembers(cluster, topic, protocol=protocol) as members,
    ):
        members.await_shared(MEMBERS)
        members.await_consumed(100)
        members.all[0].end(is_clean=False)
        members.await_shared(MEMBERS)
        members.await_consumed(100)
        members.stop()
        # What it read and did not commit is read again.
        assert members.committed.keys() == members.consumed.keys()
        for partition, position in members.committed.items():
            assert position <= members.consumed[partition]


@pytest.mark.parametrize("protocol", all_but(("classic",), PROTOCOLS))
def test_after_kills_of_each_broker_a_group_goes_on_where_it_was(
    cluster: BouncedCluster, protocol: str
) -> None:
    with producing(cluster) as topic, GroupMembers(cluster, topic, protocol=protocol) as members:
        members.await_shared(1)
        members.await_consumed(100)
        cluster.roll(is_clean=False)
        members.await_consumed(100)
        members.await_shared(1)
        members.stop()
        # A commit that was lost with a coordinator is made again; none is taken back.
        assert members.committed[0] <= members.consumed[0]


@pytest.mark.parametrize("protocol", [heavy(one) for one in PROTOCOLS])
def test_a_group_that_grows_shares_all_partitions_and_reads_each_record(
    cluster: BouncedCluster, protocol: str
) -> None:
    with (
        producing(cluster, 4) as topic,
        GroupMembers(cluster, topic, count=1, protocol=protocol) as members,
    ):
        members.await_shared(4)
        with GroupMembers(cluster, topic, protocol=protocol, group=f"of-{topic}") as more:
            eventually(lambda: sum(bool(one.assignment) for one in more.all) == MEMBERS)
            members.await_consumed(50)
            more.await_consumed(50)
            more.stop()
        members.await_shared(4)
        members.stop()
        # A partition may have been read by one of these, by the other or by both in turn.
        committed = {
            partition: max(one.committed.get(partition, 0) for one in (members, more))
            for partition in range(4)
        }
        assert committed == dict(members.consumed + more.consumed)


@pytest.mark.parametrize("protocol", [heavy(one) for one in PROTOCOLS])
def test_of_two_members_with_one_instance_id_one_is_refused(
    cluster: BouncedCluster, protocol: str
) -> None:
    """The later one of a classic group, the former one while it lives otherwise (KIP-848)."""
    with (
        producing(cluster, MEMBERS) as topic,
        GroupMembers(cluster, topic, protocol=protocol, are_static=True) as members,
    ):
        members.await_shared(MEMBERS)
        members.await_consumed(50)
        with GroupMembers(
            cluster, topic, count=1, protocol=protocol, are_static=True, group=f"of-{topic}"
        ) as twin:
            loser = members.all[0] if protocol == "classic" else twin.all[0]
            eventually(lambda: loser.failure)
            assert "static" in loser.failure.lower() or "instance" in loser.failure.lower()

"""What was acknowledged with three replicas is there, however a broker or the controller fails.

kafkatest's replication_test, replication_replica_failure_test, eligible_leader_replicas_test, and
the pause of round_trip_fault_test.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from strandline.storage.local.log_dirs import last_run
from tests.support.broker import BrokerProcess, eventually
from tests.support.heavy import all_but
from tests.system.cluster.bounced import BouncedCluster, bounced_cluster
from tests.system.replication.replicated import (
    PATIENCE_S,
    EndToEnd,
    ReplicatedPartition,
    read_all,
)

pytestmark = [pytest.mark.slow, pytest.mark.crash]

BOUNCES = 3
SETTINGS = {"replica.lag.time.max.ms": "3000", "broker.heartbeat.interval.ms": "500"}
WHO = ("leader", "controller")
HOW = ("stopped", "killed", "restarted", "killed and restarted")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BouncedCluster]:
    with bounced_cluster(tmp_path_factory.mktemp("failures"), SETTINGS) as running:
        yield running


@contextmanager
def ended(process: BrokerProcess, *, is_clean: bool) -> Iterator[None]:
    """A process that is away meanwhile."""
    if is_clean:
        assert process.stop() == 0
    else:
        process.kill()
    try:
        yield
    finally:
        process.start()


@contextmanager
def standing_still(process: BrokerProcess) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("who", "how"),
    all_but([("leader", "killed")], [(who, how) for who in WHO for how in HOW]),
)
def test_what_was_acknowledged_is_read_once_and_in_order(
    cluster: BouncedCluster, who: str, how: str
) -> None:
    partition = ReplicatedPartition(cluster, min_insync_replicas="2")
    is_clean = not how.startswith("killed")
    with EndToEnd(partition) as traffic:
        for _ in range(BOUNCES if how.endswith("restarted") else 1):
            failing = partition.leader() if who == "leader" else cluster.controller
            with ended(failing, is_clean=is_clean):
                if not how.endswith("restarted"):
                    traffic.await_more(100)
            partition.await_in_sync(cluster.brokers)
            traffic.await_more(100)


def test_a_follower_that_stands_still_leaves_those_in_sync_and_joins_them_again(
    cluster: BouncedCluster,
) -> None:
    partition = ReplicatedPartition(cluster, min_insync_replicas="2")
    paused, other = partition.followers()
    leader = partition.leader()
    with EndToEnd(partition) as traffic:
        with standing_still(paused):
            partition.await_in_sync([leader, other], asked=leader)
            traffic.await_more(100)
        partition.await_in_sync(cluster.brokers, asked=leader)
        traffic.await_more(100)


def test_a_leader_that_stands_still_is_followed_by_one_in_sync(cluster: BouncedCluster) -> None:
    partition = ReplicatedPartition(cluster, min_insync_replicas="2")
    paused = partition.leader()
    other = partition.followers()[0]
    # A client that asked the one that stands still would wait for its answer.
    with EndToEnd(partition, bootstrap=other.bootstrap) as traffic:
        with standing_still(paused):
            eventually(lambda: partition.leader(other) is not paused, timeout_s=PATIENCE_S)
            traffic.await_more(100)
        partition.await_in_sync(cluster.brokers, asked=other)
        traffic.await_more(100)


def test_one_that_was_in_sync_at_the_minimum_leads_without_the_others(
    cluster: BouncedCluster,
) -> None:
    """Below min.insync.replicas nothing is acknowledged, so it has all that was (KIP-966)."""
    partition = ReplicatedPartition(cluster, min_insync_replicas="2")
    with EndToEnd(partition) as traffic:
        pass
    last = partition.leader()
    first, eligible = partition.followers()
    assert first.stop() == 0
    partition.await_in_sync([last, eligible], asked=last)
    assert eligible.stop() == 0
    partition.await_in_sync([last], asked=last)
    assert partition.state(last).eligible_leader_replicas == partition.numbers([eligible])
    last.kill()
    try:
        # It was not in sync when the others still took records.
        first.start()
        eventually(lambda: partition.state(first).leader_id == -1)
        assert list(partition.state(first).isr_nodes) == []
        eligible.start()
        assert partition.leader(eligible) is eligible
        client = {"bootstrap.servers": eligible.bootstrap}
        sent = len(traffic.acknowledged)
        assert read_all(client, partition.topic, sent) == list(range(sent))
    finally:
        for one in cluster.brokers:
            if not one.running:
                one.start()
    partition.await_in_sync(cluster.brokers)


def test_one_that_was_killed_leads_with_all_that_the_last_one_lost(
    cluster: BouncedCluster,
) -> None:
    """A kill takes nothing that was written. To Apache Kafka it may have, and the empty one, which
    led last, leads again.
    """
    partition = ReplicatedPartition(cluster, min_insync_replicas="2")
    with EndToEnd(partition) as traffic:
        pass
    last = partition.leader()
    first, killed = partition.followers()
    assert first.stop() == 0
    partition.await_in_sync([last, killed], asked=last)
    killed.kill()
    partition.await_in_sync([last], asked=last)
    assert partition.state(last).eligible_leader_replicas == partition.numbers([killed])
    last.kill()
    # As its machine comes back: on another boot, without what was not synced.
    last_run.remove(last.data)
    for path in (last.data / f"{partition.topic}-0").glob("*.log"):
        os.truncate(path, 0)
    try:
        killed.start()
        assert partition.leader(killed) is killed
        last.start()
        partition.await_in_sync([last, killed], asked=killed)
        assert partition.leader(killed) is killed
        # What is committed is told with the second one that is in sync.
        client = {"bootstrap.servers": killed.bootstrap}
        sent = len(traffic.acknowledged)
        assert read_all(client, partition.topic, sent) == list(range(sent))
    finally:
        for one in cluster.brokers:
            if not one.running:
                one.start()
    partition.await_in_sync(cluster.brokers)

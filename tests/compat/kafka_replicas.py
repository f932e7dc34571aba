"""The second half of `make kafka-brokers`: three brokers of Apache Kafka replicate topics, and our
controller decides who is in sync and who leads.

A producer with acks=all goes on while the leader is killed, while replicas move by Kafka's own
tools, and while all brokers are restarted one after the other. What was acknowledged is there at
the end, once.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Producer

from bench.comparison.peers import kafka_java, until
from tests.compat.kafka_brokers import (
    WAIT_S,
    Cluster,
    Controller,
    KafkaBroker,
    Say,
    main,
)

TOPIC, PARTITIONS = "replicated", 6
ALL = {1, 2, 3}


class Load:
    """An idempotent producer that never stops, and what it was told."""

    def __init__(self, cluster: Cluster) -> None:
        self.acknowledged: set[bytes] = set()
        self.failed: list[str] = []
        self._ends = threading.Event()
        self._producer = Producer(cluster.settings(enable_idempotence=True, acks="all"))
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        def note(error: object, message: object) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acknowledged.add(message.value())  # type: ignore[attr-defined]

        number = 0
        while not self._ends.is_set():
            number += 1
            self._producer.produce(
                TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=note
            )
            self._producer.poll(0.002)

    def goes_on(self) -> None:
        """Waits for more acknowledgements, from each partition."""
        count = len(self.acknowledged) + 20 * PARTITIONS
        until(lambda: len(self.acknowledged) > count, timeout_s=WAIT_S, interval_s=0.1)

    def end(self) -> None:
        self._ends.set()
        self._thread.join(WAIT_S)
        assert self._producer.flush(WAIT_S) == 0


def run(folder: Path, say: Say) -> None:
    """Raises AssertionError at what is not as it must be."""
    controller = Controller(folder / "controller")
    controllers = {"controller.quorum.bootstrap.servers": f"127.0.0.1:{controller.port}"}
    brokers = [KafkaBroker(folder / f"kafka{node}", node, controllers) for node in sorted(ALL)]
    load: Load | None = None
    try:
        controller.start()
        for broker in brokers:
            broker.format(controller.cluster_id)
            broker.start()
        cluster = Cluster(brokers)
        until(lambda: cluster.brokers() == ALL, timeout_s=WAIT_S, interval_s=0.2)
        cluster.create(TOPIC, PARTITIONS, 3, min_insync_replicas="2")
        are_in_sync(cluster, ALL)
        assert set(cluster.leaders(TOPIC)) == ALL, cluster.leaders(TOPIC)
        say(f"three brokers replicate a topic, and each leads: {cluster.leaders(TOPIC)}")
        ask_the_controller(f"127.0.0.1:{controller.port}", say)
        load = Load(cluster)
        load.goes_on()
        kill_a_leader(cluster, brokers, load, say)
        elect_the_first(cluster, brokers[0], say)
        move_replicas(cluster, brokers, load, folder, say)
        restart_all(cluster, brokers, load, say)
        controller.kill()
        controller.start()
        kill_a_leader(cluster, brokers, load, say)
        load.end()
        check(cluster, load, say)
    finally:
        if load is not None:
            load.end()
        for broker in brokers:
            broker.end(signal.SIGKILL)
        controller.kill()


def ask_the_controller(address: str, say: Say) -> None:
    at = ("--bootstrap-controller", address)
    command = "org.apache.kafka.tools.ConfigCommand"
    of_all = tool(command, *at, "--describe", "--entity-type", "brokers", "--entity-default")
    assert "min.insync.replicas=1" in of_all, of_all
    own = tool(command, *at, "--describe", "--entity-type", "brokers", "--entity-name", "1000")
    assert "configs for broker 1000" in own, own
    features = tool("org.apache.kafka.tools.FeatureCommand", *at, "describe")
    assert "eligible.leader.replicas.version" in features, features
    endpoints = tool("org.apache.kafka.tools.ClusterTool", "list-endpoints", *at)
    assert "1000" in endpoints, endpoints
    say("kafka-configs, kafka-features and kafka-cluster ask the controller itself")


def are_in_sync(cluster: Cluster, nodes: set[int]) -> None:
    """Waits until these are, in each partition."""

    def is_so() -> bool:
        return all(isr == nodes for isr in cluster.in_sync(TOPIC))

    until(is_so, timeout_s=WAIT_S, interval_s=0.2)


def kill_a_leader(cluster: Cluster, brokers: list[KafkaBroker], load: Load, say: Say) -> None:
    victim = brokers[cluster.leaders(TOPIC)[0] - 1]
    victim.end(signal.SIGKILL)
    began_s = time.monotonic()
    rest = ALL - {victim.node_id}
    are_in_sync(cluster, rest)
    assert set(cluster.leaders(TOPIC)) <= rest
    took_s = time.monotonic() - began_s
    load.goes_on()
    say(f"broker {victim.node_id} killed: others lead what it led after {took_s:.1f} s")
    victim.start()
    are_in_sync(cluster, ALL)
    load.goes_on()
    say("started again, it is in sync again")


def elect_the_first(cluster: Cluster, broker: KafkaBroker, say: Say) -> None:
    tool(
        "org.apache.kafka.tools.LeaderElectionCommand",
        *("--bootstrap-server", broker.bootstrap),
        *("--election-type", "preferred", "--all-topic-partitions"),
    )
    first = [replicas[0] for replicas in cluster.replicas(TOPIC)]
    until(lambda: cluster.leaders(TOPIC) == first, timeout_s=WAIT_S, interval_s=0.2)
    say(f"kafka-leader-election: the first replicas lead, {first}")


def move_replicas(
    cluster: Cluster, brokers: list[KafkaBroker], load: Load, folder: Path, say: Say
) -> None:
    before = cluster.replicas(TOPIC)
    fewer = [replicas[:2] for replicas in before]
    others = [[({*ALL} - {*replicas}).pop(), replicas[0]] for replicas in fewer]
    for replicas in (fewer, others, before):
        reassign(brokers[0], replicas, folder)
        assert cluster.replicas(TOPIC) == replicas, cluster.replicas(TOPIC)
        load.goes_on()
    are_in_sync(cluster, ALL)
    say("kafka-reassign-partitions: fewer replicas, others, and as many as before")


def reassign(broker: KafkaBroker, replicas: list[list[int]], folder: Path) -> None:
    rows = [
        {"topic": TOPIC, "partition": number, "replicas": nodes}
        for number, nodes in enumerate(replicas)
    ]
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": rows}))
    command = (
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        *("--bootstrap-server", broker.bootstrap),
        *("--reassignment-json-file", str(plan)),
    )
    tool(*command, "--execute")
    deadline_s = time.monotonic() + WAIT_S
    while "is still in progress" in tool(*command, "--verify"):
        assert time.monotonic() < deadline_s, "the reassignment does not end"


def restart_all(cluster: Cluster, brokers: list[KafkaBroker], load: Load, say: Say) -> None:
    for broker in brokers:
        broker.end()
        assert broker.node_id not in cluster.leaders(TOPIC), "it ended before it handed over"
        load.goes_on()
        broker.start()
        are_in_sync(cluster, ALL)
    say("all brokers ended and started, one after the other, under load")


def check(cluster: Cluster, load: Load, say: Say) -> None:
    assert not load.failed, load.failed[:3]
    values = cluster.read(TOPIC)
    lost = load.acknowledged - set(values)
    assert not lost, f"{len(lost)} acknowledged records are gone"
    assert len(values) == len(set(values)), "records came twice"
    say(f"{len(load.acknowledged)} acknowledged records are there, once each")


def tool(*arguments: str) -> str:
    """Runs one of Kafka's; returns what it prints. Raises AssertionError if it fails."""
    done = subprocess.run(
        kafka_java(*arguments), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(run))

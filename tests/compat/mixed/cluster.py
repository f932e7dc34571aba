"""A running mixed cluster, and what clients do with it.

    three controllers of Apache Kafka │ broker 1 of Apache Kafka │ brokers 9 and 8 of strandline

Topics lie on each broker by their replica assignment, with one replica.
"""

from __future__ import annotations

import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.comparison.peers import kafka_java
from strandline.broker.cluster.metadata.topic_names import METADATA_TOPIC
from strandline.broker.coordination.runtime.slots import coordinating_partition
from strandline.broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
)
from tests.compat.mixed.nodes import (
    HEAP,
    KAFKA_ID,
    SECOND_ID,
    STRANDLINE_ID,
    KafkaNode,
    kafka_broker,
    kafka_quorum,
    strandline_broker,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient

WAIT_S = 60.0
RECORDS = 200
EACH = [[KAFKA_ID], [STRANDLINE_ID], [SECOND_ID]]
PARTITIONS = range(len(EACH))
NODES = sorted(node for (node,) in EACH)


@dataclass(frozen=True, slots=True)
class Mixed:
    """The nodes of the cluster."""

    controllers: list[KafkaNode]
    apache: KafkaNode
    ours: BrokerProcess
    second: BrokerProcess
    # Kept: a client that is collected fails what it still waits for.
    admins: dict[str, AdminClient] = field(default_factory=dict)

    @property
    def bootstraps(self) -> dict[str, str]:
        return {
            "apache": self.apache.address,
            "ours": self.ours.bootstrap,
            "second": self.second.bootstrap,
        }

    def admin(self, through: str = "ours") -> AdminClient:
        if through not in self.admins:
            self.admins[through] = AdminClient({"bootstrap.servers": self.bootstraps[through]})
        return self.admins[through]

    def create(self, name: str, assignment: list[list[int]], through: str = "ours") -> None:
        topic = NewTopic(name, num_partitions=len(assignment), replica_assignment=assignment)
        self.admin(through).create_topics([topic])[name].result(WAIT_S)
        for bootstrap in self.bootstraps:
            eventually(lambda bootstrap=bootstrap: self.leaders(name, bootstrap) == assignment)

    def leaders(self, topic: str, through: str) -> list[list[int]]:
        found = self.admin(through).list_topics(timeout=WAIT_S).topics.get(topic)
        if found is None:
            return []
        return [[one.leader] for _, one in sorted(found.partitions.items())]


@contextmanager
def running_cluster(folder: Path) -> Iterator[Mixed]:
    """Starts it; in the end ours are there, and fell over nothing."""
    controllers = kafka_quorum(folder)
    apache = kafka_broker(folder / "apache", *controllers)
    ours = strandline_broker(folder / "ours", *controllers)
    second = strandline_broker(folder / "second", *controllers, node_id=SECOND_ID)
    try:
        for node in controllers:
            node.begin()
        for node in controllers:
            node.await_start()
        ours.start()
        second.start()
        apache.start()
        yield Mixed(controllers, apache, ours, second)
        for broker in (ours, second):
            assert broker.running
            assert "Traceback" not in broker.log_text(), broker.log_text()[-4000:]
    finally:
        ours.kill()
        second.kill()
        for node in (apache, *controllers):
            node.end(signal.SIGKILL)


def leader_of(controllers: list[KafkaNode]) -> KafkaNode:
    """The active one, as one that answers says."""
    found: list[KafkaNode] = []

    def has_one() -> bool:
        for node in controllers:
            if not node.is_running:
                continue
            with suppress(OSError), WireClient(node.port, timeout_s=3) as client:
                answer = client.ask(_QUORUM, DescribeQuorumResponse, 2)
                for topic in answer.topics:
                    leader = topic.partitions[0].leader_id
                    found[:] = [one for one in controllers if one.node_id == leader]
                if found and found[0] is node:
                    return True
        return False

    eventually(has_one)
    return found[0]


_QUORUM = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequestTopic(
            topic_name=METADATA_TOPIC,
            partitions=[DescribeQuorumRequestPartition(partition_index=0)],
        )
    ]
)


def name_of(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:6]}"


def produce(bootstrap: str, topic: str, partition: int, values: list[bytes], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **more})
    failures: list[KafkaError] = []
    for value in values:
        producer.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(WAIT_S) == 0
    assert failures == []


def read(bootstrap: str, topic: str, partition: int, count: int, **more: Any) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": name_of("read"), **more},
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes] = []
    until_s = time.monotonic() + WAIT_S
    while len(values) < count and time.monotonic() < until_s:
        for message in consumer.consume(count - len(values), timeout=1):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    consumer.close()
    return values


def group_at(node: int, mixed: Mixed, topic: str) -> str:
    """Returns a name whose coordinator is that broker."""
    found = mixed.admin().list_topics(timeout=WAIT_S).topics[topic].partitions
    while True:
        name = name_of("at")
        if found[coordinating_partition(name, len(found))].leader == node:
            return name


def ensure_internal_topics(mixed: Mixed) -> None:
    """A group and a transaction anywhere create the topics of the coordinators, on both brokers."""
    producer = Producer({"bootstrap.servers": mixed.ours.bootstrap, "transactional.id": "any"})
    producer.init_transactions(WAIT_S)
    consumer = Consumer(
        {"bootstrap.servers": mixed.ours.bootstrap, "group.id": "any", "enable.auto.commit": False}
    )
    name = name_of("any")
    mixed.create(name, EACH)
    consumer.subscribe([name])
    eventually(lambda: consumer.poll(0.1) is None and consumer.assignment())
    consumer.close()


def java(main: str, *arguments: str, given: str | None = None) -> str:
    """What one of Kafka's tools prints."""
    done = subprocess.run(
        kafka_java(f"org.apache.kafka.tools.{main}", *arguments, options=HEAP),
        input=given,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout

"""`make mixed`: partitions with replicas on Apache Kafka's brokers and on ours, in either role.

Apache Kafka's controller elects, and says who is in sync. The folders of all replicas have the same
batches up to the high watermark, whichever wrote them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ElectionType,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from bench.comparison.peers import kafka_java
from tests.compat.mixed.clients import Committing, Reading, Writing
from tests.compat.mixed.nodes import (
    HEAP,
    KAFKA_ID,
    SECOND_ID,
    STRANDLINE_ID,
    KafkaNode,
    kafka_broker,
    kafka_controller,
    strandline_broker,
)
from tests.support.broker import BrokerProcess, eventually

WAIT_S = 60.0
OURS = (STRANDLINE_ID, SECOND_ID)
RECORDS = 500
# Kafka's controller fences the living too when it stood still for as long as a session, and then a
# dead broker may be the last that was in sync.
LONG_SESSIONS = {"broker.session.timeout.ms": "15000"}


@dataclass(frozen=True, slots=True)
class Replicated:
    """One Apache broker and two of ours, under Apache's controller."""

    apache: KafkaNode
    ours: dict[int, BrokerProcess]
    apache_folder: Path
    admins: list[AdminClient] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return ",".join([self.apache.address, *(one.bootstrap for one in self.ours.values())])

    def admin(self) -> AdminClient:
        if not self.admins:
            self.admins.append(AdminClient({"bootstrap.servers": self.bootstrap}))
        return self.admins[0]

    def create(self, replicas: Sequence[int], **config: str) -> str:
        """A topic of one partition; returns its name when all replicas are in sync."""
        name = f"replicas-{uuid.uuid4().hex[:6]}"
        texts = {key.replace("_", "."): text for key, text in config.items()}
        topic = NewTopic(name, num_partitions=1, replica_assignment=[list(replicas)], config=texts)
        self.admin().create_topics([topic])[name].result(WAIT_S)
        eventually(lambda: self.state(name) == (replicas[0], sorted(replicas)))
        return name

    def state(self, topic: str) -> tuple[int, list[int]]:
        """The leader and the in-sync replicas."""
        return state_of(self.admin(), topic)

    def leaders(self, topic: str) -> list[int]:
        found = self.admin().list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        return [found[number].leader for number in sorted(found)]

    def await_heir(self, node: int, topics: Iterable[str]) -> None:
        """Waits until it leads a second partition of each topic."""
        eventually(lambda: all(self.leaders(topic).count(node) == 2 for topic in topics))

    def is_whole(self, topic: str, assignment: Sequence[Sequence[int]]) -> bool:
        """Whether all replicas are in sync, and the first ones lead."""
        found = self.admin().list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        return len(found) == len(assignment) and all(
            found[number].leader == wanted[0] and sorted(found[number].isrs) == sorted(wanted)
            for number, wanted in enumerate(assignment)
        )

    def elect_first(self, topics: Iterable[str], assignment: Sequence[Sequence[int]]) -> None:
        """Waits until the first replicas lead, and all are in sync."""
        parts = [TopicPartition(topic, n) for topic in topics for n in range(len(assignment))]

        def is_done() -> bool:
            self.admin().elect_leaders(ElectionType.PREFERRED, parts).result(WAIT_S)
            return all(self.is_whole(one.topic, assignment) for one in parts)

        eventually(is_done)

    def kill(self, node: int) -> None:
        if node == KAFKA_ID:
            self.apache.end(signal.SIGKILL)
        else:
            self.ours[node].kill()

    def start(self, node: int) -> None:
        if node == KAFKA_ID:
            self.apache.start()
        else:
            self.ours[node].start()

    def data_of(self, node: int) -> Path:
        return self.apache_folder if node == KAFKA_ID else self.ours[node].data

    def dump(self, node: int, topic: str) -> list[str]:
        """Every record of a broker's replicas of a topic, as Kafka's own tool reads them."""
        logs = sorted(self.data_of(node).glob(f"{topic}-*/*.log"))
        done = subprocess.run(
            kafka_java(
                "org.apache.kafka.tools.DumpLogSegments",
                *("--deep-iteration", "--print-data-log"),
                *("--files", ",".join(map(str, logs))),
                options=HEAP,
            ),
            capture_output=True,
            text=True,
            timeout=2 * WAIT_S,
            check=True,
        )
        lines = [line for line in done.stdout.splitlines() if "offset: " in line.lower()]
        # Where a batch lies within its segment is a matter of each replica.
        return [re.sub(r" position: \d+| CreateTime: \d+|LogAppendTime: \d+", "", x) for x in lines]

    def check_same(self, topic: str, replicas: Sequence[int]) -> None:
        first, *others = replicas
        for other in others:
            eventually(lambda other=other: self.dump(first, topic) == self.dump(other, topic))


def state_of(admin: AdminClient, topic: str) -> tuple[int, list[int]]:
    found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    if not found:
        return -1, []
    return found[0].leader, sorted(found[0].isrs)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    folder = tmp_path_factory.mktemp("replicas")
    controller = kafka_controller(folder / "controller", LONG_SESSIONS)
    controller.start()
    replicated = {
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
    }
    apache = kafka_broker(folder / "apache", controller, settings=replicated)
    ours = {
        node: strandline_broker(
            folder / f"ours-{node}",
            controller,
            node_id=node,
            settings={"replica.lag.time.max.ms": "10000"},
        )
        for node in OURS
    }
    try:
        apache.start()
        for one in ours.values():
            one.start()
        yield Replicated(apache, ours, folder / "apache" / "data")
        for one in ours.values():
            assert "Traceback" not in one.log_text(), one.log_text()[-4000:]
    finally:
        for one in ours.values():
            one.kill()
        apache.end()
        controller.end()


def produce(cluster: Replicated, topic: str, values: Sequence[bytes], **more: Any) -> None:
    """Each is acknowledged by all replicas in sync."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5, **more}
    )
    failures: list[KafkaError] = []
    for value in values:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda e, _: failures.append(e) if e else None
        )
    assert producer.flush(WAIT_S) == 0
    assert failures == []


def read(cluster: Replicated, topic: str, count: int, **more: Any) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "r",
            "enable.auto.commit": False,
            **more,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    until_s = time.monotonic() + WAIT_S
    while len(values) < count and time.monotonic() < until_s:
        found = consumer.consume(count - len(values), timeout=1)
        values += [one.value() or b"" for one in found if one.error() is None]
    consumer.close()
    return values


def numbered(first: int, count: int = RECORDS) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


PAIRS = [(STRANDLINE_ID, SECOND_ID), (STRANDLINE_ID, KAFKA_ID), (KAFKA_ID, STRANDLINE_ID)]


@pytest.mark.parametrize("replicas", PAIRS)
def test_leader_and_follower_have_the_same_batches(
    cluster: Replicated, replicas: tuple[int, int]
) -> None:
    topic = cluster.create(replicas, min_insync_replicas="2")
    produce(cluster, topic, numbered(0), **{"compression.type": "lz4"})
    produce(cluster, topic, numbered(RECORDS), **{"enable.idempotence": True})
    assert read(cluster, topic, 2 * RECORDS) == numbered(0, 2 * RECORDS)
    cluster.check_same(topic, replicas)


def test_a_follower_that_was_away_catches_up_and_is_in_sync_again(cluster: Replicated) -> None:
    """Each of the two kinds is away in turn, for longer than its session."""
    topic = cluster.create([KAFKA_ID, STRANDLINE_ID, SECOND_ID])
    produce(cluster, topic, numbered(0))
    cluster.ours[STRANDLINE_ID].kill()
    eventually(lambda: STRANDLINE_ID not in cluster.state(topic)[1])
    produce(cluster, topic, numbered(RECORDS))
    cluster.ours[STRANDLINE_ID].start()
    everybody = sorted([KAFKA_ID, *OURS])
    eventually(lambda: cluster.state(topic)[1] == everybody)
    produce(cluster, topic, numbered(2 * RECORDS))
    cluster.check_same(topic, everybody)


@pytest.mark.parametrize("replicas", [(STRANDLINE_ID, SECOND_ID), (STRANDLINE_ID, KAFKA_ID)])
def test_after_the_death_of_the_leader_what_was_acknowledged_is_there_once(
    cluster: Replicated, replicas: tuple[int, int]
) -> None:
    leader, follower = replicas
    topic = cluster.create(replicas)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "message.timeout.ms": 60_000,
        }
    )
    acknowledged: list[bytes] = []

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        acknowledged.append(message.value() or b"")

    sent = numbered(0, 4 * RECORDS)
    for number, value in enumerate(sent):
        producer.produce(topic, value, partition=0, on_delivery=note)
        producer.poll(0.002)
        if number == RECORDS:
            cluster.ours[leader].kill()
    assert producer.flush(WAIT_S) == 0
    assert sorted(acknowledged) == sorted(sent)
    assert cluster.state(topic)[0] == follower
    assert read(cluster, topic, len(sent)) == sent
    cluster.ours[leader].start()
    eventually(lambda: cluster.state(topic)[1] == sorted(replicas))
    cluster.check_same(topic, replicas)


def test_a_leader_that_stood_still_gives_up_what_it_alone_has(cluster: Replicated) -> None:
    replicas = (STRANDLINE_ID, SECOND_ID, KAFKA_ID)
    topic = cluster.create(replicas)
    produce(cluster, topic, numbered(0))
    stopped = cluster.ours[STRANDLINE_ID]
    # A client that asked the one that stands still would wait for its answer.
    other = {"bootstrap.servers": cluster.ours[SECOND_ID].bootstrap}
    admin = AdminClient(other)
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        eventually(lambda: state_of(admin, topic)[0] not in (STRANDLINE_ID, -1))
        produce(cluster, topic, numbered(RECORDS), **other)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    # It learns that it leads no more, follows, and is in sync again.
    eventually(lambda: cluster.state(topic)[1] == sorted(replicas))
    produce(cluster, topic, numbered(2 * RECORDS))
    assert read(cluster, topic, 3 * RECORDS) == numbered(0, 3 * RECORDS)
    cluster.check_same(topic, replicas)


@pytest.mark.parametrize("victim", [STRANDLINE_ID, SECOND_ID])
def test_transactions_count_once_while_a_broker_dies(cluster: Replicated, victim: int) -> None:
    """The broker leads partitions of the topic, of the groups and of the transactions."""
    replicas = (victim, KAFKA_ID, *(one for one in OURS if one != victim))
    topic = cluster.create(replicas, min_insync_replicas="2")
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": f"to-{topic}",
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(WAIT_S)
    committed: list[bytes] = []
    try:
        for number in range(30):
            producer.begin_transaction()
            values = numbered(10 * number, 10)
            for value in values:
                producer.produce(topic, value, partition=0)
            if number == 10:
                cluster.ours[victim].kill()
            try:
                if number % 3 == 2:
                    # Else nothing of it may have begun. While the transaction before it ends, a
                    # coordinator of either kind refuses to end one that has not, and librdkafka
                    # gives up at that.
                    assert producer.flush(WAIT_S) == 0
                    producer.abort_transaction(WAIT_S)
                else:
                    producer.commit_transaction(WAIT_S)
                    committed += values
            except KafkaException as error:
                # What was begun when it died may have to be given up, and then counts not at all.
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(WAIT_S)
        found = read(cluster, topic, len(committed), **{"isolation.level": "read_committed"})
        assert found == committed
    finally:
        # The tests after this one want it, whatever happened here.
        if not cluster.ours[victim].running:
            cluster.ours[victim].start()
    eventually(lambda: cluster.state(topic)[1] == sorted(replicas))
    cluster.check_same(topic, replicas)


def test_each_broker_leads_and_dies_under_load_and_all_folders_are_the_same(
    cluster: Replicated,
) -> None:
    """Each pair of a dead leader and the next one: Kafka's and ours, ours and ours, ours and
    Kafka's. Groups and transactions have their coordinators on all three.
    """
    everybody = (KAFKA_ID, STRANDLINE_ID, SECOND_ID)
    assignment = [[*everybody[n:], *everybody[:n]] for n in range(len(everybody))]
    topics = {kind: f"{kind}-{uuid.uuid4().hex[:6]}" for kind in ("plain", "transactions")}
    for topic in topics.values():
        new = NewTopic(
            topic,
            len(assignment),
            replica_assignment=assignment,
            config={"min.insync.replicas": "2"},
        )
        cluster.admin().create_topics([new])[topic].result(WAIT_S)
    eventually(lambda: all(cluster.is_whole(topic, assignment) for topic in topics.values()))
    writing = Writing(cluster.bootstrap, topics["plain"], len(assignment))
    committing = Committing(cluster.bootstrap, topics["transactions"], len(assignment))
    reading = Reading(cluster.bootstrap, topics["transactions"], topics["plain"], "classic")
    clients = (writing, committing, reading)
    for client in clients:
        client.begin()
    for victim, heir in zip(everybody, [*everybody[1:], everybody[0]], strict=True):
        for client in clients:
            client.goes_on()
        cluster.kill(victim)
        cluster.await_heir(heir, topics.values())
        for client in clients:
            client.goes_on()
        cluster.start(victim)
        cluster.elect_first(topics.values(), assignment)
    for client in (writing, committing):
        client.end()
    reading.reads_to(dict.fromkeys(range(len(assignment)), len(committing.committed)))
    reading.end()
    for partition in range(len(assignment)):
        told = writing.acknowledged[partition]
        assert [offset for offset, _ in told] == list(range(len(told)))
        assert [value for _, value in reading.read[partition]] == committing.committed
    for topic in (*topics.values(), "__consumer_offsets", "__transaction_state"):
        cluster.check_same(topic, everybody)
    dumped = cluster.dump(KAFKA_ID, topics["plain"])
    records = sum(len(told) for told in writing.acknowledged.values())
    assert sum(line.startswith("| offset:") for line in dumped) == records

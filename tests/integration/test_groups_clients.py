"""Groups of real clients: members come and go while data flows, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, ConsumerGroupState, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from tests.integration.calls import create_topic
from tests.integration.group_calls import new_group
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient

pytestmark = [pytest.mark.clients, pytest.mark.slow]

PARTITIONS = 6
RECORDS = 3000
# Long enough for every member to join and leave while records still come.
PRODUCE_S = 9.0
PATIENCE_S = 40.0

Delivery = tuple[int, int]


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.initial.rebalance.delay.ms": "300"}
    with BrokerProcess(tmp_path_factory.mktemp("clients"), settings=settings) as running:
        yield running
        assert "Traceback" not in running.log_text(), running.log_text()[-4000:]


@pytest.fixture
def topic(group_broker: BrokerProcess, topic_name: str) -> str:
    with WireClient(group_broker.port) as client:
        create_topic(client, topic_name, PARTITIONS)
    return topic_name


@pytest.fixture
def crew() -> Iterator[list[RunningMember]]:
    """The members of a test; those that it leaves behind are told to stop."""
    members: list[RunningMember] = []
    yield members
    for member in members:
        member.stopping.set()


class RunningMember(Protocol):
    """A consumer in a thread of its own."""

    delivered: list[Delivery]
    stopping: threading.Event

    def stop(self) -> None:
        """Leaves the group cleanly; returns when it has left."""
        ...


class _ThreadMember:
    """What the threads of all clients have in common."""

    def __init__(self, broker: BrokerProcess, topic: str, group_id: str) -> None:
        self.broker = broker
        self.topic = topic
        self.group_id = group_id
        self.delivered: list[Delivery] = []
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failure = error
            raise

    def run(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.failure is None, self.failure


class LibrdkafkaMember(_ThreadMember):
    """Commits what it delivered before it gives a partition away."""

    strategy = "range,roundrobin"

    def run(self) -> None:
        next_offsets: dict[int, int] = {}
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": self.group_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 300,
                "session.timeout.ms": 6000,
                "partition.assignment.strategy": self.strategy,
            }
        )

        def on_revoke(consumer: Consumer, revoked: list[TopicPartition]) -> None:
            offsets = [
                TopicPartition(self.topic, gone.partition, next_offsets.pop(gone.partition))
                for gone in revoked
                if gone.partition in next_offsets
            ]
            if offsets:
                consumer.commit(offsets=offsets, asynchronous=False)

        consumer.subscribe([self.topic], on_revoke=on_revoke)
        while not self.stopping.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.delivered.append((message.partition(), message.offset()))
                next_offsets[message.partition()] = message.offset() + 1
        consumer.close()


class CooperativeMember(LibrdkafkaMember):
    strategy = "cooperative-sticky"


class KafkaPythonMember(_ThreadMember):
    """kafka-python commits by itself before a rebalance and when it is closed."""

    def run(self) -> None:
        consumer = KafkaConsumer(
            self.topic,
            bootstrap_servers=self.broker.bootstrap,
            group_id=self.group_id,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            session_timeout_ms=6000,
        )
        while not self.stopping.is_set():
            for messages in consumer.poll(timeout_ms=100).values():
                self.delivered += [(message.partition, message.offset) for message in messages]
        consumer.close()


class AiokafkaMember(_ThreadMember):
    """aiokafka does the same."""

    def run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.broker.bootstrap,
            group_id=self.group_id,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            session_timeout_ms=6000,
        )
        await consumer.start()
        try:
            while not self.stopping.is_set():
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    self.delivered += [(message.partition, message.offset) for message in messages]
        finally:
            await consumer.stop()


class SteadyProducer:
    """Produces RECORDS within PRODUCE_S, round robin, in a thread."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        self._topic = topic
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in range(RECORDS):
            self._producer.produce(self._topic, value=b"%d" % number, partition=number % PARTITIONS)
            if number % 30 == 0:
                self._producer.poll(0)
                time.sleep(PRODUCE_S * 30 / RECORDS)

    def finish(self) -> None:
        self._thread.join(PATIENCE_S)
        assert self._producer.flush(PATIENCE_S) == 0


EVERYTHING = {
    (partition, offset)
    for partition in range(PARTITIONS)
    for offset in range(RECORDS // PARTITIONS)
}

StartMember = Callable[[BrokerProcess, str, str], RunningMember]


@pytest.mark.parametrize(
    "start", [LibrdkafkaMember, CooperativeMember, KafkaPythonMember, AiokafkaMember]
)
def test_members_come_and_go_and_each_record_is_delivered_once(
    group_broker: BrokerProcess, topic: str, start: StartMember, crew: list[RunningMember]
) -> None:
    group_id, members = new_group(), crew
    producer = SteadyProducer(group_broker, topic)
    members.append(start(group_broker, topic, group_id))
    assert eventually(lambda: members[0].delivered)
    for _ in range(2):
        members.append(start(group_broker, topic, group_id))
        newest = members[-1]
        assert eventually(lambda newest=newest: newest.delivered, timeout_s=PATIENCE_S)
    members[0].stop()
    producer.finish()
    assert eventually(
        lambda: sum(len(member.delivered) for member in members) >= RECORDS, timeout_s=PATIENCE_S
    )
    for member in members[1:]:
        member.stop()
    counts = Counter(delivery for member in members for delivery in member.delivered)
    assert set(counts) == EVERYTHING
    assert [delivery for delivery, count in counts.items() if count > 1] == []


def test_members_of_different_clients_share_a_group(
    group_broker: BrokerProcess, topic: str, crew: list[RunningMember]
) -> None:
    """All three know the range assignor, so they can be in one group."""
    group_id, members = new_group(), crew
    producer = SteadyProducer(group_broker, topic)
    for start in (KafkaPythonMember, LibrdkafkaMember, AiokafkaMember):
        members.append(start(group_broker, topic, group_id))
        newest = members[-1]
        assert eventually(lambda newest=newest: newest.delivered, timeout_s=PATIENCE_S)
    producer.finish()
    assert eventually(
        lambda: sum(len(member.delivered) for member in members) >= RECORDS, timeout_s=PATIENCE_S
    )
    for member in members:
        member.stop()
    counts = Counter(delivery for member in members for delivery in member.delivered)
    assert set(counts) == EVERYTHING
    assert max(counts.values()) == 1


CRASHING_MEMBER = """
import sys, time
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2],
                     "session.timeout.ms": 6000, "auto.offset.reset": "earliest",
                     "enable.auto.commit": False})
consumer.subscribe([sys.argv[3]])
while True:
    message = consumer.poll(1)
    if message is not None and message.error() is None:
        print("delivered", flush=True)
"""


def test_the_partitions_of_a_member_that_crashes_are_taken_over(
    group_broker: BrokerProcess, topic: str, crew: list[RunningMember]
) -> None:
    group_id = new_group()
    producer = SteadyProducer(group_broker, topic)
    crashing = subprocess.Popen(
        [sys.executable, "-c", CRASHING_MEMBER, group_broker.bootstrap, group_id, topic],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert crashing.stdout is not None
    try:
        assert crashing.stdout.readline() == "delivered\n"
        member = LibrdkafkaMember(group_broker, topic, group_id)
        crew.append(member)
        assert eventually(lambda: member.delivered, timeout_s=PATIENCE_S)
    finally:
        crashing.send_signal(signal.SIGKILL)
        crashing.wait(10)
        crashing.stdout.close()
    producer.finish()
    # It had committed nothing, so the survivor sees everything.
    assert eventually(lambda: set(member.delivered) == EVERYTHING, timeout_s=PATIENCE_S)
    member.stop()


def test_operators_see_groups_with_librdkafkas_admin_client(
    group_broker: BrokerProcess, topic: str, crew: list[RunningMember]
) -> None:
    group_id = new_group()
    producer = SteadyProducer(group_broker, topic)
    member = LibrdkafkaMember(group_broker, topic, group_id)
    crew.append(member)
    assert eventually(lambda: member.delivered, timeout_s=PATIENCE_S)
    admin = AdminClient({"bootstrap.servers": group_broker.bootstrap})
    (found,) = [
        group
        for group in admin.list_consumer_groups(request_timeout=10).result().valid
        if group.group_id == group_id
    ]
    assert found.state is ConsumerGroupState.STABLE
    described = admin.describe_consumer_groups([group_id], request_timeout=10)[group_id].result()
    assert described.partition_assignor == "range"
    (one,) = described.members
    assert {p.partition for p in one.assignment.topic_partitions} == set(range(PARTITIONS))
    producer.finish()
    assert eventually(lambda: len(member.delivered) == RECORDS, timeout_s=PATIENCE_S)
    member.stop()
    deleted = admin.delete_consumer_groups([group_id], request_timeout=10)
    deleted[group_id].result()
    left = admin.list_consumer_groups(request_timeout=10).result().valid
    assert group_id not in {group.group_id for group in left}

"""Real clients as members of a group, each in a thread, and a producer that feeds them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from tests.support.broker import REPOSITORY, BrokerProcess, eventually

PARTITIONS = 6
RECORDS = 3000
# Long enough for every member to join and leave while records still come.
PRODUCE_S = 9.0
PATIENCE_S = 120.0
# Kept back by a producer until it is to finish, so that who joins late finds something to read.
RESERVE = RECORDS // 3
RESERVE_PAUSE_S = 2 * PATIENCE_S / RESERVE
# Members that leave say so. A thread of a loaded machine may be silent for longer than six seconds,
# and its partitions would be read twice.
SESSION_MS = 30_000

Delivery = tuple[int, int]


class RunningMember(Protocol):
    """A consumer in a thread of its own."""

    delivered: list[Delivery]
    stopping: threading.Event

    def stop(self) -> None:
        """Leaves the group cleanly; returns when it has left."""
        ...


def assert_each_record_was_delivered_once(members: Sequence[RunningMember]) -> None:
    counts = Counter(delivery for member in members for delivery in member.delivered)
    assert set(counts) == EVERYTHING
    assert [delivery for delivery, count in counts.items() if count > 1] == []


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
    """Commits what it delivered before it gives a partition away.

    No commit fails: the answer with its next epoch may still be on its way.
    """

    settings: ClassVar[dict[str, str | int]] = {
        "heartbeat.interval.ms": 300,
        "session.timeout.ms": SESSION_MS,
        "partition.assignment.strategy": "range,roundrobin",
    }

    def run(self) -> None:
        next_offsets: dict[int, int] = {}
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": self.group_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **self.settings,
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
            self.after_poll(consumer, next_offsets)
        self.before_close(consumer, next_offsets)
        consumer.close()

    def after_poll(self, consumer: Consumer, next_offsets: dict[int, int]) -> None:
        """What a member does besides."""

    def before_close(self, consumer: Consumer, next_offsets: dict[int, int]) -> None:
        """What it does at its end."""


class CooperativeMember(LibrdkafkaMember):
    settings: ClassVar[dict[str, str | int]] = {
        **LibrdkafkaMember.settings,
        "partition.assignment.strategy": "cooperative-sticky",
    }


class NewProtocolMember(LibrdkafkaMember):
    """Speaks KIP-848; the broker says how often it beats and who reads what."""

    settings: ClassVar[dict[str, str | int]] = {"group.protocol": "consumer"}

    def before_close(self, consumer: Consumer, next_offsets: dict[int, int]) -> None:
        """Commits: if a rebalance is under way, librdkafka 2.16 may leave before it revokes."""
        if next_offsets:
            self._commit(consumer, next_offsets)
            next_offsets.clear()

    def _commit(self, consumer: Consumer, next_offsets: dict[int, int]) -> None:
        offsets = [TopicPartition(self.topic, *found) for found in next_offsets.items()]
        consumer.commit(offsets=offsets, asynchronous=False)


class CommittingMember(NewProtocolMember):
    """Commits all that it has, again and again, and waits for each answer."""

    commits = 0

    def after_poll(self, consumer: Consumer, next_offsets: dict[int, int]) -> None:
        if next_offsets:
            self._commit(consumer, next_offsets)
            self.commits += 1


class KafkaPythonMember(_ThreadMember):
    """kafka-python commits by itself before a rebalance and when it is closed."""

    settings: ClassVar[dict[str, object]] = {}

    def run(self) -> None:
        consumer = KafkaConsumer(
            self.topic,
            bootstrap_servers=self.broker.bootstrap,
            group_id=self.group_id,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            session_timeout_ms=SESSION_MS,
            **self.settings,
        )
        while not self.stopping.is_set():
            for messages in consumer.poll(timeout_ms=100).values():
                self.delivered += [(message.partition, message.offset) for message in messages]
        consumer.close()


class KafkaPythonCooperativeMember(KafkaPythonMember):
    settings: ClassVar[dict[str, object]] = {
        "partition_assignment_strategy": [CooperativeStickyAssignor]
    }


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
            session_timeout_ms=SESSION_MS,
        )
        await consumer.start()
        try:
            while not self.stopping.is_set():
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    self.delivered += [(message.partition, message.offset) for message in messages]
        finally:
            await consumer.stop()


class SteadyProducer:
    """Produces RECORDS, round robin, in a thread: most within some seconds, the rest slowly.

    However long members take to join, there is more to come until `finish`.
    """

    def __init__(self, broker: BrokerProcess, topic: str, *, seconds: float = PRODUCE_S) -> None:
        self._pause_s = seconds * 30 / RECORDS
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        self._topic = topic
        self._finishing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in range(RECORDS):
            self._producer.produce(self._topic, value=b"%d" % number, partition=number % PARTITIONS)
            if number >= RECORDS - RESERVE:
                self._producer.poll(0)
                self._finishing.wait(RESERVE_PAUSE_S)
            elif number % 30 == 0:
                self._producer.poll(0)
                self._finishing.wait(self._pause_s)

    def finish(self) -> None:
        """All of them at once that are left."""
        self._finishing.set()
        self._thread.join(PATIENCE_S)
        assert self._producer.flush(PATIENCE_S) == 0


EVERYTHING = {
    (partition, offset)
    for partition in range(PARTITIONS)
    for offset in range(RECORDS // PARTITIONS)
}


def crash_and_hang(
    client: str,
    broker: BrokerProcess,
    topic: str,
    group_id: str,
    start: Callable[[BrokerProcess, str, str], RunningMember],
    crew: list[RunningMember],
) -> None:
    """Of two members one is killed and one hangs: one more gets every record from then on."""
    producer = SteadyProducer(broker, topic, seconds=3.0)
    command = [sys.executable, "-m", "tests.system.groups.doomed_member", client]
    doomed = [
        subprocess.Popen(
            [*command, broker.bootstrap, group_id, topic],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for one in doomed:
            assert one.stdout is not None
            assert one.stdout.readline() == "delivered\n"
        member = start(broker, topic, group_id)
        crew.append(member)
        assert eventually(lambda: member.delivered, timeout_s=PATIENCE_S)
        doomed[0].send_signal(signal.SIGKILL)
        doomed[1].send_signal(signal.SIGSTOP)
        producer.finish()
        # They had committed nothing, so the survivor sees everything.
        assert eventually(lambda: set(member.delivered) == EVERYTHING, timeout_s=PATIENCE_S)
        member.stop()
    finally:
        for one in doomed:
            one.kill()
            one.communicate(timeout=60)

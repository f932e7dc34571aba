"""A partition with three replicas that is written to and read while a test ends its brokers:
kafkatest's end_to_end.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.broker.protocol.messages.describe_topic_partitions import (
    DescribedTopicPartition,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.cluster.bounced import WAIT_S, BouncedCluster

PATIENCE_S = 3 * WAIT_S
# A broker that stands still answers nothing, and the client asks another one after this.
SOCKET_MS = 6_000


class ReplicatedPartition:
    """Partition 0 of a topic of its own, as the controller has it."""

    def __init__(self, cluster: BouncedCluster, **config: str) -> None:
        self.cluster = cluster
        self.topic = f"replicated-{uuid.uuid4().hex[:6]}"
        texts = {name.replace("_", "."): text for name, text in config.items()}
        cluster.create(self.topic, replicas=len(cluster.brokers), config=texts)
        self.await_in_sync(self.brokers())

    def state(self, asked: BrokerProcess) -> DescribedTopicPartition:
        """What a broker that serves says."""
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsTopic(name=self.topic)]
        )
        with WireClient(asked.port) as client:
            answer = client.ask(request, DescribeTopicPartitionsResponse, 0)
        return answer.topics[0].partitions[0]

    def brokers(self) -> list[BrokerProcess]:
        """Those that run."""
        return [one for one in self.cluster.brokers if one.running]

    def leader(self, asked: BrokerProcess | None = None) -> BrokerProcess:
        """Waits until there is one that runs; `asked` is who says so."""

        def found() -> BrokerProcess | None:
            number = self.state(asked or self.brokers()[0]).leader_id
            leader = self.cluster.brokers[number - 1] if number > 0 else None
            return leader if leader is not None and leader.running else None

        leader = eventually(found, timeout_s=PATIENCE_S)
        assert isinstance(leader, BrokerProcess)
        return leader

    def followers(self) -> list[BrokerProcess]:
        leader = self.leader()
        return [one for one in self.cluster.brokers if one is not leader]

    def await_in_sync(
        self, expected: Sequence[BrokerProcess], asked: BrokerProcess | None = None
    ) -> None:
        """Returns when these replicas are in sync, and no other."""
        numbers = self.numbers(expected)
        eventually(
            lambda: sorted(self.state(asked or self.brokers()[0]).isr_nodes) == numbers,
            timeout_s=PATIENCE_S,
        )

    def numbers(self, brokers: Sequence[BrokerProcess]) -> list[int]:
        return sorted(self.cluster.brokers.index(one) + 1 for one in brokers)


class EndToEnd:
    """A producer that waits for all in sync, and a reader, while something happens between them.

    In the end all that was produced was acknowledged, and read once and in order, by who read
    meanwhile and by who reads afterwards.
    """

    def __init__(self, partition: ReplicatedPartition, bootstrap: str = "") -> None:
        self.acknowledged: list[int] = []
        self.read: list[int] = []
        self._partition = partition
        self._client: dict[str, str | int] = {
            "bootstrap.servers": bootstrap or partition.cluster.bootstrap,
            "socket.timeout.ms": SOCKET_MS,
        }
        self._failed: list[KafkaError] = []
        self._is_over, self._is_read = threading.Event(), threading.Event()
        self._sent = 0
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._read)]

    def __enter__(self) -> EndToEnd:
        for thread in self._threads:
            thread.start()
        self.await_more(50)
        return self

    def await_more(self, count: int) -> None:
        """Returns when so many more are acknowledged and read."""
        acknowledged, read = len(self.acknowledged) + count, len(self.read) + count
        eventually(
            lambda: len(self.acknowledged) >= acknowledged and len(self.read) >= read,
            timeout_s=PATIENCE_S,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._threads[0].join()
        if kind is None:
            eventually(lambda: len(self.read) >= self._sent, timeout_s=PATIENCE_S)
        self._is_read.set()
        self._threads[1].join()
        if kind is not None:
            return
        assert self._failed == []
        expected = list(range(self._sent))
        assert self.acknowledged == expected
        assert self.read == expected
        assert read_all(self._client, self._partition.topic, self._sent) == expected

    def _send(self) -> None:
        producer = Producer(
            {**self._client, "enable.idempotence": True, "linger.ms": 2, "acks": "all"}
        )

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failed.append(error)
            else:
                self.acknowledged.append(int(message.value() or b"-1"))

        while not self._is_over.wait(0.003):
            value = b"%d" % self._sent
            producer.produce(self._partition.topic, value, partition=0, on_delivery=note)
            self._sent += 1
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0

    def _read(self) -> None:
        consumer = Consumer({**self._client, "group.id": "meanwhile", "enable.auto.commit": False})
        consumer.assign([TopicPartition(self._partition.topic, 0, 0)])
        while not self._is_read.is_set():
            for one in consumer.consume(500, timeout=0.1):
                if one.error() is None:
                    self.read.append(int(one.value() or b"-1"))
        consumer.close()


def read_all(client: Mapping[str, str | int], topic: str, count: int) -> list[int]:
    """The values of a partition from its start on; at least so many."""
    consumer = Consumer({**client, "group.id": "afterwards", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []

    def is_read() -> bool:
        found.extend(
            int(one.value() or b"-1") for one in consumer.consume(5000, 0.2) if not one.error()
        )
        return len(found) >= count

    eventually(is_read, timeout_s=PATIENCE_S)
    consumer.close()
    return found


def admin_of(brokers: Sequence[BrokerProcess]) -> AdminClient:
    return AdminClient({"bootstrap.servers": ",".join(one.bootstrap for one in brokers)})

"""Clients of the demo of a cluster: one produces numbers steadily, and a group reads them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import pairwise

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from demo.children import Child
from demo.clients import QUIET
from demo.screen import DemoError
from demo.settings import STALL_SECONDS_MAX
from strandline.storage.plurals import counted

GROUP = "ticks"
# Of the producer. Enough to see it move, little enough for a busy laptop.
RECORDS_PER_SECOND = 2000
BATCH_SECONDS = 0.02
FLUSH_SECONDS_MAX = 60.0


class TickProducer:
    """Sends numbers with an idempotent producer, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                # Of a broker that was killed: clients find out again within this time.
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 250,
                "retry.backoff.max.ms": 100,
            }
        )
        self._topic = topic
        self._stopping = threading.Event()
        self._acknowledged_s: defaultdict[int, list[float]] = defaultdict(list)
        self.sent_count = 0
        self.refused_count = 0
        self.acknowledged: list[int] = []
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when every record has its answer."""
        self._stopping.set()
        self._thread.join()

    def all_served_since(self, moment_s: float) -> bool:
        """Whether each partition has acknowledged something since."""
        return all(times[-1] > moment_s for times in list(self._acknowledged_s.values()))

    def gaps_ms(self, moment_s: float) -> dict[int, float]:
        """The longest wait between two acknowledgments of each partition, from that moment on."""
        return {
            partition: 1000
            * max(after - before for before, after in pairwise(times) if after >= moment_s)
            for partition, times in self._acknowledged_s.items()
        }

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - began_s) * RECORDS_PER_SECOND)
            while self.sent_count < due:
                value = b"%d" % self.sent_count
                try:
                    self._producer.produce(
                        self._topic, value, key=value, on_delivery=self._delivered
                    )
                except BufferError:
                    break
                self.sent_count += 1
            self._producer.poll(BATCH_SECONDS)
        self._producer.flush(FLUSH_SECONDS_MAX)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused_count += 1
            return
        self.acknowledged.append(int(message.value() or b""))
        self._acknowledged_s[int(message.partition() or 0)].append(time.monotonic())


class GroupMember:
    """A consumer of the group, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 250,
            }
        )
        self._consumer.subscribe([topic])
        self._stopping = threading.Event()
        self.values: list[int] = []
        self._thread = threading.Thread(target=self._run, name="member", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(1000, timeout=0.1):
                if message.error() is None:
                    self.values.append(int(message.value() or b""))
        self._consumer.close()


def read_all(
    bootstrap: str, topic: str, partition_count: int, record_count: int, cluster: Child
) -> list[int]:
    """Reads every partition from offset 0 to its end."""
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": f"{GROUP}-check",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        places = [TopicPartition(topic, number, 0) for number in range(partition_count)]
        ends = [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
        consumer.assign(places)
        values: list[int] = []
        moved_s = time.monotonic()
        while len(values) < sum(ends):
            messages = consumer.consume(10_000, timeout=0.5)
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                values.append(int(message.value() or b""))
            cluster.check()
            if messages:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > STALL_SECONDS_MAX:
                came = counted(len(values), "record")
                raise DemoError(f"{came} came, and {record_count:,} were acknowledged")
        return values
    finally:
        consumer.close()

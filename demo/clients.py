"""What an application does: create the topic, produce, consume, with confluent-kafka alone."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from demo.children import Child
from demo.flights import FlightRecord, RecordSum
from demo.screen import Bar, DemoError
from demo.settings import PARTITION_COUNT, STALL_SECONDS_MAX, TOPIC, TOPIC_CONFIG
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

REQUEST_SECONDS_MAX = 30.0
# A client whose broker is gone would fill the screen; what is wrong is in the broker's log.
QUIET = {"log_level": 2}
# Deliveries are reported to us, and the bar is moved, each so many records.
RECORDS_PER_POLL = 2000
RECORDS_PER_READ = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where each record of the source went, by its row."""

    partitions: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    def end_offsets(self) -> dict[int, int]:
        """Per partition the offset behind its last record; 0 for a partition without any."""
        ends = dict.fromkeys(range(PARTITION_COUNT), 0)
        for partition in ends:
            mine = self.offsets[self.partitions == partition]
            ends[partition] = int(mine.max()) + 1 if len(mine) else 0
        return ends


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, num_partitions=PARTITION_COUNT, config=TOPIC_CONFIG)
    created = admin.create_topics([topic], request_timeout=REQUEST_SECONDS_MAX)
    created[TOPIC].result(REQUEST_SECONDS_MAX)


class FlightProducer:
    """Sends records with an idempotent producer and keeps where the broker put each."""

    def __init__(self, bootstrap: str, record_count: int, broker: Child) -> None:
        import numpy as np

        self._broker = broker
        self._producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": "zstd",
                # Fuller batches compress better, and nobody waits for a single flight; but a batch
                # should be of one week, or segments would overlap in time more than they need.
                "linger.ms": 50,
                "batch.size": 128 * 1024,
            }
        )
        self._partitions = np.full(record_count, -1, dtype=np.int64)
        self._offsets = np.full(record_count, -1, dtype=np.int64)
        self._error: KafkaError | None = None
        self.delivered_count = 0
        self.sent = RecordSum()

    def send_all(self, records: Iterable[FlightRecord], bar: Bar) -> Placement:
        """Returns when the broker has acknowledged every record."""
        for row, record in enumerate(records):
            self._send(row, record)
            if row % RECORDS_PER_POLL == 0:
                self._poll(0)
                bar.update(self.delivered_count)
        self._wait_for_deliveries(bar)
        return Placement(partitions=self._partitions, offsets=self._offsets)

    def _send(self, row: int, record: FlightRecord) -> None:
        self.sent.add(*record)
        while True:
            try:
                self._producer.produce(
                    TOPIC,
                    key=record.key,
                    value=record.value,
                    timestamp=record.timestamp_ms,
                    on_delivery=functools.partial(self._delivered, row),
                )
            except BufferError:  # The client's queue is full: let some be delivered.
                self._poll(0.1)
            else:
                return

    def _wait_for_deliveries(self, bar: Bar) -> None:
        moved_at, seen = time.monotonic(), self.delivered_count
        while len(self._producer):
            self._poll(0.1)
            bar.update(self.delivered_count)
            if self.delivered_count != seen:
                moved_at, seen = time.monotonic(), self.delivered_count
            elif time.monotonic() - moved_at > STALL_SECONDS_MAX:
                raise DemoError(f"{counted(len(self._producer), 'record')} not acknowledged")

    def _poll(self, seconds: float) -> None:
        self._producer.poll(seconds)
        self._broker.check()
        if self._error is not None:
            raise DemoError(f"a record was not accepted: {self._error}")

    def _delivered(self, row: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._error = error
            return
        self._partitions[row] = int(message.partition() or 0)
        self._offsets[row] = int(message.offset() or 0)
        self.delivered_count += 1


def read_everything(
    bootstrap: str, end_offsets: dict[int, int], bar: Bar, broker: Child
) -> RecordSum:
    """Reads every partition from offset 0 up to its end, as any consumer would."""
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            # librdkafka wants a name even where partitions are assigned by hand.
            "group.id": "strandline-demo",
            "enable.auto.commit": False,
            # An offset the broker cannot serve is an error here, not a reason to start elsewhere.
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in end_offsets])
        return _read_to_the_end(consumer, end_offsets, bar, broker)
    finally:
        consumer.close()


def _read_to_the_end(
    consumer: Consumer, end_offsets: dict[int, int], bar: Bar, broker: Child
) -> RecordSum:
    received = RecordSum()
    unread = {partition for partition, end_offset in end_offsets.items() if end_offset}
    moved_at = time.monotonic()
    while unread:
        messages = consumer.consume(RECORDS_PER_READ, timeout=0.5)
        for message in messages:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            received.add(message.key() or b"", message.value() or b"", message.timestamp()[1])
            partition, offset = int(message.partition() or 0), int(message.offset() or 0)
            if offset + 1 >= end_offsets[partition]:
                unread.discard(partition)
        bar.update(received.record_count)
        broker.check()
        if messages:
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > STALL_SECONDS_MAX:
            raise DemoError(f"nothing more came from the partitions {sorted(unread)}")
    return received

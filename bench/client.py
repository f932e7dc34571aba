"""librdkafka producing and consuming, as fast as one Python process drives it."""

from __future__ import annotations

import os
import time

from confluent_kafka import Consumer, Producer, TopicPartition

CONSUME_TIMEOUT_S = 120.0


def produce(
    bootstrap: str, topic: str, *, record_bytes: int, batch_bytes: int, total_bytes: int
) -> int:
    """Sends `total_bytes` of records to partition 0 and waits for every answer; the count."""
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "linger.ms": 5,
            "batch.size": batch_bytes,
            "batch.num.messages": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "message.max.bytes": 3_000_000,
            "on_delivery": lambda error, _: failures.append(error) if error else None,
        }
    )
    value = os.urandom(record_bytes)
    count = total_bytes // record_bytes
    sent = 0
    while sent < count:
        try:
            producer.produce(topic, value, partition=0)
            sent += 1
            if sent % 10_000 == 0:
                producer.poll(0)
        except BufferError:
            producer.poll(0.01)
    left = producer.flush(CONSUME_TIMEOUT_S)
    if left or failures:
        raise RuntimeError(f"{left} records unanswered, first failure {failures[:1]}")
    return count


def consume(bootstrap: str, topic: str, *, count: int, from_offset: int = 0) -> int:
    """Reads `count` records of partition 0; the sum of their value bytes."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 1 << 20,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1 << 18,
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.assign([TopicPartition(topic, 0, from_offset)])
    got = value_bytes = 0
    deadline_s = time.monotonic() + CONSUME_TIMEOUT_S
    while got < count:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{got} of {count} records in {CONSUME_TIMEOUT_S} s")
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            got += 1
            value_bytes += len(message.value())
    consumer.close()
    return value_bytes

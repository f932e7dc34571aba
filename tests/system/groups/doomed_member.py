"""A member of a group in a process of its own, to be killed or stopped: it commits nothing.

    python -m tests.system.groups.doomed_member CLIENT BOOTSTRAP GROUP TOPIC

Says `delivered` with the first record, and reads on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer
from kafka import KafkaConsumer

# It is soon missed. Those who go on have longer ones: a busy machine must not throw them out.
SESSION_MS = 2000
HEARTBEAT_MS = 300


def say_so() -> None:
    sys.stdout.write("delivered\n")
    sys.stdout.flush()


def with_librdkafka(bootstrap: str, group_id: str, topic: str) -> None:
    times = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
    consume_with_librdkafka(bootstrap, group_id, topic, times)


def with_new_protocol(bootstrap: str, group_id: str, topic: str) -> None:
    """How soon it is missed is the broker's to say."""
    consume_with_librdkafka(bootstrap, group_id, topic, {"group.protocol": "consumer"})


def consume_with_librdkafka(
    bootstrap: str, group_id: str, topic: str, settings: Mapping[str, str | int]
) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            say_so()


def with_kafka_python(bootstrap: str, group_id: str, topic: str) -> None:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group_id,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    for _ in consumer:
        say_so()


def with_aiokafka(bootstrap: str, group_id: str, topic: str) -> None:
    async def consume() -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group_id,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        async for _ in consumer:
            say_so()

    asyncio.run(consume())


CLIENTS = {
    "librdkafka": with_librdkafka,
    "librdkafka, new protocol": with_new_protocol,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
}

if __name__ == "__main__":
    CLIENTS[sys.argv[1]](*sys.argv[2:])

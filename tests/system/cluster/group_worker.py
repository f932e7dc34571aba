"""A member of a group that tells what it does, as kafkatest's VerifiableConsumer.

    python -m tests.system.cluster.group_worker BOOTSTRAP GROUP TOPIC PROTOCOL [INSTANCE]

Each line of its output is an event. It commits what it has told, and leaves the group at SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

BATCH_MAX = 100
SESSION_MS = 30_000


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def main(bootstrap: str, group: str, topic: str, protocol: str, instance: str = "") -> None:
    is_over = False

    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if protocol == "classic":
        settings["session.timeout.ms"] = SESSION_MS
    if instance:
        settings["group.instance.id"] = instance
    consumer = Consumer(settings)
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: tell("assigned", partitions=numbers(partitions)),
        on_revoke=lambda _, partitions: tell("revoked", partitions=numbers(partitions)),
        on_lost=lambda _, partitions: tell("revoked", partitions=numbers(partitions)),
    )
    try:
        while not is_over:
            take(consumer, consumer.consume(BATCH_MAX, timeout=0.1))
    except KafkaException as error:
        tell("failed", reason=str(error))
    finally:
        consumer.close()
        tell("closed")


def take(consumer: Consumer, messages: list[Message]) -> None:
    spans: dict[int, list[int]] = {}
    for message in messages:
        error = message.error()
        if error is not None:
            # The error of a message says so by its code alone.
            if error.code() == KafkaError._FATAL:
                raise KafkaException(error)
            continue
        offset, partition = message.offset(), message.partition()
        assert offset is not None
        assert partition is not None
        span = spans.setdefault(partition, [offset, offset, 0])
        span[1], span[2] = offset, span[2] + 1
    for partition, (first, last, count) in spans.items():
        tell("consumed", partition=partition, first=first, last=last, count=count)
    if spans:
        commit(consumer)


def commit(consumer: Consumer) -> None:
    try:
        done = consumer.commit(asynchronous=False)
    except KafkaException as error:
        # Of an older generation: another member begins where the last commit was.
        tell("not committed", reason=str(error))
        return
    for one in done or []:
        # One of which it has read nothing since it was assigned has no offset to commit.
        if one.offset >= 0:
            tell("committed", partition=one.partition, offset=one.offset)


def numbers(partitions: list[TopicPartition]) -> list[int]:
    return [one.partition for one in partitions]


if __name__ == "__main__":
    main(*sys.argv[1:])

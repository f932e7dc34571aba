"""librdkafka: an idempotent producer, one of transactions, a consumer of the newer protocol."""

from __future__ import annotations

import random
import time

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)

from tests.system.cluster_faults.clients.options import Ending, Options, Pace, run_clients
from tests.system.cluster_faults.history import Writer, now_ms, padded, text_of

FLUSH_S = 60
CALL_S = 10
RECORDS_MAX = 30
ABORTED_PART = 0.3


def produce(options: Options, writer: Writer, ending: Ending) -> None:
    pace, name, number = Pace(options.records_per_s), options.generation, 0
    producer = _producer(options)

    def note(error: KafkaError | None, message: Message) -> None:
        kind = "refused" if error else "acknowledged"
        offset = message.offset()
        told = offset if not error and offset is not None and offset >= 0 else -1
        writer.note(kind, message.partition() or 0, told, text_of(message.value()))

    while not ending.has_come:
        try:
            for _ in range(pace.take()):
                value = padded(f"{name}:{number}", options.value_bytes)
                partition = number % options.partitions
                producer.produce(options.topic, value, partition=partition, on_delivery=note)
                number += 1
            producer.poll(0.02)
        except BufferError:
            producer.poll(0.02)
        except KafkaException:
            # Fatal: what it sent last may be there or not, and its sequence ends.
            producer.purge()
            producer.flush(CALL_S)
            name, producer = options.generation, _producer(options)
        writer.flush()
    producer.flush(FLUSH_S)


def _producer(options: Options) -> Producer:
    return Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "acks": "all",
            "enable.idempotence": options.is_idempotent,
            "linger.ms": 5,
            "queue.buffering.max.messages": 20_000,
            "reconnect.backoff.max.ms": 500,
            "request.timeout.ms": 5000,
        }
    )


def transact(options: Options, writer: Writer, ending: Ending) -> None:
    """Transactions over all partitions, of which some are aborted."""
    chance = random.Random(options.name)
    while not ending.has_come:
        name = options.generation
        producer = Producer(
            {
                "bootstrap.servers": options.bootstrap,
                "transactional.id": options.name,
                "transaction.timeout.ms": 20_000,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 500,
                "request.timeout.ms": 5000,
            }
        )
        try:
            producer.init_transactions(FLUSH_S)
        except KafkaException:
            continue
        number = 0
        while not ending.has_come and _transacted(
            producer, options, writer, f"{name}:{number}", chance
        ):
            number += 1
            writer.flush()
            time.sleep(chance.uniform(0, 2 * RECORDS_MAX / 2 / options.records_per_s))


def _transacted(
    producer: Producer, options: Options, writer: Writer, transaction: str, chance: random.Random
) -> bool:
    """Whether its producer can begin another one."""
    count, is_commit = chance.randint(1, RECORDS_MAX), chance.random() >= ABORTED_PART
    is_asked = False
    try:
        producer.begin_transaction()
        for number in range(count):
            value = padded(f"{transaction}:{number}", options.value_bytes)
            producer.produce(options.topic, value, partition=chance.randrange(options.partitions))
        if is_commit:
            is_asked = True
            producer.commit_transaction(FLUSH_S)
            writer.note("commit", -1, count, transaction)
        else:
            producer.abort_transaction(FLUSH_S)
            writer.note("abort", -1, count, transaction)
    except KafkaException as raised:
        error = raised.args[0]
        if not error.txn_requires_abort():
            writer.note("unknown" if is_asked else "abort", -1, count, transaction)
            return False
        try:
            producer.abort_transaction(FLUSH_S)
        except KafkaException:
            writer.note("unknown" if is_asked else "abort", -1, count, transaction)
            return False
        writer.note("abort", -1, count, transaction)
    return True


def consume(options: Options, writer: Writer, ending: Ending) -> None:
    isolation = "read_committed" if options.is_read_committed else "read_uncommitted"
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": options.group,
            "group.protocol": "consumer",
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
        }
    )

    consumer.subscribe([options.topic])
    next_s = time.monotonic()
    while not ending.has_come:
        for message in consumer.consume(500, 0.05):
            offset = message.offset()
            if message.error() is None and offset is not None:
                writer.note("read", message.partition() or 0, offset, text_of(message.value()))
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + 0.3
            _commit_and_look(consumer, writer)
        writer.flush()
    consumer.close()


def _commit_and_look(consumer: Consumer, writer: Writer) -> None:
    try:
        places = consumer.position(consumer.assignment())
        known = [one for one in places if one.offset >= 0]
        if known:
            # What was read is told before it is committed.
            writer.flush()
            for one in consumer.commit(offsets=known, asynchronous=False) or ():
                if one.error is None:
                    writer.note("committed", one.partition, one.offset)
        began_ms = now_ms()
        for one in consumer.committed(places, timeout=CALL_S):
            if one.error is None:
                offset = -1 if one.offset == OFFSET_INVALID else one.offset
                writer.note("found", one.partition, offset, str(began_ms))
        for one in places:
            began_ms = now_ms()
            found = consumer.get_watermark_offsets(one, timeout=CALL_S)
            if found is not None:
                writer.note("end", one.partition, found[1], str(began_ms))
    except KafkaException:
        # A leader or a coordinator is away, or the group has changed.
        return


if __name__ == "__main__":
    run_clients({"produce": produce, "transact": transact, "consume": consume})

"""kafka-python: a producer with acks=all that repeats, and a consumer in a classic group."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaConfigurationError, KafkaError
from kafka.structs import OffsetAndMetadata

from tests.system.cluster_faults.clients.options import Ending, Options, Pace, run_clients
from tests.system.cluster_faults.history import Writer, now_ms, padded, text_of

FLUSH_S = 40
CALL_MS = 10_000


def produce(options: Options, writer: Writer, ending: Ending) -> None:
    pace, name, number = Pace(options.records_per_s), options.generation, 0
    producer = _made(
        lambda: KafkaProducer(
            bootstrap_servers=options.bootstrap.split(","),
            acks="all",
            enable_idempotence=options.is_idempotent,
            max_in_flight_requests_per_connection=1,
            retries=1000,
            linger_ms=5,
            request_timeout_ms=5000,
            delivery_timeout_ms=120_000,
            max_block_ms=CALL_MS,
        ),
        ending,
    )

    def note(partition: int, text: str, metadata: Any) -> None:
        writer.note("acknowledged", partition, metadata.offset, text)

    def note_refused(partition: int, text: str, _: BaseException) -> None:
        writer.note("refused", partition, -1, text)

    while not ending.has_come:
        for _ in range(pace.take()):
            if ending.has_come:
                break
            text, partition = f"{name}:{number}", number % options.partitions
            number += 1
            value = padded(text, options.value_bytes)
            try:
                sent = producer.send(options.topic, value, partition=partition)
            except KafkaError:
                writer.note("refused", partition, -1, text)
                break
            sent.add_callback(partial(note, partition, text))
            sent.add_errback(partial(note_refused, partition, text))
        writer.flush()
        time.sleep(0.02)
    if producer is not None:
        producer.close(timeout=FLUSH_S)


def _made(make: Any, ending: Ending) -> Any:
    """As it asks a broker at once, it fails while none answers."""
    while not ending.has_come:
        try:
            return make()
        except KafkaConfigurationError:
            raise
        except KafkaError:
            time.sleep(0.2)
    return None


def consume(options: Options, writer: Writer, ending: Ending) -> None:
    consumer = _made(
        lambda: KafkaConsumer(
            bootstrap_servers=options.bootstrap.split(","),
            group_id=options.group,
            isolation_level="read_committed" if options.is_read_committed else "read_uncommitted",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=2000,
            request_timeout_ms=CALL_MS,
        ),
        ending,
    )
    if consumer is None:
        return
    consumer.subscribe([options.topic])
    next_s = time.monotonic()
    while not ending.has_come:
        try:
            found = consumer.poll(timeout_ms=100, max_records=500)
            for place, records in found.items():
                for record in records:
                    writer.note("read", place.partition, record.offset, text_of(record.value))
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + 0.3
                _commit_and_look(consumer, writer)
        except KafkaError:
            # A leader or a coordinator is away, or the group has changed.
            time.sleep(0.05)
        writer.flush()
    consumer.close()


def _commit_and_look(consumer: KafkaConsumer, writer: Writer) -> None:
    places = sorted(consumer.assignment())
    positions = {one: consumer.position(one, timeout_ms=CALL_MS) for one in places}
    known = {one: offset for one, offset in positions.items() if offset is not None}
    if known:
        # What was read is told before it is committed.
        writer.flush()
        consumer.commit({one: OffsetAndMetadata(at, "", -1) for one, at in known.items()})
        for place, offset in known.items():
            writer.note("committed", place.partition, offset)
    for one in places:
        began_ms = now_ms()
        offset = consumer.committed(one)
        writer.note("found", one.partition, -1 if offset is None else offset, str(began_ms))
    began_ms = now_ms()
    for place, end in consumer.end_offsets(places).items():
        writer.note("end", place.partition, end, str(began_ms))


if __name__ == "__main__":
    run_clients({"produce": produce, "consume": consume})

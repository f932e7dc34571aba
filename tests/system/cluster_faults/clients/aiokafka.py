"""aiokafka: an idempotent producer, and a consumer in a classic group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata

from tests.system.cluster_faults.clients.options import Ending, Options, Pace, Role, run_clients
from tests.system.cluster_faults.history import Writer, now_ms, padded, text_of

IN_FLIGHT_MAX = 5000
CALL_S = 10.0
CLOSE_S = 40.0


async def produce(options: Options, writer: Writer, ending: Ending) -> None:
    pace, name, number = Pace(options.records_per_s), options.generation, 0
    while not ending.has_come:
        producer = AIOKafkaProducer(
            bootstrap_servers=options.bootstrap,
            acks="all",
            enable_idempotence=options.is_idempotent,
            linger_ms=5,
            request_timeout_ms=10_000,
        )
        try:
            await producer.start()
        except KafkaError:
            await producer.stop()
            continue
        waiting: set[asyncio.Future[RecordMetadata]] = set()
        has_failed = False
        while not ending.has_come and not has_failed:
            for _ in range(pace.take()):
                if len(waiting) >= IN_FLIGHT_MAX:
                    break
                text, partition = f"{name}:{number}", number % options.partitions
                number += 1
                try:
                    sent = await producer.send(
                        options.topic, padded(text, options.value_bytes), partition=partition
                    )
                except KafkaError:
                    writer.note("refused", partition, -1, text)
                    has_failed = True
                    break
                waiting.add(sent)
                sent.add_done_callback(_noting(writer, partition, text))
            done = {one for one in waiting if one.done()}
            waiting -= done
            has_failed |= any(one.cancelled() or one.exception() for one in done)
            writer.flush()
            await asyncio.sleep(0.02)
        with suppress(asyncio.TimeoutError, KafkaError):
            await asyncio.wait_for(producer.stop(), CLOSE_S)
        # Its sequence ends with a failure.
        name = options.generation


def _noting(writer: Writer, partition: int, text: str):  # type: ignore[no-untyped-def]
    def note(sent: asyncio.Future[RecordMetadata]) -> None:
        if sent.cancelled() or sent.exception() is not None:
            writer.note("refused", partition, -1, text)
        else:
            writer.note("acknowledged", partition, sent.result().offset, text)

    return note


async def consume(options: Options, writer: Writer, ending: Ending) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        isolation_level="read_committed" if options.is_read_committed else "read_uncommitted",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=10_000,
        heartbeat_interval_ms=2000,
        request_timeout_ms=10_000,
    )
    consumer.subscribe([options.topic])
    while not ending.has_come:
        try:
            await consumer.start()
            break
        except KafkaError:
            await asyncio.sleep(0.2)
    turn = 0
    while not ending.has_come:
        with suppress(KafkaError):
            found = await consumer.getmany(timeout_ms=100, max_records=500)
            for place, records in found.items():
                for record in records:
                    writer.note("read", place.partition, record.offset, text_of(record.value))
        turn += 1
        if turn % 3 == 0:
            with suppress(KafkaError, asyncio.TimeoutError):
                await asyncio.wait_for(_commit_and_look(consumer, writer), CALL_S)
        writer.flush()
    with suppress(KafkaError, asyncio.TimeoutError):
        await asyncio.wait_for(consumer.stop(), CLOSE_S)


async def _commit_and_look(consumer: AIOKafkaConsumer, writer: Writer) -> None:
    places = sorted(consumer.assignment())
    positions = {one: await consumer.position(one) for one in places}
    if positions:
        # What was read is told before it is committed.
        writer.flush()
        await consumer.commit(positions)
        for place, offset in positions.items():
            writer.note("committed", place.partition, offset)
    for one in places:
        began_ms = now_ms()
        offset = await consumer.committed(one)
        writer.note("found", one.partition, -1 if offset is None else offset, str(began_ms))
    began_ms = now_ms()
    for place, end in (await consumer.end_offsets(places)).items():
        # With read_committed it is the last stable offset, which only grows too.
        writer.note("end", place.partition, end, str(began_ms))


def _in_a_loop(client: Callable[[Options, Writer, Ending], Awaitable[None]]) -> Role:
    async def run(options: Options, writer: Writer, ending: Ending) -> None:
        await client(options, writer, ending)

    return lambda options, writer, ending: asyncio.run(run(options, writer, ending))


if __name__ == "__main__":
    run_clients({"produce": _in_a_loop(produce), "consume": _in_a_loop(consume)})

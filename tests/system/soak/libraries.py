"""Three client libraries as a reader sees them: bounds of a partition, records from an offset on.

    librdkafka     confluent-kafka: threads of its own
    kafka-python   everything in the caller's thread
    aiokafka       a loop that turns while the caller waits for it

Each says in its own words that a broker is away, or that there is no such offset; here the first is
an OSError and the second `Moved`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from tests.system.soak.model import (
    PartitionModel,
)

# Of librdkafka: it would print a line for every attempt to reach a dead broker.
QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 300, "retry.backoff.ms": 50}
POLL_S = 0.5

# Offset, value, key.
Row = tuple[int, bytes | None, bytes | None]
Read = Iterator[Row]
NOTHING_NEW: Row = (-1, None, None)


class Moved(Exception):
    """The broker says that there is no such offset (any more)."""


class Library(Protocol):
    """What a reader asks of a client library. What is only for now is raised as OSError."""

    name: str

    def bounds(self, partition: PartitionModel) -> tuple[int, int]:
        """Log start and end."""
        ...

    def read(self, partition: PartitionModel, start: int) -> Read:
        """Records from `start` on, for as long as it is asked; or NOTHING_NEW.

        Raises Moved if the broker does not know the offset.
        """
        ...

    def close(self) -> None: ...


class ConfluentLibrary:
    """librdkafka."""

    name = "librdkafka"

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 200,
                **QUIET,
            }
        )

    def bounds(self, partition: PartitionModel) -> tuple[int, int]:
        place = TopicPartition(partition.topic, partition.number)
        try:
            found = self._consumer.get_watermark_offsets(place, 10)
        except KafkaException as error:
            raise OSError(str(error)) from error
        if found is None:
            raise OSError("no answer")
        return int(found[0]), int(found[1])

    def read(self, partition: PartitionModel, start: int) -> Read:
        self._consumer.assign([TopicPartition(partition.topic, partition.number, start)])
        while True:
            messages = self._consumer.consume(500, POLL_S)
            for message in messages:
                error = message.error()
                if (message.topic(), message.partition()) != (partition.topic, partition.number):
                    # What was said of the partition before, after it was done with.
                    continue
                if error is None:
                    yield int(message.offset() or 0), message.value(), message.key()
                elif error.code() in (
                    KafkaError._AUTO_OFFSET_RESET,
                    KafkaError.OFFSET_OUT_OF_RANGE,
                ):
                    raise Moved(f"{message.topic()}-{message.partition()}: {error}")
            if not messages:
                yield NOTHING_NEW

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonLibrary:
    """kafka-python."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        from kafka import KafkaConsumer
        from kafka.errors import KafkaError as PythonKafkaError

        try:
            self._consumer = KafkaConsumer(
                bootstrap_servers=bootstrap,
                enable_auto_commit=False,
                auto_offset_reset="none",
                fetch_max_wait_ms=200,
                reconnect_backoff_max_ms=300,
            )
        except PythonKafkaError as error:
            # The broker is down for longer than it waits.
            raise OSError(repr(error)) from error

    def bounds(self, partition: PartitionModel) -> tuple[int, int]:
        from kafka.errors import KafkaError as PythonKafkaError
        from kafka.structs import TopicPartition as Place

        place = Place(partition.topic, partition.number)
        try:
            start = self._consumer.beginning_offsets([place])[place]
            return start, self._consumer.end_offsets([place])[place]
        except (PythonKafkaError, KeyError) as error:
            raise OSError(repr(error)) from error

    def read(self, partition: PartitionModel, start: int) -> Read:
        from kafka.errors import OffsetOutOfRangeError
        from kafka.structs import TopicPartition as Place

        place = Place(partition.topic, partition.number)
        self._consumer.assign([place])
        self._consumer.seek(place, start)
        while True:
            try:
                found = self._consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=500)
            except OffsetOutOfRangeError as error:
                raise Moved(repr(error)) from error
            for record in found.get(place, ()):
                yield record.offset, record.value, record.key
            if not found:
                yield NOTHING_NEW

    def close(self) -> None:
        self._consumer.close()


class AioLibrary:
    """aiokafka, on a loop that turns while somebody waits for it."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        from aiokafka import AIOKafkaConsumer

        self._loop = asyncio.new_event_loop()

        async def make() -> Any:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                enable_auto_commit=False,
                auto_offset_reset="none",
                fetch_max_wait_ms=200,
            )
            try:
                await consumer.start()
            except BaseException:
                await consumer.stop()
                raise
            return consumer

        self._consumer = self._turn(make())

    def _turn(self, work: Any) -> Any:
        from aiokafka.errors import KafkaError as AioKafkaError
        from aiokafka.errors import OffsetOutOfRangeError

        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, 30))
        except OffsetOutOfRangeError as error:
            raise Moved(repr(error)) from error
        except (AioKafkaError, TimeoutError, asyncio.CancelledError) as error:
            # It cancels what waits for a node that is not there when it is stopped.
            raise OSError(repr(error)) from error

    def bounds(self, partition: PartitionModel) -> tuple[int, int]:
        from aiokafka import TopicPartition as Place

        place = Place(partition.topic, partition.number)
        start = self._turn(self._consumer.beginning_offsets([place]))[place]
        return start, self._turn(self._consumer.end_offsets([place]))[place]

    def read(self, partition: PartitionModel, start: int) -> Read:
        from aiokafka import TopicPartition as Place

        place = Place(partition.topic, partition.number)

        async def begin() -> None:
            # No coroutines, but they want to be called where the loop runs.
            self._consumer.assign([place])
            self._consumer.seek(place, start)

        self._turn(begin())
        while True:
            work = self._consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=500)
            found = self._turn(work)
            for record in found.get(place, ()):
                yield record.offset, record.value, record.key
            if not found:
                yield NOTHING_NEW

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._turn(self._consumer.stop())
        self._loop.close()


LIBRARIES: Mapping[str, Callable[[str], Library]] = {
    "librdkafka": ConfluentLibrary,
    "kafka-python": KafkaPythonLibrary,
    "aiokafka": AioLibrary,
}

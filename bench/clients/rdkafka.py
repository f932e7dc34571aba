"""Clients that librdkafka drives at its own speed: producers, a consumer, a paced producer.

    confluent_kafka.libs/librdkafka-*.so ── ctypes ──> handles, queues, topics   librdkafka.py
                                         └─ numba ──> loops over records         client_loops.py

The Python binding of librdkafka makes one object for each record, and a benchmark driven through it
measures that. Here no Python code runs per record. Several clients may run in threads of one
process.

A consumer checks that the offsets of each partition go up without a gap (or only go up, where the
log may have been compacted), a producer that no delivery failed.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import numpy as np

from bench.clients.librdkafka import (
    CONSUMER,
    OFFSET_BEGINNING,
    PRODUCER,
    ClientError,
    error_name,
    new_handle,
    new_topic,
    rd_consume_start,
    rd_consume_stop,
    rd_destroy,
    rd_poll,
    rd_queue_destroy,
    rd_queue_new,
    rd_topic_destroy,
)
from bench.clients.loops import (
    ERROR_OF_OFFSET,
    MESSAGE_LENGTH,
    MESSAGE_PAYLOAD,
    MESSAGE_WORDS,
    TAKEN_BYTES,
    TAKEN_COUNT,
    TAKEN_COUNT_MAX,
    TAKEN_ERROR,
    TAKEN_EXPECTED,
    TAKEN_IS_CONTIGUOUS,
    TAKEN_NEXT_OFFSETS,
    TAKEN_OFFSET,
    consume_loop,
    count_failure,
    latency_loop,
    paced_loop,
    produce_loop,
    take_message,
)

WORD_BYTES = 8
# Bytes that one process keeps in its producers' queues: enough for the requests of many
# connections in flight, and small beside the memory of a machine that also runs two brokers.
OUTSTANDING_BYTES = 64 * 1024 * 1024
BATCH_HEADER_BYTES = 61
# Lengths, deltas and attributes of a record at their longest.
RECORD_OVERHEAD_BYTES = 36
# Distinct records of a producer. Larger than any batch, so that no codec finds the same record
# twice in a batch and packs better than it would on real data.
POOL_BYTES = 8 * 1024 * 1024


@functools.cache
def record_pool(record_bytes: int, *, seed: int = 1) -> np.ndarray:
    """Records one after another; nobody may change them.

    Half of each is random and half is words, like a log line with identifiers in it.
    """
    source = random.Random(seed)
    words = [source.randbytes(source.randint(3, 9)).hex().encode() for _ in range(512)]
    count = max(POOL_BYTES // record_bytes, 2)
    pool = bytearray()
    while len(pool) < count * record_bytes:
        pool += b" ".join(source.choices(words, k=6)) + source.randbytes(36)
    return np.frombuffer(bytes(pool[: count * record_bytes]), dtype=np.uint8).copy()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceLoad:
    """The records that producers send."""

    topic: str
    count: int
    record_bytes: int = 1000
    # 0: each record is a batch and a request of its own.
    batch_bytes: int = 16_384
    partitions: int = 1
    connections: int = 1
    acks: int = 1
    codec: str = "none"
    idempotent: bool = False
    linger_ms: float = 5
    settings: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def value_bytes(self) -> int:
        return self.count * self.record_bytes

    @property
    def records_per_batch(self) -> int:
        """As many as librdkafka puts into one, by its own reckoning of what they take."""
        record_bytes_max = self.record_bytes + RECORD_OVERHEAD_BYTES
        return max((self.batch_bytes - BATCH_HEADER_BYTES) // record_bytes_max, 1)

    def client_settings(self, bootstrap: str) -> dict[str, str | int]:
        single = self.batch_bytes == 0
        return {
            "bootstrap.servers": bootstrap,
            "acks": self.acks,
            "linger.ms": 0 if single else self.linger_ms,
            "batch.size": max(self.batch_bytes, 1000),
            "batch.num.messages": 1 if single else 1_000_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "message.max.bytes": 3_000_000,
            "compression.codec": self.codec,
            "enable.idempotence": str(self.idempotent).lower(),
            "delivery.report.only.error": "true",
            **self.settings,
        }


def new_producer(settings: Mapping[str, str | int], counters: np.ndarray) -> int:
    """A producer; failed deliveries are counted in `counters`, which keep the last error too."""
    return new_handle(PRODUCER, settings, report=count_failure.address, opaque=counters.ctypes.data)


class Producers:
    """The connections of a load, open and ready; `run` is the part to be timed."""

    def __init__(self, bootstrap: str, load: ProduceLoad) -> None:
        self._load = load
        self._counters = np.zeros(2, dtype=np.int64)
        self._handles: list[int] = []
        self._topics: list[int] = []
        settings = load.client_settings(bootstrap)
        for _ in range(load.connections):
            self._handles.append(new_producer(settings, self._counters))
        self._topics += [new_topic(handle, load.topic) for handle in self._handles]
        self._pool = record_pool(load.record_bytes)
        # One more would wait for linger.ms in each partition and go as a batch of one.
        self._messages = np.zeros((load.records_per_batch, MESSAGE_WORDS), dtype=np.int64)
        # A call with nothing to do compiles the loop; so do the other clients.
        self._send(0)

    def run(self) -> None:
        """Sends everything and returns when it is acknowledged; raises ClientError otherwise."""
        sent = self._send(self._load.count)
        for handle in self._handles:
            rd_poll(handle, 0)
        failures, code = self._counters.tolist()
        if failures or sent != self._load.count:
            signed = code - (1 << 32) if code >> 31 else code
            raise ClientError(
                f"{sent} of {self._load.count} sent, {failures} failed, last {error_name(signed)}"
            )

    def _send(self, count: int) -> int:
        load = self._load
        per_call = len(self._messages)
        outstanding_max = OUTSTANDING_BYTES // load.record_bytes // load.connections
        sent = produce_loop(
            np.array(self._handles, dtype=np.uintp),
            np.array(self._topics, dtype=np.uintp),
            load.partitions,
            self._messages,
            self._pool,
            load.record_bytes,
            per_call,
            count,
            max(min(outstanding_max, 1_000_000), 2 * per_call, 16),
        )
        return int(sent)

    def close(self) -> None:
        for topic in self._topics:
            rd_topic_destroy(topic)
        for handle in self._handles:
            rd_destroy(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeLoad:
    """The load of one consumer: `count` records of all partitions together."""

    topic: str
    count: int
    partitions: int = 1
    check_crcs: bool = False
    partition_bytes: int = 1 << 20
    fetch_bytes: int = 50 << 20
    # Short: a consumer of many partitions asks first for those whose beginnings it has looked up,
    # and must not wait half a second for more of them once they are read to their ends.
    wait_ms: int = 10
    queued_kbytes: int = 1 << 17
    # Records that are not there within this time are an error.
    idle_s: float = 60
    contiguous: bool = True
    # Whether the client's threads share one core. Left to themselves the thread that makes records
    # and the one that frees them run side by side and wait for each other at the lock of glibc's
    # heap, once in ten records: the client then takes up to three times its own CPU, and the more
    # of it the less the broker leaves it to wait for.
    on_one_core: bool = False
    settings: Mapping[str, str | int] = field(default_factory=dict)

    def client_settings(self, bootstrap: str) -> dict[str, str | int]:
        return {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": "false",
            "check.crcs": str(self.check_crcs).lower(),
            "fetch.message.max.bytes": self.partition_bytes,
            "fetch.max.bytes": self.fetch_bytes,
            "receive.message.max.bytes": max(self.fetch_bytes, self.partition_bytes) + (1 << 20),
            "fetch.wait.max.ms": self.wait_ms,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": self.queued_kbytes,
            "fetch.queue.backoff.ms": 1,
            **self.settings,
        }


@contextmanager
def _placed(*, one_core: bool) -> Iterator[None]:
    """Keeps the calling thread, and those it starts meanwhile, on one core of its cores."""
    allowed = os.sched_getaffinity(0)
    if one_core:
        os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class Consumer:
    """One connected consumer of all partitions of a topic, from their beginnings."""

    def __init__(self, bootstrap: str, load: ConsumeLoad) -> None:
        self._load = load
        # librdkafka's threads stay where the one runs that starts them.
        with _placed(one_core=load.on_one_core):
            self._handle = new_handle(CONSUMER, load.client_settings(bootstrap))
            self._topic = new_topic(self._handle, load.topic)
        self._queue = int(rd_queue_new(self._handle))
        self._started = False
        self._take(0, 0)
        self.latencies_us(0)

    def start(self, offsets: Sequence[int] | None = None) -> None:
        """Begins to fetch; `run` does it where the caller does not."""
        for partition in range(self._load.partitions):
            first = offsets[partition] if offsets else OFFSET_BEGINNING
            if rd_consume_start(self._topic, partition, first, self._queue):
                raise ClientError(f"cannot consume partition {partition}")
        self._started = True

    def run(self, *, first_offset: int = 0) -> int:
        """Reads everything; the sum of the values' bytes. Raises ClientError."""
        if not self._started:
            self.start([first_offset] * self._load.partitions if first_offset else None)
        load = self._load
        state = self._take(load.count, first_offset)
        error = int(state[TAKEN_ERROR])
        if error == ERROR_OF_OFFSET:
            offset, expected = int(state[TAKEN_OFFSET]), int(state[TAKEN_EXPECTED])
            raise ClientError(f"offset {offset} came where {expected} was due")
        if error:
            raise ClientError(error_name(error))
        got = int(state[TAKEN_COUNT])
        if got != load.count:
            raise ClientError(f"{got} of {load.count} records within {load.idle_s} s of quiet")
        return int(state[TAKEN_BYTES])

    def _take(self, count: int, first_offset: int) -> np.ndarray:
        load = self._load
        state = np.full(TAKEN_NEXT_OFFSETS + load.partitions, first_offset, dtype=np.int64)
        state[:TAKEN_NEXT_OFFSETS] = 0
        state[TAKEN_COUNT_MAX], state[TAKEN_IS_CONTIGUOUS] = count, load.contiguous
        with _placed(one_core=load.on_one_core):
            consume_loop(self._queue, take_message.address, state, int(load.idle_s * 1000))
        return state

    def latencies_us(self, count: int) -> np.ndarray:
        """The ages of the next `count` records, see Pacer."""
        latencies_ns = np.zeros(count, dtype=np.int64)
        clock = np.zeros(2, dtype=np.int64)
        got = int(latency_loop(self._queue, latencies_ns, int(self._load.idle_s * 1000), clock))
        if got != count:
            raise ClientError(f"{got} of {count} records came" if got >= 0 else error_name(got))
        return latencies_ns / 1000

    def close(self) -> None:
        if self._started:
            for partition in range(self._load.partitions):
                rd_consume_stop(self._topic, partition)
        rd_queue_destroy(self._queue)
        rd_topic_destroy(self._topic)
        rd_destroy(self._handle)


class Pacer:
    """A producer of one record at a time at a fixed rate, whose records carry their due time."""

    def __init__(self, bootstrap: str, load: ProduceLoad) -> None:
        self._load = load
        self._counters = np.zeros(2, dtype=np.int64)
        self._handle = new_producer(load.client_settings(bootstrap), self._counters)
        self._topic = new_topic(self._handle, load.topic)
        self._payload = np.zeros(-(-load.record_bytes // WORD_BYTES), dtype=np.int64)
        pool = record_pool(load.record_bytes)
        self._payload.view(np.uint8)[: load.record_bytes] = pool[: load.record_bytes]
        self._message = np.zeros((1, MESSAGE_WORDS), dtype=np.int64)
        self._message[0, MESSAGE_PAYLOAD] = self._payload.ctypes.data
        self._message[0, MESSAGE_LENGTH] = load.record_bytes
        self._send(0, 1)

    def run(self, *, records_per_s: float) -> None:
        """Sends the load's records. Raises ClientError if one was not acknowledged."""
        left = self._send(self._load.count, int(1e9 / records_per_s))
        if left or self._counters[0]:
            raise ClientError(f"{self._counters[0]} records failed, flush: {error_name(left)}")

    def _send(self, count: int, interval_ns: int) -> int:
        clock = np.zeros(2, dtype=np.int64)
        topic, partitions = self._topic, self._load.partitions
        left = paced_loop(
            self._handle,
            topic,
            partitions,
            self._message,
            self._payload,
            count,
            interval_ns,
            clock,
        )
        return int(left)

    def close(self) -> None:
        rd_topic_destroy(self._topic)
        rd_destroy(self._handle)


def producers(bootstrap: str, load: ProduceLoad) -> closing[Producers]:
    """Connected producers, for a `with`."""
    return closing(Producers(bootstrap, load))


def consumer(bootstrap: str, load: ConsumeLoad) -> closing[Consumer]:
    """A connected consumer, for a `with`."""
    return closing(Consumer(bootstrap, load))


def pacer(bootstrap: str, load: ProduceLoad) -> closing[Pacer]:
    """A connected producer at a fixed rate, for a `with`."""
    return closing(Pacer(bootstrap, load))

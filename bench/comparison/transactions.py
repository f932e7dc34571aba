"""Transactional producers, one transaction after the other: librdkafka's and Kafka's own.

    LibrdkafkaTransactions   adds partitions by request, and keeps its epoch (transaction version 1)
    JavaTransactions         Kafka's Java client in a JVM of its own (Transactions.java): adds them
                             by what it writes, a new epoch for each (version 2, KIP-890)

Both send the records of a transaction to all partitions in turns, commit, and say how long each
commit took. What a transaction needs before (its producer's identity) is done when they are made.

One producer of librdkafka commits a hundred times per second at most, whatever the broker does: it
waits for a timer of its own. So its rows have ten of them, and forty for small transactions.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bench.clients.librdkafka import (
    ClientError,
    new_topic,
    rd_begin_transaction,
    rd_commit_transaction,
    rd_destroy,
    rd_init_transactions,
    rd_produce_batch,
    rd_topic_destroy,
    refused,
)
from bench.clients.loops import MESSAGE_LENGTH, MESSAGE_PAYLOAD, MESSAGE_WORDS
from bench.clients.rdkafka import ProduceLoad, new_producer, record_pool
from bench.comparison.peers import REPOSITORY, kafka_java

_TIMEOUT_MS = 60_000
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLoad:
    """What each transaction consists of."""

    topic: str
    records: int
    record_bytes: int
    batch_bytes: int
    partitions: int = 1
    # The transactional id is the topic's name and this number.
    number: int = 0

    @property
    def transactional_id(self) -> str:
        return f"{self.topic}-{self.number}"


class TransactionClient(Protocol):
    """A transactional producer that has its identity."""

    def run(self, seconds: float) -> np.ndarray:
        """Makes transactions for so long; how long each commit took, in ms. Raises ClientError."""
        ...

    def close(self) -> None: ...


class LibrdkafkaTransactions:
    """A producer of librdkafka's."""

    def __init__(self, bootstrap: str, load: TransactionLoad) -> None:
        self._load = load
        self._counters = np.zeros(2, dtype=np.int64)
        settings = ProduceLoad(
            topic=load.topic,
            count=0,
            batch_bytes=load.batch_bytes,
            acks=-1,
            idempotent=True,
            settings={"transactional.id": load.transactional_id},
        ).client_settings(bootstrap)
        self._handle = new_producer(settings, self._counters)
        self._topic = new_topic(self._handle, load.topic)
        self._pool = record_pool(load.record_bytes)
        # A transaction of one record goes to one partition, and the next one to the next.
        per_call = max(load.records // load.partitions, 1)
        self._messages = np.zeros((per_call, MESSAGE_WORDS), dtype=np.int64)
        self._next_partition = 0
        refused(rd_init_transactions(self._handle, _TIMEOUT_MS))

    def run(self, seconds: float) -> np.ndarray:
        commits_ms = []
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            refused(rd_begin_transaction(self._handle))
            self._send()
            began_s = time.perf_counter()
            refused(rd_commit_transaction(self._handle, _TIMEOUT_MS))
            commits_ms.append((time.perf_counter() - began_s) * 1000)
        return np.array(commits_ms)

    def _send(self) -> None:
        per_call = len(self._messages)
        # librdkafka writes into them what became of them.
        self._messages[:] = 0
        places = np.arange(per_call) % (self._pool.size // self._load.record_bytes)
        self._messages[:, MESSAGE_PAYLOAD] = (
            self._pool.ctypes.data + places * self._load.record_bytes
        )
        self._messages[:, MESSAGE_LENGTH] = self._load.record_bytes
        for _ in range(self._load.records // per_call):
            done = rd_produce_batch(
                self._topic, self._next_partition, 0, self._messages.ctypes.data, per_call
            )
            if done != per_call:
                raise ClientError(f"{done} of {per_call} records taken")
            self._next_partition = (self._next_partition + 1) % self._load.partitions

    def close(self) -> None:
        rd_topic_destroy(self._topic)
        rd_destroy(self._handle)


class JavaTransactions:
    """A producer of Kafka's Java clients."""

    def __init__(self, bootstrap: str, load: TransactionLoad) -> None:
        numbers = (load.partitions, load.records, load.record_bytes, load.batch_bytes)
        self._process = subprocess.Popen(
            kafka_java(
                str(REPOSITORY / "bench" / "comparison" / "Transactions.java"),
                *(bootstrap, load.topic, load.transactional_id),
                *(str(number) for number in numbers),
                options=("-Xmx512M",),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line("ready")

    def run(self, seconds: float) -> np.ndarray:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return np.array([int(took_us) / 1000 for took_us in self._line().split()])

    def _line(self, expected: str = "") -> str:
        """The next line that it prints. Raises ClientError if it ended instead."""
        assert self._process.stdout is not None
        # Kafka's clients may log to the same place.
        for line in self._process.stdout:
            if line.strip() == expected or (
                not expected and line.replace(" ", "").strip().isdigit()
            ):
                return line
        raise ClientError(f"the Java client ended with {self._process.wait(_TIMEOUT_S)}")

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


CLIENTS: Mapping[str, Callable[[str, TransactionLoad], TransactionClient]] = {
    "librdkafka": LibrdkafkaTransactions,
    "Java": JavaTransactions,
}

"""Clients that go on while partitions move, and what each was told.

    Writing     an idempotent producer of numbers, in order for each partition
    Committing  transactions over all partitions; each third is aborted
    Reading     a consumer in a group, which commits what it has read

Each runs in a thread of its own until `end`, which checks what it can by itself. OpenTransaction is
one that stays open until it is told how to end.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.support import broker

WAIT_S = 300.0
PAUSE_S = 0.03
MONTH_MS = 30 * 24 * 3_600_000
# From one record to the next.
STEP_MS = 20


eventually = partial(broker.eventually, timeout_s=WAIT_S)


class Client:
    """A thread that repeats one step."""

    def __init__(self) -> None:
        self.steps = 0
        self.failures: list[str] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def goes_on(self, more: int = 10) -> None:
        """Waits until it has done some more."""
        wanted = self.steps + more
        eventually(lambda: self.steps >= wanted or bool(self.failures))
        assert not self.failures, self.failures

    def end(self) -> None:
        """Returns when it has ended, and all that it did was well."""
        self._ends.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"{type(self).__name__} hangs"
        assert not self.failures, self.failures

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self._step()
                self.steps += 1
            self._finish()
        except Exception as error:
            self.failures.append(repr(error))

    def _step(self) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        pass


class Writing(Client):
    """`acknowledged` has the values of each partition with their offsets, in order of these."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, **more: Any) -> None:
        super().__init__()
        self.topic, self.partitions = topic, partitions
        # Each record has its time, of a month ago.
        self._began_ms = int(time.time() * 1000) - MONTH_MS
        self.acknowledged: dict[int, list[tuple[int, bytes]]] = {n: [] for n in range(partitions)}
        self.sent: dict[int, list[bytes]] = {n: [] for n in range(partitions)}
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **more}
        )

    def _step(self) -> None:
        partition = self.steps % self.partitions
        value = b"%d" % len(self.sent[partition])
        self.sent[partition].append(value)
        self._producer.produce(
            self.topic,
            value,
            key=value,
            partition=partition,
            timestamp=self._began_ms + STEP_MS * len(self.sent[partition]),
            on_delivery=self._note,
        )
        self._producer.poll(0)
        time.sleep(PAUSE_S / 2)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        told = (message.offset() or 0, message.value() or b"")
        self.acknowledged[message.partition() or 0].append(told)

    def _finish(self) -> None:
        assert self._producer.flush(WAIT_S) == 0
        for partition, values in self.sent.items():
            told = self.acknowledged[partition]
            assert [value for _, value in told] == values, "acknowledged out of order"


class Committing(Client):
    """`committed` has the values of the transactions that were, in order."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__()
        self.topic, self.partitions = topic, partitions
        self.committed: list[bytes] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"to-{topic}",
                "transaction.timeout.ms": 600_000,
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions(WAIT_S)

    def _step(self) -> None:
        value = b"%d" % self.steps
        self._producer.begin_transaction()
        for partition in range(self.partitions):
            self._producer.produce(self.topic, value, partition=partition)
        if self.steps % 3 == 2:
            # What has not left would not be sent at all.
            self._producer.flush(WAIT_S)
            self._producer.abort_transaction(WAIT_S)
            return
        if self._is_committed():
            self.committed.append(value)
        time.sleep(PAUSE_S)

    def _is_committed(self) -> bool:
        while True:
            try:
                self._producer.commit_transaction(WAIT_S)
            except KafkaException as error:
                if error.args[0].retriable():
                    continue
                if not error.args[0].txn_requires_abort():
                    raise
                self._producer.abort_transaction(WAIT_S)
                return False
            return True


class Reading(Client):
    """`read` has what came of each partition, once each and in order."""

    def __init__(self, bootstrap: str, topic: str, group: str, protocol: str) -> None:
        super().__init__()
        self.topic, self.group = topic, group
        self.read: dict[int, list[tuple[int, bytes]]] = {}
        self.committed: dict[int, int] = {}
        # What was committed when the partitions were assigned. A member that was silent may commit
        # again while it asks where to begin.
        self._assigned_at: dict[int, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe([topic], on_assign=self._on_assign)

    def _on_assign(self, _consumer: Consumer, _parts: list[TopicPartition]) -> None:
        self._assigned_at = dict(self.committed)

    def _step(self) -> None:
        for message in self._consumer.consume(100, timeout=0.2):
            if message.error() is not None:
                continue
            self._note(message.partition() or 0, message.offset() or 0, message.value() or b"")
        self._commit()

    def _note(self, partition: int, offset: int, value: bytes) -> None:
        values = self.read.setdefault(partition, [])
        if values and offset <= values[-1][0]:
            # After a rebalance what was not committed comes once more, and nothing else.
            first = self._assigned_at.get(partition, 0)
            where = f"{self.topic}-{partition}, {self.group}"
            assert offset >= first, f"{where}: {offset} came, and {first} had been committed"
            assert (offset, value) in values, "another record of the same offset"
            return
        values.append((offset, value))

    def _commit(self) -> None:
        wanted = {number: values[-1][0] + 1 for number, values in self.read.items()}
        if wanted == self.committed:
            return
        offsets = [TopicPartition(self.topic, *one) for one in wanted.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            # A rebalance is under way: the next step commits more.
            return
        self.committed = wanted

    def reads_to(self, counts: dict[int, int]) -> None:
        """Waits until it has read so many records of each partition."""
        eventually(lambda: self._counts() == counts or bool(self.failures))
        assert not self.failures, self.failures

    def _counts(self) -> dict[int, int]:
        return {number: len(values) for number, values in self.read.items()}

    def _finish(self) -> None:
        self._commit()
        parts = [TopicPartition(self.topic, number) for number in self.read]
        found = self._consumer.committed(parts, timeout=WAIT_S)
        assert {one.partition: one.offset for one in found} == self.committed
        self._consumer.close()


class OpenTransaction:
    """One with a record in each partition, which is open from now on."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, value: bytes) -> None:
        self._topic, self._value, self._partitions = topic, value, partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": value.decode(),
                "transaction.timeout.ms": 600_000,
            }
        )
        self._producer.init_transactions(WAIT_S)
        self._producer.begin_transaction()
        for partition in range(partitions):
            self._producer.produce(topic, value, partition=partition)
        assert self._producer.flush(WAIT_S) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

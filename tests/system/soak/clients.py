"""The clients of a soak, each in a thread: idempotent producers, readers, members of groups.

    KeenProducer   librdkafka, idempotent; numbers its records per partition, is never refused
    Reader         one of three client libraries; reads partitions from the log start, over and over
    Member         librdkafka in a consumer group, commits what it has handled
    Probe          one produce request at a time over a bare socket: it is the answer that counts

They go on whatever the broker does, and tell the model what they were told.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)

from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import produce
from tests.system.soak.libraries import LIBRARIES, POLL_S, QUIET, Library, Moved
from tests.system.soak.model import (
    SEQUENCE_BITS,
    GroupProgress,
    PartitionModel,
    Violations,
    make_value,
)
from tests.system.soak.patience import PATIENCE
from tests.system.soak.second_opinion import ask_the_broker

VALUE_BYTES = (200, 6_000)
# Of a producer in a partition.
UNANSWERED_MAX = 700
FLUSH_S_MAX = 90.0
# A reader that gets nothing for so long is stuck; outages of a soak last a few seconds. A broker
# that starts on a machine with no core to spare serves its archive minutes later: see patience.py.
STUCK_S = 90.0
JOIN_S_MAX = 60.0
CODECS = ("none", "lz4", "zstd", "gzip", "snappy")


class _Thread:
    """A thread that is told to stop, and whose death by an exception is a violation."""

    def __init__(self, name: str, violations: Violations) -> None:
        self.name = name
        self._violations = violations
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def stop(self, timeout_s: float = JOIN_S_MAX) -> None:
        self._stopping.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._violations.add(f"{self.name} does not come to an end")

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            # A client library's CancelledError would end the thread without a word.
            self._violations.add(f"{self.name} failed: {error!r}")

    def _run(self) -> None:
        raise NotImplementedError


# --- writing ---------------------------------------------------------------------------------


def logger_into(path: Path) -> logging.Logger:
    """What a client says of itself, into a file of its own."""
    logger = logging.getLogger(str(path))
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger


class KeenProducer(_Thread):
    """An idempotent librdkafka producer; `records_per_s` to each partition."""

    def __init__(
        self,
        number: int,
        bootstrap: str,
        partitions: Sequence[PartitionModel],
        violations: Violations,
        *,
        records_per_s: float,
        witness: Callable[[PartitionModel, str], None] = lambda _model, _reason: None,
        unanswered_max: int = UNANSWERED_MAX,
        journal: Path | None = None,
    ) -> None:
        super().__init__(f"producer {number}", violations)
        self._unanswered_max = unanswered_max
        # By partition.
        self._unanswered: Counter[str] = Counter()
        self._journal = journal
        self.number = number
        self._witness = witness
        self.sent_count = 0
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._interval_s = 1 / records_per_s

    def _run(self) -> None:
        chance = random.Random(self.number)
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": CODECS[self.number % len(CODECS)],
            "error_cb": self._told,
            **QUIET,
        }
        if self._journal is not None:
            settings |= {"debug": "eos,msg", "log_level": 7, "logger": logger_into(self._journal)}
        producer = Producer(settings)
        try:
            self._send_all(producer, chance)
        except KafkaException:
            # What it was told before says more.
            producer.poll(0)
            raise
        self._send_last(producer)
        left = producer.flush(FLUSH_S_MAX)
        if left:
            self._violations.add(f"{self.name}: {left} records were never answered")

    def _send_all(self, producer: Producer, chance: random.Random) -> None:
        sequences = dict.fromkeys((model.name for model in self._partitions), 0)
        while not self._stopping.is_set():
            for model in self._partitions:
                if self._unanswered[model.name] < self._unanswered_max:
                    self._send(producer, model, sequences[model.name], chance)
                    self._unanswered[model.name] += 1
                    sequences[model.name] += 1
            producer.poll(self._interval_s)

    def _told(self, error: KafkaError) -> None:
        """Of what goes wrong with no record in particular; a fatal one says why, and where."""
        if error.fatal():
            self._violations.add(f"{self.name}: {error.str()}")
            for model in self._partitions:
                self._witness(model, f"{self.name}: {error.str()}")

    def _send_last(self, producer: Producer) -> None:
        """It was told to stop."""

    def _send(
        self, producer: Producer, model: PartitionModel, sequence: int, chance: random.Random
    ) -> None:
        code = self.number << SEQUENCE_BITS | sequence
        padding = chance.randbytes(chance.randint(*VALUE_BYTES))

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._unanswered[model.name] -= 1
            if error is None:
                model.acknowledge(message.offset(), code)
            else:
                self._violations.add(f"{self.name}: {model.name} refused a record: {error}")
                self._witness(model, f"{self.name} was refused record {sequence}: {error}")

        producer.produce(
            model.topic,
            partition=model.number,
            value=make_value(model.topic, model.number, model.incarnation, code, padding),
            on_delivery=delivered,
        )
        self.sent_count += 1

    def stop(self, timeout_s: float = FLUSH_S_MAX + 10) -> None:
        super().stop(timeout_s)


class Probe(_Thread):
    """Produce is never refused: every answer that comes is a success, whatever the store does."""

    def __init__(self, broker: BrokerProcess, topic: str, record: bytes, found: Violations) -> None:
        super().__init__("probe", found)
        self.answered_count = 0
        self.slowest_s = 0.0
        self._broker = broker
        self._topic = topic
        self._record = record

    def _run(self) -> None:
        while not self._stopping.wait(0.2):
            try:
                with WireClient(self._broker.port) as client:
                    while not self._stopping.wait(0.1):
                        self._ask(client)
            except OSError:
                continue  # The broker was killed, or stopped; librdkafka tries again as well.

    def _ask(self, client: WireClient) -> None:
        began_s = time.monotonic()
        answer = produce(client, self._topic, self._record)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        self.answered_count += 1
        if answer.error_code:
            self._violations.add(f"probe: produce was refused with error {answer.error_code}")


# --- reading from the beginning --------------------------------------------------------------


class Reader(_Thread):
    """Reads one partition after the other from its log start, until it is stopped.

    With `once`, every partition once and to its end; `done` says that it was. At a replica the
    end is that of the archive, and the log start may be one that was.
    """

    def __init__(
        self,
        library: str,
        bootstrap: str,
        partitions: Sequence[PartitionModel],
        violations: Violations,
        *,
        seed: int,
        once: bool = False,
        at_replica: bool = False,
    ) -> None:
        place = " at the replica" if at_replica else ""
        super().__init__(f"reader with {library}{place}", violations)
        self.library = library
        self.record_count = 0
        self.pass_count = 0
        self.done: list[str] = []
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._chance = random.Random(seed)
        self._once = once
        self._at_replica = at_replica

    def _run(self) -> None:
        opened: Library | None = None
        generations: list[int] = []
        left = list(self._partitions)
        while not self._stopping.is_set() and left:
            try:
                current = [model.generation for model in self._partitions]
                if opened is not None and current != generations:
                    # A client that was there before the disk was lost knows epochs that are not.
                    opened.close()
                    opened = None
                if opened is None:
                    opened, generations = LIBRARIES[self.library](self._bootstrap), current
                model = left[0] if self._once else self._chance.choice(left)
                if self._read(opened, model):
                    self.pass_count += 1
                    if self._once:
                        self.done.append(left.pop(0).name)
            except OSError:
                self._stopping.wait(0.2)
            if not self._once:
                self._stopping.wait(self._chance.uniform(0, 0.5))
        if opened is not None:
            opened.close()

    def _read(self, library: Library, model: PartitionModel) -> bool:
        """One pass; whether it came to the end."""
        # A replica hears later that the log start has moved.
        generation, floor = model.generation, 0 if self._at_replica else model.floor
        if model.is_closed:
            self._stopping.wait(0.1)
            return False
        reading = model.begin_pass(0, generation=generation, who=self.name)
        start, end = library.bounds(model)
        reading.next_offset = start
        if not reading.is_outdated:
            model.check_start(start, floor)
        moved_s = PATIENCE.now_s()
        try:
            for offset, value, key in library.read(model, start) if end > start else ():
                if offset >= 0:
                    moved_s = PATIENCE.now_s()
                    self.record_count += 1
                    reading.accept(offset, value, key)
                if self._stopping.is_set() or reading.is_outdated:
                    return False
                if reading.next_offset >= end:
                    break
                if PATIENCE.now_s() - moved_s > STUCK_S:
                    said = ask_the_broker(self._bootstrap, model, reading.next_offset)
                    self._violations.add(
                        f"{self.name}: nothing at {model.name} {reading.next_offset}"
                        f" of [{start}, {end}) for {STUCK_S:.0f} s; {said}"
                    )
                    return False
        except Moved as error:
            if not reading.is_outdated and reading.next_offset >= model.ceiling:
                self._violations.add(
                    f"{self.name}: {model.name} {reading.next_offset} was out of range,"
                    f" nothing above {model.ceiling} may be: {error}"
                )
            return False
        # What a replica shows may be of a while ago, until nothing is written any more.
        reading.finish(end, is_live=self._once or not self._at_replica)
        return True


# --- groups ----------------------------------------------------------------------------------


class Member(_Thread):
    """A member of a consumer group that commits what it has handled."""

    def __init__(
        self,
        bootstrap: str,
        models: Mapping[tuple[str, int], PartitionModel],
        progress: GroupProgress,
        violations: Violations,
        *,
        group: str,
        protocol: str,
    ) -> None:
        super().__init__(f"member of {group}", violations)
        self._bootstrap = bootstrap
        self._models = models
        self._progress = progress
        self.group = group
        self._protocol = protocol

    def _run(self) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self.group,
            "group.protocol": self._protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 200,
            **QUIET,
        }
        if self._protocol == "classic":
            settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
        consumer = Consumer(settings)
        consumer.subscribe(sorted({topic for topic, _ in self._models}))
        while not self._stopping.is_set():
            messages = consumer.consume(500, POLL_S)
            for message in messages:
                if message.error() is None:
                    model = self._models[str(message.topic()), int(message.partition() or 0)]
                    self._progress.accept(
                        model, int(message.offset() or 0), bytes(message.value() or b"")
                    )
            if messages:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException:
                    continue  # The broker is away, or a rebalance: it comes again.
        consumer.close()

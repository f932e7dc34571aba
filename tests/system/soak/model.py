"""What must be true of every record, as a plain model: arrays of numbers, one per partition.

    value      "<topic>/<partition>/<incarnation>/<producer>/<sequence> padding"
    code       producer and sequence in one number; what the model keeps at an offset

A producer numbers what it sends to a partition from 0 on. Then "exactly once and in order" can be
seen by any reader: offsets follow each other without a gap, the numbers of each producer too, and
an offset never shows two values. What was acknowledged has to be at its offset.

    floor      the log start is at or above it: DeleteRecords was answered
    ceiling    the log start is at or below it: nobody asked for more to go

A disk that is lost takes what was not in the bucket: the model is cut there, and the `generation`
of the partition goes up, which ends the readers' passes. Thread-safe; what is wrong is noted, with
a bound, and the run goes on until somebody looks.
"""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass, field

UNKNOWN = -1
SEQUENCE_BITS = 40
VIOLATIONS_MAX = 50


class Violations:
    """What was seen that must not be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        with self._lock:
            if len(self._texts) < VIOLATIONS_MAX:
                self._texts.append(text)

    @property
    def texts(self) -> list[str]:
        with self._lock:
            return list(self._texts)


def make_value(topic: str, partition: int, incarnation: int, code: int, padding: bytes) -> bytes:
    """What a producer sends."""
    return b"%s/%d/%d/%d " % (topic.encode(), partition, incarnation, code) + padding


@dataclass(slots=True)
class PartitionModel:
    """One partition of one incarnation of a topic."""

    topic: str
    number: int
    violations: Violations
    incarnation: int = 0
    generation: int = 0
    # While it is deleted, or its disk is lost, nobody reads.
    is_closed: bool = False
    floor: int = 0
    ceiling: int = 0
    acknowledged_count: int = 0
    _codes: array[int] = field(default_factory=lambda: array("q"))
    # Codes that were acknowledged without an offset.
    _somewhere: set[int] = field(default_factory=set)
    _acknowledged_end: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def acknowledged_end(self) -> int:
        """Behind the last acknowledged record."""
        return self._acknowledged_end

    def acknowledge(self, offset: int | None, code: int) -> None:
        """A producer was told that its record lies there; None that it lies somewhere.

        librdkafka does not know where if it sees from the answer to a later batch that an earlier
        one was appended, whose own answer was lost (rd_kafka_dr_implicit_ack).
        """
        with self._lock:
            self.acknowledged_count += 1
            if offset is None:
                self._somewhere.add(code)
                return
            self._see(offset, code, "was acknowledged")
            self._acknowledged_end = max(self._acknowledged_end, offset + 1)

    def check_read(self) -> None:
        """Everything was read: also what was acknowledged without an offset."""
        with self._lock:
            missing = self._somewhere.difference(self._codes)
        for code in sorted(missing):
            self.violations.add(
                f"{self.name}: {text_of(code)} was acknowledged, and nobody read it"
            )

    def begin_pass(self, start: int, *, generation: int, who: str) -> Pass:
        """Somebody reads from `start` on; `generation` is from before it was asked for."""
        return Pass(self, start, generation=generation, who=who)

    def read(self, offset: int, value: bytes) -> int | None:
        """A reader got this; its code, or None if it is no record of this partition."""
        code = self.code_of(offset, value)
        if code is not None:
            with self._lock:
                self._see(offset, code, "was read")
        return code

    def code_of(self, offset: int, value: bytes) -> int | None:
        """Who sent this value, and as what; None if it is no record of this partition."""
        head, _, _ = value.partition(b" ")
        parts = head.decode("ascii", "replace").split("/")
        wanted = [self.topic, str(self.number), str(self.incarnation)]
        if len(parts) != 4 or parts[:3] != wanted or not parts[3].isdigit():
            self.violations.add(f"{self.name} has a strange record at {offset}: {value[:60]!r}")
            return None
        return int(parts[3])

    def _see(self, offset: int, code: int, how: str) -> None:
        codes = self._codes
        if offset >= len(codes):
            codes.extend([UNKNOWN] * (offset + 1 - len(codes)))
        if codes[offset] == UNKNOWN:
            codes[offset] = code
        elif codes[offset] != code:
            self.violations.add(
                f"{self.name} offset {offset}: {text_of(code)} {how}, {text_of(codes[offset])}"
                " before"
            )

    def close(self) -> None:
        """Readers end their passes, and begin no new ones until it is opened."""
        self.is_closed = True
        self.generation += 1

    def open(self) -> None:
        self.is_closed = False

    def cut(self, log_start: int, end_offset: int) -> int:
        """The disk is lost, and the bucket knows no more than this; how many are gone."""
        with self._lock:
            lost = max(0, self._acknowledged_end - end_offset)
            del self._codes[end_offset:]
            # Nobody knows which of them were lost.
            self._somewhere.clear()
            self._acknowledged_end = min(self._acknowledged_end, end_offset)
            # A log start that was only on the disk is lost with it.
            self.floor = min(self.floor, log_start)
            return lost

    def begin_anew(self) -> None:
        """The topic was deleted and made again."""
        with self._lock:
            self._codes = array("q")
            self._somewhere.clear()
            self._acknowledged_end = self.floor = self.ceiling = 0
            self.incarnation += 1

    def check_start(self, log_start: int, floor: int) -> None:
        """The log was said to begin there; `floor` was the model's before somebody asked."""
        if not floor <= log_start <= self.ceiling:
            self.violations.add(
                f"{self.name}: log start {log_start} is outside [{floor}, {self.ceiling}]"
            )


def text_of(code: int) -> str:
    """Producer and number in it."""
    return f"record {code & ((1 << SEQUENCE_BITS) - 1)} of producer {code >> SEQUENCE_BITS}"


class Pass:
    """One reading of one partition, in order; `accept` is told every record."""

    def __init__(self, partition: PartitionModel, start: int, *, generation: int, who: str) -> None:
        """`generation` is the partition's from before somebody asked where it starts."""
        self.partition = partition
        self.next_offset = start
        self.count = 0
        self._generation = generation
        self._who = who
        self._last: dict[int, int] = {}

    @property
    def is_outdated(self) -> bool:
        """Whether what it reads is not what it began to read."""
        return self._generation != self.partition.generation

    def accept(self, offset: int, value: bytes | None, _key: bytes | None = None) -> None:
        """The next record."""
        if self.is_outdated:
            return
        model = self.partition
        if offset != self.next_offset:
            # A log start that has moved on is no gap.
            kind = "gap" if offset > self.next_offset else "double"
            if kind == "double" or offset > model.ceiling:
                model.violations.add(
                    f"{self._who}: {kind} in {model.name}: {offset} after {self.next_offset - 1}"
                )
            self._last.clear()
        self.next_offset = offset + 1
        self.count += 1
        code = model.read(offset, value or b"")
        if code is None:
            return
        producer, sequence = code >> SEQUENCE_BITS, code & ((1 << SEQUENCE_BITS) - 1)
        expected = self._last.get(producer, sequence - 1) + 1
        if sequence != expected:
            model.violations.add(
                f"{self._who}: {model.name} offset {offset} has {text_of(code)},"
                f" {expected} was expected"
            )
        self._last[producer] = sequence

    def finish(self, end_offset: int, *, is_live: bool = True) -> None:
        """Everything below `end_offset` was read. What was missing was said on the way."""


class GroupProgress:
    """How far a consumer group has come in each partition: nothing may be skipped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[tuple[str, int, int], int] = {}
        self.count = 0

    def accept(self, partition: PartitionModel, offset: int, value: bytes) -> None:
        """A member got this. Again is fine after a restart or a rebalance; a gap is not."""
        key = (partition.topic, partition.number, partition.incarnation)
        with self._lock:
            end = self._ends.get(key, 0)
            if offset > end and offset > partition.ceiling:
                partition.violations.add(
                    f"group: {partition.name}: {offset} came, {end} was expected"
                )
            self._ends[key] = max(end, offset + 1)
            self.count += 1
        partition.read(offset, value)

    def cut(self, partition: PartitionModel, end_offset: int) -> None:
        key = (partition.topic, partition.number, partition.incarnation)
        with self._lock:
            self._ends[key] = min(self._ends.get(key, 0), end_offset)

    def end(self, partition: PartitionModel) -> int:
        key = (partition.topic, partition.number, partition.incarnation)
        with self._lock:
            return self._ends.get(key, 0)

"""What must be true of transactions, as a plain model: what became of each, and what is read of it.

    record     "<topic>/<partition>/0/<code> padding"; code = writer, transaction, index
    open       its writer lives, or nobody knows better
    either     its writer asked for the commit and heard no answer: all of it is there, or nothing
    committed  all of its records are there once, in every partition; the offsets are known
    aborted    nobody ever reads a record of it

A reader of committed records is right if it gets no record of an aborted transaction, all of each
committed one below the end that it comes to, none twice, and those of a writer in their order. A
lost disk takes transactions that the bucket did not have to their end: they are `lost` in a
partition, and nothing is expected there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

from tests.system.soak.model import SEQUENCE_BITS, PartitionModel, Violations

INDEX_BITS = 3
RECORDS_MAX = 3


class Fate(Enum):
    """Of a transaction; see above."""

    OPEN = "open"
    EITHER = "either"
    COMMITTED = "committed"
    ABORTED = "aborted"


def record_count(transaction: int) -> int:
    """In each partition."""
    return 1 + transaction % RECORDS_MAX


def code_of(writer: int, transaction: int, index: int) -> int:
    return writer << SEQUENCE_BITS | transaction << INDEX_BITS | index


def key_of(code: int) -> int:
    """The transaction of a record."""
    return code >> INDEX_BITS


def told(key: int) -> str:
    bits = SEQUENCE_BITS - INDEX_BITS
    return f"transaction {key & ((1 << bits) - 1)} of writer {key >> bits}"


class TransactionModel:
    """Every transaction of a topic. Thread-safe."""

    def __init__(self, topic: str, partitions: int, violations: Violations) -> None:
        self.violations = violations
        self.partitions = [
            PartitionModel(topic=topic, number=number, violations=violations)
            for number in range(partitions)
        ]
        self._lock = threading.Lock()
        self._fates: dict[int, Fate] = {}
        # Of those that are committed, in each partition.
        self._last_offsets: dict[int, Sequence[int]] = {}
        self._lost: set[tuple[int, int]] = set()

    def become(self, key: int, fate: Fate, last_offsets: Sequence[int] = ()) -> None:
        """What its writer says, or what must follow from its end."""
        with self._lock:
            before = self._fates.get(key, Fate.OPEN)
            if Fate.ABORTED in (before, fate) and Fate.COMMITTED in (before, fate):
                self.violations.add(f"{told(key)} was {before.value}, and then {fate.value}")
            self._fates[key] = fate
            if fate is Fate.COMMITTED:
                self._last_offsets[key] = last_offsets

    def fate(self, key: int) -> Fate:
        with self._lock:
            return self._fates.get(key, Fate.OPEN)

    def committed(self, partition: int) -> Mapping[int, int]:
        """What a reader who begins now must find, and its last offset."""
        with self._lock:
            return {
                key: offsets[partition]
                for key, offsets in self._last_offsets.items()
                if (key, partition) not in self._lost
            }

    def lose(self, partition: int) -> None:
        """The disk is lost: what is in this partition is unknown, until it is `found`."""
        with self._lock:
            self._lost |= {
                (key, partition) for key, fate in self._fates.items() if fate is not Fate.ABORTED
            }

    def found(self, partition: int, keys: Set[int]) -> None:
        """These were in the bucket to their end."""
        with self._lock:
            self._lost -= {(key, partition) for key in keys}

    def counts(self) -> Mapping[str, int]:
        """How many transactions of each fate there are."""
        with self._lock:
            fates = list(self._fates.values())
        return {fate.value: fates.count(fate) for fate in Fate}

    def check_atomic(self, passes: Sequence[CommittedPass]) -> None:
        """Of passes to the end of each partition: no transaction is in one of them alone."""
        with self._lock:
            lost = {key for key, _ in self._lost}
        everywhere = set.intersection(*(one.complete for one in passes))
        for key in set.union(*(one.complete for one in passes)) - everywhere - lost:
            self.violations.add(f"{passes[0].who}: {told(key)} is not in every partition")


@dataclass
class CommittedPass:
    """One reading of a partition from its start: `accept` each record, then `finish`."""

    model: TransactionModel
    number: int
    who: str
    codes: list[int] = field(default_factory=list)
    complete: set[int] = field(default_factory=set)
    _next_offset: int = 0

    def __post_init__(self) -> None:
        self._wanted = self.model.committed(self.number)
        self._partition = self.model.partitions[self.number]
        self._generation = self._partition.generation
        self._last: dict[int, int] = {}

    @property
    def is_outdated(self) -> bool:
        return self._generation != self._partition.generation

    def accept(self, offset: int, value: bytes) -> None:
        """The next record."""
        if self.is_outdated:
            return
        if offset < self._next_offset:
            self._say(f"double: {offset} after {self._next_offset - 1}")
        self._next_offset = offset + 1
        code = self._partition.read(offset, value)
        if code is None:
            return
        key, writer = key_of(code), code >> SEQUENCE_BITS
        if code <= self._last.get(writer, -1):
            self._say(f"{told(key)} has a record twice or out of order at {offset}")
        self._last[writer] = code
        if self.model.fate(key) is Fate.ABORTED:
            self._say(f"{told(key)} was aborted, and is read at {offset}")
        self.codes.append(code)

    def finish(self, end_offset: int) -> None:
        """Everything that is committed below `end_offset` was read."""
        if self.is_outdated:
            return
        counts: dict[int, int] = {}
        for code in self.codes:
            counts[key_of(code)] = counts.get(key_of(code), 0) + 1
        bits = SEQUENCE_BITS - INDEX_BITS
        self.complete = {
            key for key, n in counts.items() if n == record_count(key & ((1 << bits) - 1))
        }
        for key, last_offset in self._wanted.items():
            if last_offset < end_offset and key not in self.complete:
                self._say(
                    f"{told(key)} was committed, {counts.get(key, 0)} of its records were read,"
                    f" the last is at {last_offset}, the reader came to {end_offset}"
                )
        for key in self.complete:
            # It may have been aborted since its records were read.
            if self.model.fate(key) is Fate.ABORTED:
                self._say(f"{told(key)} was aborted, and is read")

    def _say(self, text: str) -> None:
        if not self.is_outdated:
            self.model.violations.add(f"{self.who}: {self._partition.name}: {text}")

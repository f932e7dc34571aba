"""Random transactions on a real broker, and a plain model of what its readers must see.

    producers   of version 1 and 2, with transactions over two topics; some commit, some abort, some
                are left to their time-out, some are cut off by the next producer of their id
    between     plain batches of every codec, and kills of the broker
    tiers       segments roll with a transaction open in them, are archived as soon as they may be,
                merged, and rewritten with zstd; the open segment goes to the bucket in pieces

LOG has the records as they were written, TABLE is compacted. The same seed does the same steps.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.compression import Codec
from tests.support.broker import eventually
from tests.support.wire import WireClient
from tests.system.calls import (
    FIRST_TIMESTAMP_MS,
    LATEST,
    append,
    create_topic,
    delete_records,
    offset_at,
)
from tests.system.tiers.tiered_broker import FREE_LOCALLY, TIERED, WAIT_S, Archive, TieredBroker
from tests.system.transactions.committed import READ_COMMITTED
from tests.system.transactions.wire_producer import WireProducer

LOG, TABLE = "log", "table"
PARTITIONS = {LOG: 2, TABLE: 1}
SETTINGS = {
    "strandline.remote.active.segment.upload.ms": "200",
    "strandline.remote.merge.target.bytes": str(3 * 1024 * 1024),
    "strandline.remote.compression.type": "zstd",
    "log.cleaner.backoff.ms": "200",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
READ_UNCOMMITTED = 0
IDS = 5
KEYS = 6
# A segment has some ten batches.
VALUE_BYTES = (10, 100_000)
STEPS_PER_LOOK = 12
LOOKS_PER_ROUND = 3
HASTY_TIMEOUT_MS = 1000
PATIENT_TIMEOUT_MS = 600_000


# Of a broker that was just started, or still writes the markers of the last transaction.
RETRIABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    # Produce says so of a coordinator that loads.
    ErrorCode.NOT_ENOUGH_REPLICAS,
)


class Outcome(Enum):
    """Of a transaction; what is written outside of one is COMMITTED at once."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class Transaction:
    """What one producer wrote between two ends."""

    outcome: Outcome = Outcome.OPEN

    @property
    def is_committed(self) -> bool:
        return self.outcome is Outcome.COMMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A record that the broker acknowledged."""

    offset: int
    key: bytes | None
    value: bytes
    transaction: Transaction


Place = tuple[str, int]
# Offset and value.
Rows = list[tuple[int, bytes]]


@dataclass
class Model:
    """What was written, partition by partition."""

    written: dict[Place, list[Written]] = field(default_factory=lambda: defaultdict(list))
    log_starts: dict[Place, int] = field(default_factory=lambda: defaultdict(int))

    def stable_offset(self, place: Place, high_watermark: int) -> int:
        """The last stable offset."""
        is_open = (
            one.offset for one in self.written[place] if one.transaction.outcome is Outcome.OPEN
        )
        return min(is_open, default=high_watermark)

    def rows(self, place: Place, *, committed: bool) -> Rows:
        """Of a reader who comes as far as the log goes, or committed records do."""
        end = self.stable_offset(place, 2**62) if committed else 2**62
        return [
            (one.offset, one.value)
            for one in self.written[place]
            if self.log_starts[place] <= one.offset < end
            and (one.transaction.is_committed or not committed)
        ]

    def ever(self, topic: str, *, committed: bool) -> list[tuple[int, int]]:
        """Partition and offset of all records, also of those below the log start by now."""
        return sorted(
            (place[1], one.offset)
            for place, written in self.written.items()
            if place[0] == topic
            for one in written
            if one.transaction.is_committed or not committed
        )

    def latest(self, place: Place) -> dict[bytes | None, int]:
        """Of each key the offset of its last record that is committed and stable."""
        end = self.stable_offset(place, 2**62)
        return {
            one.key: one.offset
            for one in self.written[place]
            if one.transaction.is_committed and one.offset < end
        }


class RandomTransactions:
    """Call `moments`, and look at the broker and its archive at each of them."""

    def __init__(self, broker: TieredBroker, archive: Archive, seed: int) -> None:
        self.broker = broker
        self.archive = archive
        self.model = Model()
        self._chance = random.Random(seed)
        self._count = 0
        self._open: dict[WireProducer, Transaction] = {}
        self._hasty: dict[WireProducer, Transaction] = {}
        self._client = WireClient(broker.port)
        self._producers = [
            WireProducer(self._client, f"id-{number}", version=1 + number % 2)
            for number in range(IDS)
        ]
        create_topic(self._client, LOG, PARTITIONS[LOG], {**TIERED, **FREE_LOCALLY})
        create_topic(
            self._client, TABLE, PARTITIONS[TABLE], {**TIERED, **FREE_LOCALLY, **COMPACTED}
        )
        for producer in self._producers:
            producer.begin(timeout_ms=PATIENT_TIMEOUT_MS)
        for place in self.places:
            # The bucket knows a topic from its first records on.
            self._write_plainly(place)
            eventually(lambda p=place: archive.manifest(*p) is not None, timeout_s=WAIT_S)

    @property
    def places(self) -> list[Place]:
        return [(topic, n) for topic, count in PARTITIONS.items() for n in range(count)]

    def moments(self, rounds: int) -> Iterator[bool]:
        """Whether nothing is under way: transactions are open then, and the bucket is up to date.

        At the last moment no transaction is open.
        """
        for left in reversed(range(rounds)):
            for _ in range(LOOKS_PER_ROUND):
                for _ in range(STEPS_PER_LOOK):
                    self._step()
                yield False
            if not left:
                self._end_all()
            self._settle(is_last=not left)
            yield True
            self._delete_some()

    def close(self) -> None:
        self._client.close()

    # --- steps -------------------------------------------------------------------------------

    def _step(self) -> None:
        steps = {
            self._write: 60,
            self._end: 22,
            self._write_plainly: 12,
            self._let_time_out: 3,
            self._begin_again: 2,
            self._kill: 1,
        }
        (step,) = self._chance.choices(list(steps), weights=list(steps.values()))
        step()

    def _value(self) -> bytes:
        self._count += 1
        chance = self._chance
        # Half of it can be made small.
        half = chance.randint(*VALUE_BYTES) // 2
        return b"%d " % self._count + chance.randbytes(half) + bytes(half)

    def _idle(self) -> list[WireProducer]:
        """Those whose transaction is open, or may begin."""
        return [one for one in self._producers if one not in self._hasty]

    def _write(self) -> None:
        idle = self._idle()
        if idle:
            producer = self._chance.choice(idle)
            self._write_in(producer, self._open.setdefault(producer, Transaction()))

    def _write_in(self, producer: WireProducer, transaction: Transaction) -> None:
        chance = self._chance
        topic, partition = chance.choice(self.places)
        key = self._key(topic)
        values = [self._value() for _ in range(chance.choice((1, 1, 3)))]
        codec = chance.choice(list(Codec))
        code = patiently(
            lambda: producer.try_send(topic, *values, partition=partition, key=key, codec=codec)
        )
        if code is ErrorCode.NONE:
            self._note((topic, partition), producer.base_offset, key, values, transaction)
        # On a slow machine a hasty one may time out between two of its requests.
        assert code is ErrorCode.NONE or producer in self._hasty, code

    def _write_plainly(self, place: Place | None = None) -> None:
        chance = self._chance
        topic, partition = place or chance.choice(self.places)
        key, value = self._key(topic), self._value()
        record = Record(offset=0, timestamp_ms=FIRST_TIMESTAMP_MS, key=key, value=value)
        batch = encode_batch([record], codec=chance.choice(list(Codec)))
        offset = append(self._client, topic, batch, partition=partition)
        self._note((topic, partition), offset, key, [value], Transaction(Outcome.COMMITTED))

    def _key(self, topic: str) -> bytes | None:
        return b"key %d" % self._chance.randrange(KEYS) if topic == TABLE else None

    def _note(
        self,
        place: Place,
        offset: int,
        key: bytes | None,
        values: Sequence[bytes],
        transaction: Transaction,
    ) -> None:
        for at, value in enumerate(values):
            one = Written(offset=offset + at, key=key, value=value, transaction=transaction)
            self.model.written[place].append(one)

    def _end(self) -> None:
        if self._open:
            self._end_of(self._chance.choice(list(self._open)))

    def _end_of(self, producer: WireProducer) -> None:
        transaction = self._open.pop(producer)
        commits = self._chance.random() < 0.6
        assert patiently(lambda: producer.end(is_commit=commits)) is ErrorCode.NONE
        transaction.outcome = Outcome.COMMITTED if commits else Outcome.ABORTED

    def _let_time_out(self) -> None:
        """The producer says nothing any more; its next one begins when that is over."""
        producer = self._chance.choice(self._producers)
        if producer not in self._open and producer not in self._hasty:
            producer.begin(timeout_ms=HASTY_TIMEOUT_MS)
            transaction = self._hasty[producer] = Transaction()
            self._write_in(producer, transaction)

    def _begin_again(self) -> None:
        """As if the program had been started anew: what it left open is aborted."""
        producer = self._chance.choice(self._producers)
        producer.begin(timeout_ms=PATIENT_TIMEOUT_MS)
        for left in (self._open.pop(producer, None), self._hasty.pop(producer, None)):
            if left is not None:
                left.outcome = Outcome.ABORTED

    def _kill(self) -> None:
        self._client.close()
        self.broker.kill()
        self.broker.start()
        self._client = WireClient(self.broker.port)
        for producer in self._producers:
            producer.client = self._client

    def _end_all(self) -> None:
        while self._open:
            self._end()

    def _delete_some(self) -> None:
        """The log start moves, and never into what is undecided."""
        place = (LOG, self._chance.randrange(PARTITIONS[LOG]))
        rows = self.model.rows(place, committed=True)
        if rows:
            offset = self._chance.choice(rows[: len(rows) // 2 + 1])[0]
            answer = delete_records(self._client, place[0], offset, partition=place[1])
            assert answer.error_code == 0, answer
            self.model.log_starts[place] = offset

    # --- between two rounds ------------------------------------------------------------------

    def _settle(self, *, is_last: bool) -> None:
        """Time-outs are over, and the bucket has what it can have."""
        for transaction in self._hasty.values():
            transaction.outcome = Outcome.ABORTED
        for place in self.places:
            eventually(lambda p=place: self._is_stable(p), timeout_s=WAIT_S)
            eventually(lambda p=place: self._is_archived(p, is_last), timeout_s=WAIT_S)
        for producer in self._hasty:
            producer.begin(timeout_ms=PATIENT_TIMEOUT_MS)
        self._hasty.clear()

    def _is_stable(self, place: Place) -> bool:
        """Whether the last stable offset is the model's."""
        stable_offset, high_watermark = self.ends(place)
        return stable_offset == self.model.stable_offset(place, high_watermark)

    def _is_archived(self, place: Place, is_last: bool) -> bool:
        """Whether the bucket has all that is committed; in the end that is the whole log."""
        manifest = self.archive.manifest(*place)
        stable_offset, high_watermark = self.ends(place)
        return (
            manifest is not None
            and manifest.tail_end_offset >= (high_watermark if is_last else stable_offset)
            and manifest.log_start_offset == self.model.log_starts[place]
        )

    def ends(self, place: Place) -> tuple[int, int]:
        """Last stable offset and high watermark."""
        topic, partition = place
        stable, high = (
            offset_at(self._client, topic, LATEST, partition=partition, isolation_level=level)
            for level in (READ_COMMITTED, READ_UNCOMMITTED)
        )
        return stable.offset, high.offset


def patiently(ask: Callable[[], ErrorCode]) -> ErrorCode:
    """Asks again for as long as a client would."""
    codes: list[ErrorCode] = []

    def is_answered() -> bool:
        codes.append(ask())
        return codes[-1] not in RETRIABLE

    eventually(is_answered, timeout_s=WAIT_S)
    return codes[-1]

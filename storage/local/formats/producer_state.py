"""The producer state of a partition: sequences, epochs and open transactions.

The last five batches of each producer id are kept, because a client may have five requests in
flight: a retry of any of them returns the offset of the first attempt.

    sequence of the next batch
      = last + 1                         in order (wraps from 2^31 - 1 to 0)
      in the window, same first and last duplicate: answer the old offset
      anything else                      OutOfOrderSequence

    epoch  older than known              InvalidProducerEpoch
           newer                         must begin with sequence 0
    unknown producer                     any sequence is accepted, as since Kafka 2.4: the state may
                                         have expired while the client kept its count. Unless an
                                         earlier one of its transaction was refused: it comes first

An open transaction holds the last stable offset back to its first record. A marker (control batch)
ends it; an abort goes to the transaction index. It is decided when its marker is below the high
watermark, and holds the last stable offset until then (Kafka's `unreplicatedTxns`).

Snapshots are Kafka's `.snapshot` files, version 1. They hold only the last batch of each producer;
the others are read from the log when they are asked for (storage/local/segment/earlier_batches.py):

    version i16 (1) | crc32c u32 of the rest | count i32 | count entries of
    producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32
    | timestamp i64 | coordinator epoch i32 | first offset of the open transaction i64 (-1)
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from strandline.storage.errors import (
    CorruptFile,
    InvalidProducerEpoch,
    InvalidRecords,
    OutOfOrderSequence,
    RecordsRejected,
    UnsupportedFormat,
)
from strandline.storage.model import NO_EPOCH, NO_TIMESTAMP, Buffer
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.marker import MarkerType, TransactionMarker
from strandline.storage.system import crc32c

# Java clients and librdkafka allow at most five requests in flight with idempotence.
BATCHES_REMEMBERED = 5
SEQUENCE_MASK = 0x7FFFFFFF
NO_SEQUENCE = -1
NO_TRANSACTION = -1
PRODUCER_EPOCH_MAX = 32767

SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")

# Of each partition. The coordinator refuses batches for the seconds in which it loads; a producer
# that is forgotten may at worst have to abort its transaction.
REFUSED_PRODUCERS_MAX = 1000
# Likewise, while a coordinator on another broker is asked.
VERIFIED_PRODUCERS_MAX = 1000


class InvalidTransactionState(RecordsRejected):
    """A batch outside of the producer's open transaction, or a transactional one without any."""

    kafka_code = 48  # INVALID_TXN_STATE


class CoordinatorFenced(RecordsRejected):
    """A marker from a coordinator that another one has replaced."""

    kafka_code = 52  # TRANSACTION_COORDINATOR_FENCED


class AppendedBatch(NamedTuple):
    """One batch of a producer, as it was appended to the log."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedTransaction:
    """A transaction that a marker has just ended; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerEntry:
    """One producer; the hot path reads `epoch` and `next_sequence` directly."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "next_sequence",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.next_sequence = 0
        self.batches: deque[AppendedBatch] = deque(maxlen=BATCHES_REMEMBERED)
        self.coordinator_epoch = NO_EPOCH
        self.last_timestamp_ms = NO_TIMESTAMP
        self.transaction_first_offset = NO_TRANSACTION

    def start_epoch(self, epoch: int) -> None:
        """Restarts the sequences; batches of older epochs are not recognised as duplicates."""
        self.epoch = epoch
        self.next_sequence = 0
        self.batches.clear()

    def has_open_transaction(self, epoch: int) -> bool:
        return self.transaction_first_offset != NO_TRANSACTION and self.epoch == epoch

    def check_coordinator(self, coordinator_epoch: int) -> None:
        """Raises CoordinatorFenced if a newer coordinator has written a marker."""
        if coordinator_epoch < self.coordinator_epoch:
            raise CoordinatorFenced(
                f"producer {self.producer_id}: marker of coordinator epoch {coordinator_epoch},"
                f" the last one had {self.coordinator_epoch}"
            )

    def find_duplicate(self, first_sequence: int, last_sequence: int) -> AppendedBatch | None:
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def __repr__(self) -> str:
        return (
            f"<ProducerEntry {self.producer_id} epoch={self.epoch} next={self.next_sequence} "
            f"transaction_first_offset={self.transaction_first_offset}>"
        )


class _RefusedBatch(NamedTuple):
    """The earliest batch of a producer that was refused."""

    epoch: int
    sequence: int


class VerificationGuard:
    """Says that no marker came since a coordinator was asked (KIP-890; Kafka's class)."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class ProducerState:
    """All producers of one partition."""

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        # First offset -> producer id, in the order of the offsets: appends open transactions, and
        # offsets only grow. An OrderedDict finds its first element in constant time.
        self._open: OrderedDict[int, int] = OrderedDict()
        self.first_open_offset: int | None = None
        # First offset -> marker's offset of the ended transactions that are not replicated.
        self.unreplicated: dict[int, int] = {}
        # First offset of the earliest transaction that is open or not replicated.
        self.first_undecided_offset: int | None = None
        # By producer, the first sequence that was refused before the log knew the producer.
        self._refused: OrderedDict[int, _RefusedBatch] = OrderedDict()
        # By producer, while a coordinator on another broker is asked about its first batch.
        self._guards: OrderedDict[int, VerificationGuard] = OrderedDict()
        # The state came from a snapshot, and the log may have more batches below this offset.
        self.unread_before = 0

    # --- checks, before the append -----------------------------------------------------------

    def check(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_sequence: int,
        *,
        is_transactional: bool,
    ) -> AppendedBatch | None:
        """Checks a client's batch before its append; the earlier batch if it is a duplicate.

        Raises InvalidProducerEpoch, OutOfOrderSequence, InvalidRecords, InvalidTransactionState.
        """
        if first_sequence < 0:
            raise InvalidRecords(f"producer {producer_id} sent sequence {first_sequence}")
        entry = self.entries.get(producer_id)
        if entry is None:
            return None
        if epoch == entry.epoch:
            duplicate = entry.find_duplicate(first_sequence, last_sequence)
            if duplicate is not None:
                return duplicate
        self.check_epoch(entry, epoch)
        expected_sequence = entry.next_sequence if epoch == entry.epoch else 0
        if first_sequence != expected_sequence:
            raise OutOfOrderSequence(
                f"producer {producer_id} epoch {epoch} sent sequence {first_sequence}, "
                f"expected {expected_sequence}"
            )
        if entry.transaction_first_offset != NO_TRANSACTION and not is_transactional:
            raise InvalidTransactionState(
                f"producer {producer_id} has had a transaction open since offset "
                f"{entry.transaction_first_offset} and sent a batch outside of it"
            )
        return None

    def check_epoch(self, entry: ProducerEntry, epoch: int) -> None:
        """Raises InvalidProducerEpoch if `epoch` is older than the entry's."""
        if epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"producer {entry.producer_id} epoch {epoch} is older than {entry.epoch}"
            )

    def check_coordinated(self, producer_id: int, epoch: int) -> None:
        """Checks a coordinator's transactional batch, which has no sequence, before its append.

        Raises InvalidProducerEpoch.
        """
        entry = self.entries.get(producer_id)
        if entry is not None:
            self.check_epoch(entry, epoch)

    def check_marker_of_new_epoch(self, producer_id: int, epoch: int) -> None:
        """Checks a marker of transaction version 2 before its append (KIP-890, KIP-1228).

        Its epoch is above that of the transaction which it ends, unless it repeats a marker: so a
        late marker never ends the next transaction. Raises InvalidProducerEpoch.
        """
        entry = self.entries.get(producer_id)
        if entry is None or epoch > entry.epoch:
            return
        is_open = entry.transaction_first_offset != NO_TRANSACTION
        if epoch < entry.epoch or (is_open and epoch != PRODUCER_EPOCH_MAX):
            raise InvalidProducerEpoch(
                f"producer {producer_id}: marker of epoch {epoch}, the last batch had {entry.epoch}"
            )

    def note_refused(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Keeps in mind that a batch of a transaction was refused, which its producer repeats."""
        if producer_id in self.entries:
            # Its next sequence is known.
            return
        refused = self._refused.get(producer_id)
        if refused is None or (-epoch, sequence) < (-refused.epoch, refused.sequence):
            self._refused[producer_id] = _RefusedBatch(epoch, sequence)
        if len(self._refused) > REFUSED_PRODUCERS_MAX:
            self._refused.popitem(last=False)

    def check_refused(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Raises OutOfOrderSequence if an earlier batch of the producer was refused."""
        refused = self._refused.get(producer_id)
        if refused is not None and epoch == refused.epoch and sequence > refused.sequence:
            raise OutOfOrderSequence(
                f"producer {producer_id} sent sequence {sequence}, and {refused.sequence} that was"
                " refused is still to come"
            )

    def begin_verification(self, producer_id: int, epoch: int) -> VerificationGuard:
        """Returns what `check_verified` wants once the coordinator has confirmed the partition.

        The first batch of the transaction takes it away, and a marker that may end it.
        """
        guard = self._guards.get(producer_id)
        if guard is None or guard.epoch != epoch:
            guard = self._guards[producer_id] = VerificationGuard(epoch)
        if len(self._guards) > VERIFIED_PRODUCERS_MAX:
            self._guards.popitem(last=False)
        return guard

    def is_verified(self, producer_id: int, guard: VerificationGuard) -> bool:
        """Whether neither a marker nor a first batch of the transaction came since then."""
        return self._guards.get(producer_id) is guard

    def check_verified(self, producer_id: int, guard: VerificationGuard) -> None:
        """Raises InvalidTransactionState if the transaction may have ended since then."""
        if not self.is_verified(producer_id, guard):
            raise InvalidTransactionState(
                f"producer {producer_id}: its transaction ended, or began, while its coordinator"
                " was asked"
            )

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether this epoch of the producer has a transaction open in this partition."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.has_open_transaction(epoch)

    # --- changes, after the append -----------------------------------------------------------

    def record_batch(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp_ms: int,
        is_transactional: bool,
    ) -> None:
        """Adds a data batch that was appended."""
        entry = self.entries.get(producer_id)
        if entry is None:
            self._refused.pop(producer_id, None)
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        elif entry.epoch != epoch:
            entry.start_epoch(epoch)
        if first_sequence == NO_SEQUENCE:
            # A coordinator's batch.
            last_sequence, entry.next_sequence = NO_SEQUENCE, 0
        else:
            last_sequence = (first_sequence + offset_delta) & SEQUENCE_MASK
            entry.next_sequence = (last_sequence + 1) & SEQUENCE_MASK
        entry.last_timestamp_ms = timestamp_ms
        entry.batches.append(
            AppendedBatch(first_sequence, last_sequence, last_offset, offset_delta, timestamp_ms)
        )
        if is_transactional and entry.transaction_first_offset == NO_TRANSACTION:
            self._open_transaction(entry, last_offset - offset_delta)

    def record_marker(
        self,
        producer_id: int,
        epoch: int,
        marker: TransactionMarker,
        offset: int,
        timestamp_ms: int,
    ) -> CompletedTransaction | None:
        """Adds a marker that was appended; None if it ended no transaction in this partition."""
        entry = self.entries.get(producer_id)
        self._void_guard(entry, producer_id, epoch)
        if entry is None:
            self._refused.pop(producer_id, None)
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        elif epoch > entry.epoch:
            entry.start_epoch(epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp_ms = timestamp_ms
        first_offset = entry.transaction_first_offset
        if first_offset == NO_TRANSACTION:
            return None
        entry.transaction_first_offset = NO_TRANSACTION
        self.unreplicated[first_offset] = offset
        self._open.pop(first_offset, None)
        self.first_open_offset = next(iter(self._open), None)
        return CompletedTransaction(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=offset,
            aborted=marker.type is MarkerType.ABORT,
        )

    def replay(
        self, header: BatchHeader, marker: TransactionMarker | None
    ) -> CompletedTransaction | None:
        """Adds a batch that is in the log already, without checks."""
        if not header.has_producer:
            return None
        if header.is_control:
            if marker is None:
                return None
            return self.record_marker(
                header.producer_id,
                header.producer_epoch,
                marker,
                header.last_offset,
                header.max_timestamp_ms,
            )
        self.record_batch(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_offset,
            header.last_offset_delta,
            header.max_timestamp_ms,
            header.is_transactional,
        )
        return None

    def _void_guard(self, entry: ProducerEntry | None, producer_id: int, epoch: int) -> None:
        """Takes the guard away unless the marker is known to end an earlier transaction.

        In version 2 a marker has the epoch of the next transaction, whose first batch may be asked
        about while the coordinator still waits for this marker to be replicated. Only an earlier
        one that is open here proves that: in version 1 a marker has its own transaction's epoch.
        """
        guard = self._guards.get(producer_id)
        is_of_earlier = (
            guard is not None
            and entry is not None
            and entry.transaction_first_offset != NO_TRANSACTION
            and entry.epoch < epoch == guard.epoch
        )
        if not is_of_earlier:
            self._guards.pop(producer_id, None)

    def _open_transaction(self, entry: ProducerEntry, first_offset: int) -> None:
        self._guards.pop(entry.producer_id, None)
        entry.transaction_first_offset = first_offset
        self._open[first_offset] = entry.producer_id
        self.first_open_offset = next(iter(self._open))
        if self.first_undecided_offset is None:
            self.first_undecided_offset = first_offset

    def replicated_up_to(self, high_watermark: int) -> None:
        """Decides the transactions whose markers are below the high watermark."""
        self.unreplicated = {
            first: last for first, last in self.unreplicated.items() if last >= high_watermark
        }
        first_offsets = (*self.unreplicated, *islice(self._open, 1))
        self.first_undecided_offset = min(first_offsets, default=None)

    def oldest_open(self) -> ProducerEntry | None:
        """The producer whose open transaction holds the last stable offset back."""
        producer_id = next(iter(self._open.values()), None)
        return None if producer_id is None else self.entries.get(producer_id)

    def open_entries(self) -> list[ProducerEntry]:
        """The producers with an open transaction, in the order of their first offsets."""
        return [self.entries[producer_id] for producer_id in self._open.values()]

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drops producers that were silent for `expiration_ms` and have no open transaction."""
        expired = [
            entry.producer_id
            for entry in self.entries.values()
            if entry.transaction_first_offset == NO_TRANSACTION
            and now_ms - entry.last_timestamp_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)

    def clear(self) -> None:
        self.entries.clear()
        self._open.clear()
        self._refused.clear()
        self.unreplicated.clear()
        self.first_open_offset = self.first_undecided_offset = None
        self.unread_before = 0

    def add_earlier(self, headers: Iterable[BatchHeader]) -> None:
        """Adds what a snapshot left out: earlier batches of the producers, in the log's order."""
        self.unread_before = 0
        found: dict[int, deque[AppendedBatch]] = {}
        for header in headers:
            entry = self.entries.get(header.producer_id)
            if (
                entry is None
                or header.is_control
                or header.producer_epoch != entry.epoch
                or header.base_sequence == NO_SEQUENCE
                or not entry.batches
                or header.last_offset >= entry.batches[0].last_offset
            ):
                continue
            earlier = found.setdefault(entry.producer_id, deque(maxlen=BATCHES_REMEMBERED))
            earlier.append(_appended(header))
        for producer_id, earlier in found.items():
            batches = self.entries[producer_id].batches
            batches.extendleft(islice(reversed(earlier), max(0, BATCHES_REMEMBERED - len(batches))))

    # --- snapshots ---------------------------------------------------------------------------

    def encode_snapshot(self) -> bytes:
        """The state as a Kafka `.snapshot` file."""
        body = b"".join(
            (_SNAPSHOT_COUNT.pack(len(self.entries)), *map(_encode_entry, self.entries.values()))
        )
        return _SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c.crc32c(body)) + body

    def load_snapshot(self, content: Buffer) -> None:
        """Replaces the state by a snapshot. Raises CorruptFile, UnsupportedFormat."""
        entries = list(iter_snapshot(content))
        self.clear()
        for row in entries:
            entry = ProducerEntry(row.producer_id, row.epoch)
            entry.coordinator_epoch = row.coordinator_epoch
            entry.last_timestamp_ms = row.timestamp_ms
            if row.last_offset >= 0:
                # A coordinator's batches have no sequence.
                has_sequence = row.last_sequence != NO_SEQUENCE
                first_sequence = (row.last_sequence - row.offset_delta) & SEQUENCE_MASK
                entry.next_sequence = (row.last_sequence + 1) & SEQUENCE_MASK
                entry.batches.append(
                    AppendedBatch(
                        first_sequence if has_sequence else NO_SEQUENCE,
                        row.last_sequence,
                        row.last_offset,
                        row.offset_delta,
                        row.timestamp_ms,
                    )
                )
            self.entries[row.producer_id] = entry
        self.unread_before = max((row.last_offset for row in entries), default=-1) + 1
        for row in sorted(entries, key=lambda row: row.transaction_first_offset):
            if row.transaction_first_offset != NO_TRANSACTION:
                self._open_transaction(self.entries[row.producer_id], row.transaction_first_offset)

    def __repr__(self) -> str:
        return f"<ProducerState {len(self.entries)} producers, {len(self._open)} transactions open>"


class SnapshotEntry(NamedTuple):
    """One producer of a snapshot file, its fields in the order of the file."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


def _appended(header: BatchHeader) -> AppendedBatch:
    """Of a batch with a sequence."""
    return AppendedBatch(
        header.base_sequence,
        (header.base_sequence + header.last_offset_delta) & SEQUENCE_MASK,
        header.last_offset,
        header.last_offset_delta,
        header.max_timestamp_ms,
    )


def _encode_entry(entry: ProducerEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else None
    return _SNAPSHOT_ENTRY.pack(
        entry.producer_id,
        entry.epoch,
        last.last_sequence if last else NO_SEQUENCE,
        last.last_offset if last else -1,
        last.offset_delta if last else 0,
        entry.last_timestamp_ms,
        entry.coordinator_epoch,
        entry.transaction_first_offset,
    )


def iter_snapshot(content: Buffer) -> Iterator[SnapshotEntry]:
    """The producers in a snapshot file. Raises CorruptFile, UnsupportedFormat."""
    view = memoryview(content)
    if len(view) < _SNAPSHOT_HEAD.size + _SNAPSHOT_COUNT.size:
        raise CorruptFile(f"producer snapshot of {len(view)} bytes is too short")
    version, crc = _SNAPSHOT_HEAD.unpack_from(view)
    if version != SNAPSHOT_VERSION:
        raise UnsupportedFormat(f"producer snapshot has version {version}")
    body = view[_SNAPSHOT_HEAD.size :]
    if crc32c.crc32c(body) != crc:
        raise CorruptFile("producer snapshot has a wrong checksum")
    (entry_count,) = _SNAPSHOT_COUNT.unpack_from(body)
    rows = body[_SNAPSHOT_COUNT.size :]
    if entry_count * _SNAPSHOT_ENTRY.size != len(rows):
        raise CorruptFile(f"producer snapshot promises {entry_count} producers")
    for fields in _SNAPSHOT_ENTRY.iter_unpack(rows):
        yield SnapshotEntry(*fields)

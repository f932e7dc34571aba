"""One segment: a run of batches in a file, with its indexes.

    <20-digit base>.log        batches, back to back      the truth
    <20-digit base>.index      sparse offset index        rebuildable
    <20-digit base>.timeindex  sparse time index          rebuildable
    <20-digit base>.txnindex   aborted transactions       rebuildable, only if there are any
    <20-digit end>.snapshot    producers at the end       rebuildable from an older one

A read is a range of the file that is cut at batch borders. The sparse index brings both ends near;
only the batches between the last index entry and the wanted place are walked, by header:

    index       e0              e1              e2
    log     |b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|
                   ^ offset                ^ bytes_max
                e0->walk                e1->walk

Life: active (appended to) -> sealed (index files whole) -> durable (all synced, off the loop).
"""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from strandline.storage import files
from strandline.storage.errors import CorruptFile, DiskError
from strandline.storage.files import FileRange, OpenFile
from strandline.storage.local.index import OffsetEntry, OffsetIndex, TimeEntry, TimeIndex
from strandline.storage.local.scan import ScannedBatch, scan_batches
from strandline.storage.local.txn_index import TxnIndex
from strandline.storage.log_config import LogConfig
from strandline.storage.model import NO_TIMESTAMP, Buffer, TimestampOffset
from strandline.storage.records.batch import (
    BATCH_LENGTH_MIN,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    read_header,
)
from strandline.storage.records.record import Record, iter_records

log = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

# Indexes hold offsets relative to the base, and positions, as Kafka does: in 31 bits.
RELATIVE_OFFSET_MAX = 2**31 - 1
# How much of the log one step of a walk reads: a default index interval, so mostly one read.
WALK_BYTES = 4096
# Places that recent reads ended at; a consumer's next fetch begins there. One per consumer helps.
HINTS_MAX = 32
NEVER_MS = 2**63 - 1

_WALK_FIELDS = struct.Struct(">qi11xi")  # base offset, batch length, last offset delta


def file_name(offset: int, suffix: str) -> str:
    """`00000000000000000042.log` for 42 and `.log`."""
    return f"{offset:020d}{suffix}"


class LocalRead(NamedTuple):
    """Whole batches as a range of a file; None if nothing is to be read at this offset yet."""

    range: FileRange | None
    next_offset: int


class BatchPosition(NamedTuple):
    """A batch border: where a batch begins, in the file and in the log."""

    position: int
    base_offset: int


class WalkedBatch(NamedTuple):
    """What a walk learns of a batch without decoding it."""

    position: int
    base_offset: int
    last_offset: int
    end_position: int


class LogSegment:
    """Batches [base_offset, end_offset) in one file; appended to by the log that owns it."""

    __slots__ = (
        "__weakref__",
        "_bytes_since_index",
        "_first_timestamp_ms",
        "_hints",
        "_index_interval_bytes",
        "_roll_age_ms",
        "base_offset",
        "created_ms",
        "directory",
        "end_offset",
        "entries_max",
        "is_active",
        "is_durable",
        "is_index_full",
        "log",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "offset_index",
        "roll_timestamp_ms",
        "size_bytes",
        "time_index",
        "txn_index",
    )

    def __init__(
        self, directory: Path, base_offset: int, *, log: OpenFile, created_ms: int, active: bool
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.log = log
        self.size_bytes = 0
        self.created_ms = created_ms
        self.max_timestamp_ms = NO_TIMESTAMP
        # The last offset of the batch that holds the highest timestamp.
        self.max_timestamp_offset = base_offset
        self.is_active = active
        self.is_durable = False
        self.offset_index = OffsetIndex(self.index_path, active=active)
        self.time_index = TimeIndex(self.time_index_path, active=active)
        self.txn_index = TxnIndex(self.txn_index_path)
        # An append with a later timestamp than this one closes the segment first.
        self.roll_timestamp_ms = NEVER_MS
        self.entries_max = RELATIVE_OFFSET_MAX
        self.is_index_full = False
        self._first_timestamp_ms = NO_TIMESTAMP
        self._roll_age_ms = NEVER_MS
        self._index_interval_bytes = 4096
        self._bytes_since_index = 0
        self._hints: dict[int, BatchPosition] = {}

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, *, config: LogConfig, now_ms: int
    ) -> LogSegment:
        """A new, empty, active segment; its index files exist from the start. Raises DiskError."""
        path = directory / file_name(base_offset, LOG_SUFFIX)
        log = OpenFile(path, writable=True, create=True)
        if log.size_bytes():
            raise DiskError(f"{path} exists and is not empty")
        segment = cls(directory, base_offset, log=log, created_ms=now_ms, active=True)
        segment.offset_index.create_file()
        segment.time_index.create_file()
        segment.apply_config(config)
        return segment

    # --- names -------------------------------------------------------------------------------

    @property
    def log_path(self) -> Path:
        return self.directory / file_name(self.base_offset, LOG_SUFFIX)

    @property
    def index_path(self) -> Path:
        return self.directory / file_name(self.base_offset, INDEX_SUFFIX)

    @property
    def time_index_path(self) -> Path:
        return self.directory / file_name(self.base_offset, TIME_INDEX_SUFFIX)

    @property
    def txn_index_path(self) -> Path:
        return self.directory / file_name(self.base_offset, TXN_INDEX_SUFFIX)

    @property
    def snapshot_path(self) -> Path:
        """The producers as they were at the end of this segment; written when it is closed."""
        return self.directory / file_name(self.end_offset, SNAPSHOT_SUFFIX)

    @property
    def has_transactions(self) -> bool:
        """Whether an aborted transaction ended in this segment."""
        return len(self.txn_index) > 0

    # --- appending ---------------------------------------------------------------------------

    def apply_config(self, config: LogConfig) -> None:
        """Takes over index interval, index size and age; the age with a new jitter."""
        jitter_ms_max = min(config.segment_jitter_ms, config.segment_ms)
        jitter_ms = random.randrange(jitter_ms_max) if jitter_ms_max else 0
        self._roll_age_ms = config.segment_ms - jitter_ms
        self._index_interval_bytes = config.index_interval_bytes
        # Time entries are the larger ones, and sealing adds one more of them.
        self.entries_max = max(1, config.segment_index_bytes // TimeIndex.ENTRY_BYTES - 1)
        self._set_roll_timestamp()

    def append(self, records: Buffer, last_offset: int, max_timestamp_ms: int) -> None:
        """Writes one batch at the end. Raises DiskError; the file is then as it was before.

        If it could not be put back either, `size_bytes` differs from the file's: see `is_torn`.
        """
        try:
            self.log.append(records)
        except DiskError:
            self.log.truncate(self.size_bytes)
            raise
        self.note_batch(len(records), last_offset, max_timestamp_ms)

    def note_batch(self, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> None:
        """Accounts for a batch that lies at the end of what was noted so far."""
        position = self.size_bytes
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self._bytes_since_index > self._index_interval_bytes:
            self.offset_index.append(last_offset - self.base_offset, position)
            self.time_index.append_if_later(
                self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset
            )
            self.is_index_full = self.offset_index.entry_count >= self.entries_max
            self._bytes_since_index = size_bytes
        else:
            self._bytes_since_index += size_bytes
            if position == 0:
                self._first_timestamp_ms = max_timestamp_ms
                self._set_roll_timestamp()
        self.size_bytes = position + size_bytes
        self.end_offset = last_offset + 1

    def _set_roll_timestamp(self) -> None:
        if self._first_timestamp_ms >= 0:
            self.roll_timestamp_ms = self._first_timestamp_ms + self._roll_age_ms
        else:
            self.roll_timestamp_ms = NEVER_MS

    def outlives(self, now_ms: int) -> bool:
        """Whether it is older than segment.ms by the wall clock."""
        return now_ms - self.created_ms > self._roll_age_ms

    @property
    def is_torn(self) -> bool:
        """Whether the file holds more, or less, than the batches that were noted."""
        return self.log.size_bytes() != self.size_bytes

    def write_indexes(self) -> None:
        """Brings the index files up to date, with an entry for the highest timestamp."""
        self.time_index.append_if_later(
            self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset
        )
        self.offset_index.write_out()
        self.time_index.write_out()
        self.txn_index.write_out()

    def seal(self) -> None:
        """Ends appending; index files are complete but not synced. Raises DiskError."""
        self.write_indexes()
        self.offset_index.seal()
        self.time_index.seal()
        self.is_active = False

    def sync_indexes(self) -> None:
        """fsync of the index files as they are, for a segment that is closed while active."""
        _sync_if_there(self.index_path)
        _sync_if_there(self.time_index_path)
        _sync_if_there(self.txn_index_path)

    def reactivate(self, config: LogConfig) -> None:
        """Makes a sealed segment, just truncated, the active one."""
        if not self.is_active:
            self.offset_index.load_active()
            self.time_index.load_active()
            self.is_active = True
        self.apply_config(config)

    def sync(self) -> None:
        """fsync of the log, and of everything once it is sealed. Blocks: not on the loop."""
        # Sealed is asked before syncing: a segment that is sealed meanwhile is synced next time.
        was_sealed = not self.is_active
        self.log.sync()
        if was_sealed:
            self.sync_indexes()
            _sync_if_there(self.snapshot_path)
            self.is_durable = True

    def truncate(self, position: int, end_offset: int) -> None:
        """Cuts the file at a batch border; what remains is [base_offset, end_offset)."""
        self.log.truncate(position)
        relative_offset = end_offset - self.base_offset
        self.offset_index.truncate(relative_offset)
        self.time_index.truncate(relative_offset)
        self.txn_index.truncate(end_offset)
        self._hints.clear()
        self.size_bytes = position
        self.end_offset = end_offset
        self.is_durable = False
        if position == 0:
            self._first_timestamp_ms = NO_TIMESTAMP
        self._set_roll_timestamp()
        self.is_index_full = self.offset_index.entry_count >= self.entries_max
        self._bytes_since_index = position - self._border_before(position)
        self._reload_max_timestamp()

    def resume(self) -> None:
        """Makes a cleanly closed segment active again, up to its last index entry.

        The caller notes the batches from `size_bytes` on. Raises CorruptRecords.
        """
        self.offset_index.load_active()
        self.time_index.load_active()
        last_entry = self.time_index.last_entry()
        if last_entry is not None:
            self.max_timestamp_ms = last_entry.timestamp_ms
            self.max_timestamp_offset = self.base_offset + last_entry.relative_offset
        border = self._border_before(self.size_bytes)
        self.size_bytes = border
        self.is_active = True
        self.end_offset = self.base_offset
        if border > 0:
            self.end_offset = self._header_at(border).base_offset
            self._first_timestamp_ms = self._header_at(0).max_timestamp_ms
            self.is_index_full = self.offset_index.entry_count >= self.entries_max
            self._set_roll_timestamp()

    def index_mismatch(self, config: LogConfig) -> str | None:
        """What in the index files does not fit the log; None if nothing.

        Looks at the last entries only, and at the batches they name. Raises CorruptRecords,
        CorruptFile.
        """
        last_entry = self.offset_index.last_entry()
        border = last_entry.position if last_entry else 0
        unindexed_bytes = self.size_bytes - border
        if unindexed_bytes < HEADER_BYTES:
            return f"{self.index_path.name} points behind the log"
        # Between two entries lie at most an interval and one batch; twice that is not our work.
        if unindexed_bytes > 2 * (config.index_interval_bytes + config.max_message_bytes):
            return f"{self.index_path.name} ends {unindexed_bytes} bytes before the log"
        tail_header = self._header_at(border)
        tail_offset = last_entry.relative_offset if last_entry else 0
        if last_entry and tail_header.last_offset != self.base_offset + tail_offset:
            return f"{self.index_path.name} is not that of this log"
        last_time = self.time_index.last_entry() or TimeEntry(NO_TIMESTAMP, 0)
        if tail_header.max_timestamp_ms > last_time.timestamp_ms:
            return f"{self.time_index_path.name} ends before the log"
        if last_time.timestamp_ms == NO_TIMESTAMP:
            return None
        # The highest timestamp is mostly in the tail, and then the index need not be loaded.
        if last_time.relative_offset < tail_offset:
            border = self._border_of(last_time.relative_offset)
        for batch in self._walk(border):
            if batch.last_offset >= self.base_offset + last_time.relative_offset:
                if self._header_at(batch.position).max_timestamp_ms == last_time.timestamp_ms:
                    return None
                break
        return f"{self.time_index_path.name} is not that of this log"

    def _border_before(self, position: int) -> int:
        entry = self.offset_index.floor_by_position(position)
        return entry.position if entry else 0

    def _border_of(self, relative_offset: int) -> int:
        entry = self.offset_index.floor(relative_offset)
        return entry.position if entry else 0

    def _header_at(self, position: int) -> BatchHeader:
        return read_header(self.log.read_at(position, HEADER_BYTES))

    def _reload_max_timestamp(self) -> None:
        """Finds the highest timestamp again: the last time entry, then the batches behind it."""
        last_entry = self.time_index.last_entry()
        position = self._border_before(self.size_bytes)
        self.max_timestamp_ms, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        if last_entry is not None:
            self.max_timestamp_ms = last_entry.timestamp_ms
            self.max_timestamp_offset = self.base_offset + last_entry.relative_offset
            position = min(position, self._border_of(last_entry.relative_offset))
        for batch in self.scan(position):
            if batch.header.max_timestamp_ms > self.max_timestamp_ms:
                self.max_timestamp_ms = batch.header.max_timestamp_ms
                self.max_timestamp_offset = batch.header.last_offset

    # --- reading -----------------------------------------------------------------------------

    def read_range(
        self,
        offset: int,
        *,
        bytes_max: int,
        end_offset: int | None = None,
        at_least_one_batch: bool = True,
    ) -> LocalRead | None:
        """Whole batches from the one that holds `offset`; None if that lies behind this segment.

        Nothing at or after `end_offset` is included, nor a batch that crosses it.
        Raises CorruptFile.
        """
        start = self.locate(offset)
        if start is None:
            return None
        limit = BatchPosition(self.size_bytes, self.end_offset)
        if end_offset is not None and end_offset < limit.base_offset:
            limit = self.locate(end_offset) or limit
        if start.position >= limit.position:
            return LocalRead(None, offset)
        end = limit
        if start.position + bytes_max < limit.position:
            end = self._last_border(start, start.position + bytes_max)
            if end.position == start.position:
                if not at_least_one_batch:
                    return LocalRead(None, offset)
                end = self._end_of_batch(start)
        hints = self._hints
        if len(hints) >= HINTS_MAX:
            hints.clear()
        hints[end.base_offset] = end
        return LocalRead(
            FileRange(self.log, start.position, end.position - start.position), end.base_offset
        )

    def locate(self, offset: int) -> BatchPosition | None:
        """The first batch that ends at or after `offset`; None if there is none (yet)."""
        if offset >= self.end_offset or self.size_bytes == 0:
            return None
        if offset <= self.base_offset:
            return BatchPosition(0, self.base_offset)
        hint = self._hints.get(offset)
        if hint is not None:
            return hint
        entry = self.offset_index.floor(offset - self.base_offset)
        for batch in self._walk_from(entry, 0):
            if batch.last_offset >= offset:
                return BatchPosition(batch.position, batch.base_offset)
        return None

    def _last_border(self, start: BatchPosition, position_max: int) -> BatchPosition:
        """The last batch border in [start, position_max]; there is a batch behind it."""
        entry = self.offset_index.floor_by_position(position_max)
        for batch in self._walk_from(entry, start.position):
            if batch.end_position > position_max:
                return BatchPosition(batch.position, batch.base_offset)
        raise CorruptFile(f"{self.log_path}: no batch border after position {position_max}")

    def _end_of_batch(self, start: BatchPosition) -> BatchPosition:
        batch = next(self._walk(start.position))
        return BatchPosition(batch.end_position, batch.last_offset + 1)

    def _walk_from(self, entry: OffsetEntry | None, position: int) -> Iterator[WalkedBatch]:
        """Walks from the batch of an index entry, or from `position` if that is further on.

        An entry that does not fit its batch is damaged; then the walk begins at `position`, a
        border that is certain, which is slow and right. Raises CorruptFile.
        """
        if entry is None or entry.position <= position:
            return self._walk(position)
        walk = self._walk(entry.position)
        try:
            first = next(walk, None)
        except CorruptFile:
            first = None
        if first is None or first.last_offset != self.base_offset + entry.relative_offset:
            log.warning(
                "index entry does not fit the log",
                extra={"fields": {"path": str(self.index_path), "position": entry.position}},
            )
            return self._walk(position)
        return chain((first,), walk)

    def _walk(self, position: int) -> Iterator[WalkedBatch]:
        """Steps over batches from a border to the end. Raises CorruptFile."""
        size_bytes, end_offset = self.size_bytes, self.end_offset
        while position < size_bytes:
            window = self.log.read_at(position, min(WALK_BYTES, size_bytes - position))
            at = 0
            while at + _WALK_FIELDS.size <= len(window):
                base_offset, length, last_delta = _WALK_FIELDS.unpack_from(window, at)
                start, last_offset = position + at, base_offset + last_delta
                at += length + LOG_OVERHEAD_BYTES
                if (
                    length < BATCH_LENGTH_MIN
                    or position + at > size_bytes
                    or not self.base_offset <= base_offset <= last_offset < end_offset
                ):
                    raise CorruptFile(f"{self.log_path}: no batch begins at position {start}")
                yield WalkedBatch(start, base_offset, last_offset, position + at)
            if at == 0:
                raise CorruptFile(f"{self.log_path} ends inside a batch header at {position}")
            position += at

    def scan(self, position: int = 0, *, verify_crc: bool = False) -> Iterator[ScannedBatch]:
        """The batches from a border to the end, with their headers. Raises CorruptRecords."""
        return scan_batches(self.log, position, self.size_bytes, verify_crc=verify_crc)

    # --- by time -----------------------------------------------------------------------------

    def find_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
        """The first record at or after `timestamp_ms` and at or after `start_offset`.

        May be called from a worker thread. Raises CorruptRecords if a batch does not decompress.
        """
        if self.max_timestamp_ms < timestamp_ms:
            return None
        first = self.locate(start_offset)
        if first is None:
            return None
        for batch in self._walk(max(first.position, self._time_position(timestamp_ms))):
            header = self._header_at(batch.position)
            if header.max_timestamp_ms < timestamp_ms:
                continue
            for record in self._records(batch):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                    return TimestampOffset(record.timestamp_ms, record.offset, header.leader_epoch)
        return None

    def _time_position(self, timestamp_ms: int) -> int:
        """A border before which every record is older than `timestamp_ms`; 0 if none is known."""
        entry = self.time_index.floor(timestamp_ms)
        if entry is None:
            return 0
        batch = self.locate(self.base_offset + entry.relative_offset)
        if batch is None or self._header_at(batch.position).max_timestamp_ms != entry.timestamp_ms:
            log.warning(
                "time index entry does not fit the log",
                extra={"fields": {"path": str(self.time_index_path)}},
            )
            return 0
        return batch.position

    def find_max_timestamp(self) -> TimestampOffset | None:
        """The first record that has the highest timestamp of the segment."""
        if self.max_timestamp_ms == NO_TIMESTAMP:
            return None
        start = self.locate(self.max_timestamp_offset)
        if start is None:
            return None
        batch = next(self._walk(start.position))
        header = self._header_at(batch.position)
        # max() keeps the first of equals. The header's own maximum is the client's word only.
        latest = max(self._records(batch), key=lambda record: record.timestamp_ms)
        return TimestampOffset(latest.timestamp_ms, latest.offset, header.leader_epoch)

    def _records(self, batch: WalkedBatch) -> Iterator[Record]:
        content = self.log.read_at(batch.position, batch.end_position - batch.position)
        return iter_records(content, read_header(content))

    def __repr__(self) -> str:
        state = "active" if self.is_active else "durable" if self.is_durable else "sealed"
        return (
            f"<LogSegment {self.log_path.name} [{self.base_offset},{self.end_offset}) "
            f"{self.size_bytes} bytes {state}>"
        )


def _sync_if_there(path: Path) -> None:
    try:
        if path.exists():
            files.sync_file(path)
    except DiskError:
        # The segment may have been deleted between the two: then there is nothing to make durable.
        if path.exists():
            raise

"""One segment: a run of batches in a file, with its indexes.

    <20-digit base>.log        batches, back to back      the truth
    <20-digit base>.index      sparse offset index        rebuildable
    <20-digit base>.timeindex  sparse time index          rebuildable
    <20-digit base>.txnindex   aborted transactions       rebuildable, only if there are any
    <20-digit end>.snapshot    producers at the end       rebuildable from an older one

Life: active (appended to) -> sealed (index files whole) -> durable (all synced, off the loop).

A start reads only the name of a durable segment, and other state on first use:

    from the names                  base offset, end offset (the base offset of the next segment)
    from the folder, on first use   size
    from the files, on first use    everything else; the indexes are checked then

A durable segment may close its file at any time (see open_files.py); `file` opens it again.

A read is a range of the file between batch borders. The sparse index gives a border before each
end; only the batch headers from there to the wanted place are read:

    index       e0              e1              e2
    log     |b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|
                   ^ offset                ^ bytes_max
                e0->walk                e1->walk

Index entries are hints: callers compare an entry with the batch that it names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from strandline.storage import entropy, files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import CorruptFile, CorruptRecords, DiskError, StorageError
from strandline.storage.files import FileRange, OpenFile
from strandline.storage.local.formats.index import (
    LOADED,
    OffsetEntry,
    OffsetIndex,
    TimeEntry,
    TimeIndex,
)
from strandline.storage.local.formats.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from strandline.storage.local.formats.txn_index import TxnIndex
from strandline.storage.local.segment.open_files import OPEN_SEALED
from strandline.storage.model import NO_TIMESTAMP, Buffer, TimestampOffset
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch.any_batch import (
    BATCH_BYTES_MIN,
    iter_times,
    read_header,
    read_header_at,
    walk_file,
)
from strandline.storage.records.batch.batch import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_POSITION,
    Batch,
    BatchHeader,
)

log = logging.getLogger(__name__)

# A read at the place of a wrong entry is repeated. One limit for all segments, of which few
# are wrong.
_quiet_log = QuietLog(log)

# Indexes hold offsets relative to the base, and positions, as Kafka does: in 31 bits.
RELATIVE_OFFSET_MAX = 2**31 - 1
NEVER_MS = 2**63 - 1

# Bytes that one step of a walk reads: a default index interval, so mostly one read.
WALK_BYTES = 4096
# Positions where recent reads ended, one per consumer: its next fetch begins there.
HINTS_MAX = 32
# Bound on a producer's last batches, without records, that are skipped; beyond it they are sent.
BARE_BYTES_MAX = 64 * HEADER_BYTES

_UNKNOWN = -1


class SegmentEnd(NamedTuple):
    """The state of a segment at its end offset, without its indexes."""

    base_offset: int
    end_offset: int
    size_bytes: int
    created_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    first_timestamp_ms: int = NO_TIMESTAMP
    unindexed_bytes: int = 0

    @classmethod
    def of_empty(cls, base_offset: int, *, created_ms: int) -> SegmentEnd:
        return cls(base_offset, base_offset, 0, created_ms, NO_TIMESTAMP, base_offset)


class LocalRead(NamedTuple):
    """Whole batches as a range of a file; None if there is no batch at this offset yet.

    `is_cut`: the next batch did not fit into the allowed bytes.
    """

    range: FileRange | None
    next_offset: int
    is_cut: bool = False


class BatchPosition(NamedTuple):
    """The beginning of a batch, in the file and in the log."""

    position: int
    base_offset: int


class LogSegment:
    """Batches [base_offset, end_offset) in one file; appended to by the log that owns it."""

    __slots__ = (
        "__weakref__",
        "_begun_ms",
        "_bytes_since_index",
        "_created_ms",
        "_file",
        "_first_timestamp_ms",
        "_hints",
        "_index_interval_bytes",
        "_jitter",
        "_look",
        "_max_timestamp_ms",
        "_max_timestamp_offset",
        "_offset_entries_max",
        "_offset_index",
        "_roll_age_ms",
        "_time_index",
        "_txn_index",
        "base_offset",
        "directory",
        "end_offset",
        "end_position",
        "entries_max",
        "is_active",
        "is_durable",
        "is_index_full",
        "roll_timestamp_ms",
    )

    # Read from its files when they are first needed.
    _created_ms: int
    _max_timestamp_ms: int
    # The last offset of the batch that holds the highest timestamp.
    _max_timestamp_offset: int
    _offset_index: OffsetIndex
    _time_index: TimeIndex
    _txn_index: TxnIndex

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        end_offset: int,
        *,
        look: Callable[[LogSegment], None] | None,
    ) -> None:
        """A durable segment of which only the name is known.

        `look` opens its files, checks them and calls `take_over`, unless another thread did so
        before. It is called in any thread when the state is first needed. Raises DiskError.
        """
        self.directory = directory
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.is_active = False
        self.is_durable = True
        # An append with a later timestamp than this one closes the segment first.
        self.roll_timestamp_ms = NEVER_MS
        self.entries_max = self._offset_entries_max = RELATIVE_OFFSET_MAX
        self.is_index_full = False
        self._look = look
        self._file: OpenFile | None = None
        # Position of the next batch; _UNKNOWN if only the name was read, see `size_bytes`.
        self.end_position = _UNKNOWN
        self._first_timestamp_ms = NO_TIMESTAMP
        # The earliest wall time of its first record, as far as known.
        self._begun_ms = NEVER_MS
        self._roll_age_ms = NEVER_MS
        # The share of segment.jitter.ms by which it is closed earlier; below 0: not drawn yet.
        self._jitter = -1.0
        self._index_interval_bytes = 4096
        self._bytes_since_index = 0
        self._hints: dict[int, BatchPosition] = {}

    @classmethod
    def opened(
        cls, directory: Path, end: SegmentEnd, *, file: OpenFile, active: bool
    ) -> LogSegment:
        """Returns a segment with an open file and empty indexes."""
        segment = cls(directory, end.base_offset, end.end_offset, look=None)
        segment.is_active = active
        segment.is_durable = False
        segment._file = file
        segment._set_end(end)
        # As text: a start makes thousands, and a Path takes ten times the time and memory.
        stem = f"{directory}/{file_name(end.base_offset, '')}"
        segment._offset_index = OffsetIndex(stem + INDEX_SUFFIX, active=active)
        segment._time_index = TimeIndex(stem + TIME_INDEX_SUFFIX, active=active)
        segment._txn_index = TxnIndex(stem + TXN_INDEX_SUFFIX)
        return segment

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, *, config: LogConfig, now_ms: int
    ) -> LogSegment:
        """Returns a new, empty, active segment; its index files exist from the start.

        Raises DiskError; its files are removed then, or the error condemns the folder. A start
        would take a remaining name for the end of the segment before it.
        """
        path = directory / file_name(base_offset, LOG_SUFFIX)
        file = OpenFile(path, writable=True, create=True)
        if file.size_bytes():
            raise DiskError(f"{path} exists and is not empty")
        end = SegmentEnd.of_empty(base_offset, created_ms=now_ms)
        segment = cls.opened(directory, end, file=file, active=True)
        try:
            segment.offset_index.create_file()
            segment.time_index.create_file()
        except DiskError:
            for made in (path, segment.index_path, segment.time_index_path):
                files.remove(made)
            raise
        segment.apply_config(config)
        return segment

    def resume_indexes(self, config: LogConfig) -> None:
        """Takes over the configuration, after the indexes were filled."""
        self.apply_config(config)
        self.is_index_full = self._has_full_index()

    def end(self) -> SegmentEnd:
        """Its state, as `opened` takes it."""
        return SegmentEnd(
            self.base_offset,
            self.end_offset,
            self.size_bytes,
            self.created_ms,
            self.max_timestamp_ms,
            self._max_timestamp_offset,
            self._first_timestamp_ms,
            self._bytes_since_index,
        )

    def _set_end(self, end: SegmentEnd) -> None:
        self.end_position = end.size_bytes
        self._created_ms = end.created_ms
        self._max_timestamp_ms = end.max_timestamp_ms
        self._max_timestamp_offset = end.max_timestamp_offset
        self._first_timestamp_ms = end.first_timestamp_ms
        self._bytes_since_index = end.unindexed_bytes

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

    # --- state that is read on first use -------------------------------------------------------

    @property
    def is_opened(self) -> bool:
        """Whether its files were opened and checked."""
        return self._look is None

    def open(self) -> None:
        """Opens and checks its files, unless that was done. Raises DiskError."""
        if self._look is not None:
            self._look(self)

    def take_over(self, opened: LogSegment) -> None:
        """Takes the state that `look` found: the same segment, opened."""
        self._file = opened.file()
        self._set_end(opened.end())
        self._offset_index = opened.offset_index
        self._time_index = opened.time_index
        self._txn_index = opened.txn_index
        self.is_durable = opened.is_durable
        # Set last: other threads use the state from here on.
        self._look = None
        if self.is_durable:
            OPEN_SEALED.add(self)

    @property
    def size_bytes(self) -> int:
        if self.end_position == _UNKNOWN:
            self.end_position = files.size_bytes(self.log_path)
        return self.end_position

    @property
    def created_ms(self) -> int:
        if self._look is not None:
            self.open()
        return self._created_ms

    @property
    def max_timestamp_ms(self) -> int:
        if self._look is not None:
            self.open()
        return self._max_timestamp_ms

    @property
    def offset_index(self) -> OffsetIndex:
        if self._look is not None:
            self.open()
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._look is not None:
            self.open()
        return self._time_index

    @property
    def txn_index(self) -> TxnIndex:
        if self._look is not None:
            self.open()
        return self._txn_index

    # --- the open file -------------------------------------------------------------------------

    def file(self) -> OpenFile:
        """Returns the open log file; readers hold it. Raises DiskError.

        Appends and reads avoid this call, which takes a hundredth of their time.
        """
        return self._file or self._reopened()

    def _reopened(self) -> OpenFile:
        self.open()
        file = self._file
        if file is None:
            # Two threads may both open it: one descriptor is closed with its last reader.
            file = self._file = OpenFile(self.log_path, writable=True)
            if self.is_durable:
                OPEN_SEALED.add(self)
        return file

    def give_up_file(self) -> None:
        """Drops the open file, which its readers keep until they end; see OpenSegments."""
        self._file = None

    def retire(self) -> None:
        """Prepares for the removal of its file names; current readers may continue."""
        file = None
        try:
            file = self.file()
        except StorageError as error:
            log.warning(
                "segment removed that could not be opened",
                extra={"fields": {"path": str(self.log_path), "reason": str(error)}},
            )
        OPEN_SEALED.forget(self)
        self._file = file
        self.forget_indexes()

    def close(self) -> None:
        """Closes its open files."""
        OPEN_SEALED.forget(self)
        self.forget_indexes()
        if self._file is not None:
            self._file.close()

    def forget_indexes(self) -> None:
        """Frees the memory of its indexes."""
        if self.is_opened:
            LOADED.forget(self._offset_index)
            LOADED.forget(self._time_index)

    # --- appending ---------------------------------------------------------------------------

    def apply_config(self, config: LogConfig) -> None:
        """Applies index interval, index size and maximum age.

        The jitter is drawn once for a segment: otherwise each alteration would draw again until the
        segment is due, and one of a default would close those of all topics together.
        """
        age_ms_max = config.segment_age_ms_max
        jitter_ms_max = min(config.segment_jitter_ms, age_ms_max)
        if jitter_ms_max and self._jitter < 0:
            self._jitter = entropy.fraction()
        self._roll_age_ms = age_ms_max - int(self._jitter * jitter_ms_max)
        self._index_interval_bytes = config.index_interval_bytes
        # As in Kafka: time entries are larger than offset entries, and sealing adds one.
        self.entries_max = max(1, config.segment_index_bytes // TimeIndex.ENTRY_BYTES - 1)
        self._offset_entries_max = max(1, config.segment_index_bytes // OffsetIndex.ENTRY_BYTES)
        self._set_roll_timestamp()

    def append(self, records: Buffer, last_offset: int, max_timestamp_ms: int) -> None:
        """Writes one batch at the end. Raises DiskError; the file is then as it was before.

        If it could not be restored either, `size_bytes` differs from the file's: see `is_torn`.
        """
        file = self._file or self._reopened()
        try:
            file.append(records)
        except DiskError:
            file.truncate(self.end_position)
            raise
        self.note_batch(len(records), last_offset, max_timestamp_ms)

    @property
    def run_bytes_max(self) -> int:
        """The most bytes of a run of batches, whose entries have room in the indexes."""
        entries_left = self.entries_max - self._offset_index.entry_count - 1
        return max(0, entries_left) * self._index_interval_bytes

    def append_run(self, records: Buffer, run: Sequence[Batch]) -> None:
        """As `append`, for batches that follow each other in `records`."""
        file = self._file or self._reopened()
        try:
            file.append(records)
        except DiskError:
            file.truncate(self.end_position)
            raise
        for _, header in run:
            self.note_batch(header.size_bytes, header.last_offset, header.max_timestamp_ms)

    def note_batch(self, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> None:
        """Accounts for a batch that follows those noted so far."""
        position = self.end_position
        if max_timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = max_timestamp_ms
            self._max_timestamp_offset = last_offset
        if self._bytes_since_index > self._index_interval_bytes:
            self._offset_index.append(last_offset - self.base_offset, position)
            self._time_index.append_if_later(
                self._max_timestamp_ms, self._max_timestamp_offset - self.base_offset
            )
            entry_count = self._offset_index.entry_count
            self.is_index_full = entry_count >= self.entries_max and self._has_full_index()
            self._bytes_since_index = size_bytes
        else:
            self._bytes_since_index += size_bytes
            if position == 0:
                self._first_timestamp_ms = max_timestamp_ms
                self._set_roll_timestamp()
        self.end_position = position + size_bytes
        self.end_offset = last_offset + 1

    def _has_full_index(self) -> bool:
        """Returns whether either index has no room for another entry.

        There are never more time entries than offset entries, and fewer where times stand still.
        """
        return (
            self.time_index.entry_count >= self.entries_max
            or self.offset_index.entry_count >= self._offset_entries_max
        )

    def _set_roll_timestamp(self) -> None:
        if self._first_timestamp_ms >= 0:
            self.roll_timestamp_ms = self._first_timestamp_ms + self._roll_age_ms
        else:
            self.roll_timestamp_ms = NEVER_MS

    def outlives(self, now_ms: int) -> bool:
        """Returns whether it is older than segment.ms by the wall clock.

        Its age counts from its first record if that is later than its creation: a segment that was
        empty for long is not closed at once. A begin in the future counts as now: the clock was
        set back, or a producer's clock is ahead.
        """
        begun_ms = min(max(self.created_ms, self.first_timestamp_ms()), now_ms)
        self._begun_ms = min(self._begun_ms, begun_ms)
        return now_ms - self._begun_ms > self._roll_age_ms

    def first_timestamp_ms(self) -> int:
        """The highest timestamp of the first batch, by which the age of the segment is judged."""
        if self._first_timestamp_ms == NO_TIMESTAMP and self.size_bytes > 0:
            self._first_timestamp_ms = self._header_at(0).max_timestamp_ms
        return self._first_timestamp_ms

    @property
    def is_torn(self) -> bool:
        """Whether the size of the file differs from that of the noted batches."""
        return self.file().size_bytes() != self.size_bytes

    def write_indexes(self) -> None:
        """Brings the index files up to date, with an entry for the highest timestamp."""
        self.time_index.append_if_later(
            self.max_timestamp_ms, self._max_timestamp_offset - self.base_offset
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
        OPEN_SEALED.forget(self)
        if not self.is_active:
            self.offset_index.load_active()
            self.time_index.load_active()
            self.is_active = True
        self.apply_config(config)

    def sync(self) -> None:
        """fsync of the log, and of everything once it is sealed. Blocks: not on the loop.

        Of the other files only the transaction index is always synced with it: a start that trusts
        the log finds out that an index is missing or torn, and not that there were aborts.
        """
        # Read before the sync: a segment that is sealed meanwhile is synced again next time.
        was_sealed = not self.is_active
        self.file().sync()
        if not was_sealed and len(self.txn_index):
            _sync_if_there(self.txn_index_path)
        if was_sealed:
            self.sync_indexes()
            _sync_if_there(self.snapshot_path)
            self.is_durable = True
            # Not before: the kernel reports a failed write of a page only to open files.
            OPEN_SEALED.add(self)

    def truncate(self, position: int, end_offset: int) -> None:
        """Cuts the file at a batch border; what remains is [base_offset, end_offset)."""
        self.file().truncate(position)
        relative_offset = end_offset - self.base_offset
        self.offset_index.truncate(relative_offset)
        self.time_index.truncate(relative_offset)
        self.txn_index.truncate(end_offset)
        self._hints.clear()
        self.end_position = position
        self.end_offset = end_offset
        self.is_durable = False
        if position == 0:
            self._first_timestamp_ms = NO_TIMESTAMP
            self._begun_ms = NEVER_MS
        self._set_roll_timestamp()
        self.is_index_full = self._has_full_index()
        self._bytes_since_index = position - self.border_before(position)
        self._reload_max_timestamp()

    def trust_file(self, end_offset: int) -> None:
        """Takes the whole file, unread, for batches up to `end_offset`."""
        self.end_position = self.file().size_bytes()
        self.end_offset = end_offset

    def activate_up_to_last_entry(self) -> None:
        """Makes a cleanly closed segment active again, up to its last index entry.

        Its index files were read before, and end with a whole entry.

        The caller notes the batches from `size_bytes` on. Raises CorruptRecords.
        """
        self.offset_index.resume()
        self.time_index.resume()
        self.take_last_timestamp()
        border = self.end_position = self.border_before(self.size_bytes)
        self.is_active = True
        self.end_offset = self.base_offset
        if border > 0:
            self.end_offset = self._header_at(border).base_offset
            self._first_timestamp_ms = self._header_at(0).max_timestamp_ms
            self.is_index_full = self._has_full_index()
            self._set_roll_timestamp()

    def _reload_max_timestamp(self) -> None:
        """Recomputes the highest timestamp: the last time entry, then the batches behind it."""
        self._max_timestamp_ms, self._max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        last_entry = self.take_last_timestamp()
        position = self.border_before(self.size_bytes)
        if last_entry is not None:
            position = min(position, self._border_of(last_entry.relative_offset))
        for batch in self.scan(position):
            if batch.header.max_timestamp_ms > self._max_timestamp_ms:
                self._max_timestamp_ms = batch.header.max_timestamp_ms
                self._max_timestamp_offset = batch.header.last_offset

    def take_last_timestamp(self) -> TimeEntry | None:
        """Takes the highest timestamp from the last entry of the time index, if there is one."""
        last_entry = self.time_index.last_entry()
        if last_entry is not None:
            self._max_timestamp_ms = last_entry.timestamp_ms
            self._max_timestamp_offset = self.base_offset + last_entry.relative_offset
        return last_entry

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
        limit = BatchPosition(self.end_position, self.end_offset)
        if end_offset is not None and end_offset < limit.base_offset:
            limit = self.locate(end_offset) or limit
        if start.position >= limit.position:
            return LocalRead(None, offset)
        end = limit
        is_cut = start.position + bytes_max < limit.position
        if is_cut:
            end = self._last_border(start, start.position + bytes_max)
            if end.position == start.position:
                if not at_least_one_batch:
                    return LocalRead(None, offset, is_cut)
                end = self._end_of_batch(start)
                if end.position >= limit.position:
                    # Compaction may have left a gap behind it: what follows is the next segment.
                    end = limit
        hints = self._hints
        if len(hints) >= HINTS_MAX:
            hints.clear()
        hints[end.base_offset] = end
        return LocalRead(
            FileRange(
                self._file or self._reopened(), start.position, end.position - start.position
            ),
            end.base_offset,
            is_cut,
        )

    def is_bare(self, found: FileRange) -> bool:
        """Returns whether `found` goes to the end of this segment, and has no record in it.

        Compaction keeps a producer's last batch without its records.
        """
        length = found.length
        if length > BARE_BYTES_MAX or length % HEADER_BYTES:
            return False
        if found.position + length < self.size_bytes:
            return False
        content = found.read()
        return len(content) == length and all(
            content[at + MAGIC_POSITION] == MAGIC and not read_header(content, at).record_count
            for at in range(0, length, HEADER_BYTES)
        )

    def locate(self, offset: int) -> BatchPosition | None:
        """Returns the first batch that ends at or after `offset`; None if there is none (yet).

        Its header was read, or ended an earlier read. Raises CorruptFile.
        """
        if offset >= self.end_offset:
            return None
        if self._look is not None:
            self.open()
        if self.end_position == 0:
            return None
        if offset <= self.base_offset:
            # Once per segment and consumer: bytes that the disk lost must not be sent.
            next(self._walk(0))
            return BatchPosition(0, self.base_offset)
        hint = self._hints.get(offset)
        if hint is not None:
            return hint
        entry = self._offset_index.floor(offset - self.base_offset)
        for batch in self._walk_from(entry, 0):
            if batch.header.last_offset >= offset:
                return BatchPosition(batch.position, batch.header.base_offset)
        return None

    def _last_border(self, start: BatchPosition, position_max: int) -> BatchPosition:
        """Returns the last batch border in [start, position_max]; there is a batch behind it."""
        entry = self._offset_index.floor_by_position(position_max)
        for batch in self._walk_from(entry, start.position):
            if batch.end_position > position_max:
                return BatchPosition(batch.position, batch.header.base_offset)
        raise CorruptFile(f"{self.log_path}: no batch border after position {position_max}")

    def _end_of_batch(self, start: BatchPosition) -> BatchPosition:
        batch = next(self._walk(start.position))
        return BatchPosition(batch.end_position, batch.header.next_offset)

    def _walk_from(self, entry: OffsetEntry | None, position: int) -> Iterator[Batch]:
        """Walks from the batch of an index entry, or from `position` if that is further on.

        An entry that does not fit its batch is damaged; then the walk begins at `position`, which
        is certainly a border, but takes longer. Raises CorruptFile.
        """
        if entry is None or entry.position <= position:
            return self._walk(position)
        walk = self._walk(entry.position)
        try:
            first = next(walk, None)
        except CorruptFile:
            first = None
        if first is None or first.header.last_offset != self.base_offset + entry.relative_offset:
            path = str(self.index_path)
            _quiet_log.say(
                logging.WARNING,
                "index entry does not fit the log",
                path,
                {"path": path, "position": entry.position},
            )
            return self._walk(position)
        return chain((first,), walk)

    def _walk(self, position: int) -> Iterator[Batch]:
        """Steps over batches from a border to the end. Raises CorruptFile."""
        start_offset, end_offset = self.base_offset, self.end_offset
        try:
            for batch in walk_file(
                self._read_at, position, self.end_position, window_bytes=WALK_BYTES
            ):
                header = batch.header
                last_offset = header.base_offset + header.last_offset_delta
                if header.base_offset < start_offset or last_offset >= end_offset:
                    raise CorruptRecords(f"offset {header.base_offset} belongs elsewhere")
                yield batch
                position = batch.end_position
        except CorruptRecords as error:
            raise CorruptFile(
                f"{self.log_path}: no batch begins at position {position}: {error}"
            ) from error

    def _read_at(self, position: int, length: int) -> bytes:
        return (self._file or self._reopened()).read_at(position, length)

    def scan(self, position: int = 0, end: int | None = None) -> Iterator[Batch]:
        """The batches from a border to another, or to the end, with their headers.

        Raises CorruptRecords.
        """
        return walk_file(self.file().read_at, position, self.size_bytes if end is None else end)

    # --- by time -----------------------------------------------------------------------------

    def find_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
        """Returns the first record at or after `timestamp_ms` and at or after `start_offset`.

        May be called from a worker thread. Raises CorruptRecords if a batch does not decompress.
        """
        if self.max_timestamp_ms < timestamp_ms:
            return None
        first = self.locate(start_offset)
        if first is None:
            return None
        for batch in self._walk(max(first.position, self._time_position(timestamp_ms))):
            header = batch.header
            if header.max_timestamp_ms < timestamp_ms:
                continue
            for offset, record_ms in self._times(batch):
                if record_ms >= timestamp_ms and offset >= start_offset:
                    return TimestampOffset(record_ms, offset, header.leader_epoch)
        return None

    def _time_position(self, timestamp_ms: int) -> int:
        """A border before which every record is older than `timestamp_ms`; 0 if none is known."""
        entry = self.time_index.floor(timestamp_ms)
        if entry is None:
            return 0
        batch = self.locate(self.base_offset + entry.relative_offset)
        if batch is None or self._header_at(batch.position).max_timestamp_ms != entry.timestamp_ms:
            path = str(self.time_index_path)
            _quiet_log.say(
                logging.WARNING,
                "time index entry does not fit the log",
                path,
                {"path": path},
            )
            return 0
        return batch.position

    def find_max_timestamp(self, start_offset: int) -> TimestampOffset | None:
        """Of the records at or after `start_offset`, the first that has the highest timestamp."""
        if self.max_timestamp_ms == NO_TIMESTAMP:
            return None
        start = self.locate(self._max_timestamp_offset)
        if start is None:
            return None
        found = self._latest(next(self._walk(start.position)), self.base_offset)
        if found is not None and found.offset >= start_offset:
            return found
        # The record was deleted or compacted, but its batch's header still has its time.
        return self._search_latest(start_offset)

    def _search_latest(self, start_offset: int) -> TimestampOffset | None:
        """Reads all headers, and the records of batches that may have the highest timestamp."""
        first = self.locate(start_offset)
        if first is None:
            return None
        timed = [(batch.header.max_timestamp_ms, batch) for batch in self._walk(first.position)]
        best: TimestampOffset | None = None
        for highest_ms, batch in sorted(timed, key=lambda pair: pair[0], reverse=True):
            if best is not None and highest_ms <= best.timestamp_ms:
                break
            found = self._latest(batch, start_offset)
            if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
                best = found
        return best

    def _latest(self, batch: Batch, start_offset: int) -> TimestampOffset | None:
        times = (found for found in self._times(batch) if found[0] >= start_offset)
        # max() keeps the first of equals. The header's maximum is only what the client wrote.
        latest = max(times, key=lambda found: found[1], default=None)
        if latest is None:
            return None
        offset, timestamp_ms = latest
        return TimestampOffset(timestamp_ms, offset, batch.header.leader_epoch)

    def _times(self, batch: Batch) -> Iterator[tuple[int, int]]:
        content = self.file().read_at(batch.position, batch.end_position - batch.position)
        return iter_times(content, batch.header)

    # --- indexes beside the log --------------------------------------------------------------

    def index_mismatch(self) -> str | None:
        """Why the index files do not match the log; None if they do.

        Checks the last entries only, and their batches. How far the entries are apart says nothing:
        index.interval.bytes and max.message.bytes may have been others when they were written.
        Raises CorruptRecords, CorruptFile.
        """
        last_entry = self.offset_index.last_entry()
        if last_entry is None and self.time_index.entry_count > 1:
            # Both get their entries at the same batches; sealing adds one to the time index.
            return f"{self.index_path.name} is empty"
        border = last_entry.position if last_entry else 0
        if self.size_bytes - border < BATCH_BYTES_MIN:
            return f"{self.index_path.name} points behind the log"
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
            if batch.header.last_offset >= self.base_offset + last_time.relative_offset:
                if batch.header.max_timestamp_ms == last_time.timestamp_ms:
                    return None
                break
        return f"{self.time_index_path.name} is not that of this log"

    def border_before(self, position: int) -> int:
        """The position of the last indexed batch that begins at or before `position`."""
        entry = self.offset_index.floor_by_position(position)
        return entry.position if entry else 0

    def _border_of(self, relative_offset: int) -> int:
        entry = self.offset_index.floor(relative_offset)
        return entry.position if entry else 0

    def _header_at(self, position: int) -> BatchHeader:
        return read_header_at(self._read_at, position)

    def __repr__(self) -> str:
        state = "active" if self.is_active else "durable" if self.is_durable else "sealed"
        size = f"{self.size_bytes} bytes" if self.is_opened else "not opened"
        return (
            f"<LogSegment {self.log_path.name} [{self.base_offset},{self.end_offset}) "
            f"{size} {state}>"
        )


def _sync_if_there(path: Path) -> None:
    try:
        if path.exists():
            files.sync_file(path)
    except DiskError:
        # A segment that was deleted meanwhile needs no sync.
        if path.exists():
            raise

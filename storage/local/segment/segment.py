"""One segment: a run of batches in a file, with its indexes.

    <20-digit base>.log        batches, back to back      the truth
    <20-digit base>.index      sparse offset index        rebuildable
    <20-digit base>.timeindex  sparse time index          rebuildable
    <20-digit base>.txnindex   aborted transactions       rebuildable, only if there are any
    <20-digit end>.snapshot    producers at the end       rebuildable from an older one

Life: active (appended to) -> sealed (index files whole) -> durable (all synced, off the loop).

A start knows a durable segment by its name alone. What else it is asked for, its files say when it
is asked for the first time, and its indexes are looked at then:

    known at once                   base offset, end offset (where the next one begins)
    from the folder, if asked       size
    from the files, if asked        everything else

A durable segment may give up its open file at any time, see open_files.py.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError, StorageError
from strandline.storage.files import OpenFile
from strandline.storage.local.formats.index import LOADED, OffsetIndex, TimeIndex
from strandline.storage.local.formats.segment_names import LOG_SUFFIX, file_name
from strandline.storage.local.segment.open_files import OPEN_SEALED
from strandline.storage.local.segment.segment_reader import SegmentReader
from strandline.storage.model import NO_TIMESTAMP, Buffer

log = logging.getLogger(__name__)

# Indexes hold offsets relative to the base, and positions, as Kafka does: in 31 bits.
RELATIVE_OFFSET_MAX = 2**31 - 1
NEVER_MS = 2**63 - 1

# Held while a segment gets its file or gives it up: two threads that did both halves at once would
# leave one that says it has a file and has none. Opening a file takes 10 us.
_SWITCHING = threading.Lock()
# What a segment that was found by its name takes over from one that was opened.
_FROM_FILES = (
    "size_bytes",
    "created_ms",
    "max_timestamp_ms",
    "max_timestamp_offset",
    "offset_index",
    "time_index",
    "txn_index",
    "is_durable",
    "log",
)


class SegmentEnd(NamedTuple):
    """An active segment as a clean close leaves it, but for its indexes."""

    base_offset: int
    end_offset: int
    size_bytes: int
    created_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    first_timestamp_ms: int
    unindexed_bytes: int


class LogSegment(SegmentReader):
    """Batches [base_offset, end_offset) in one file; appended to by the log that owns it."""

    __slots__ = (
        "__weakref__",
        "_begun_ms",
        "_bytes_since_index",
        "_first_timestamp_ms",
        "_index_interval_bytes",
        "_offset_entries_max",
        "_open",
        "_roll_age_ms",
        "created_ms",
        "entries_max",
        "is_active",
        "is_durable",
        "is_index_full",
        "roll_timestamp_ms",
    )

    def __init__(
        self, directory: Path, base_offset: int, *, log: OpenFile, created_ms: int, active: bool
    ) -> None:
        super().__init__(directory, base_offset, log=log, active=active)
        self.created_ms = created_ms
        self.is_durable = False
        self._open: Callable[[LogSegment], LogSegment] | None = None
        self._begin(active=active)

    def _begin(self, *, active: bool) -> None:
        self.is_active = active
        # An append with a later timestamp than this one closes the segment first.
        self.roll_timestamp_ms = NEVER_MS
        self.entries_max = self._offset_entries_max = RELATIVE_OFFSET_MAX
        self.is_index_full = False
        self._first_timestamp_ms = NO_TIMESTAMP
        # The earliest wall time at which it was seen to have its first record.
        self._begun_ms = NEVER_MS
        self._roll_age_ms = NEVER_MS
        self._index_interval_bytes = 4096
        self._bytes_since_index = 0

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, *, config: LogConfig, now_ms: int
    ) -> LogSegment:
        """A new, empty, active segment; its index files exist from the start.

        Raises DiskError; nothing of it is left then, or the error condemns the folder. The name of
        a segment that was never begun would tell a start that the one before it ends there.
        """
        path = directory / file_name(base_offset, LOG_SUFFIX)
        log = OpenFile(path, writable=True, create=True)
        if log.size_bytes():
            raise DiskError(f"{path} exists and is not empty")
        segment = cls(directory, base_offset, log=log, created_ms=now_ms, active=True)
        try:
            segment.offset_index.create_file()
            segment.time_index.create_file()
        except DiskError:
            for made in (path, segment.index_path, segment.time_index_path):
                files.remove(made)
            raise
        segment.apply_config(config)
        return segment

    @classmethod
    def resumed(cls, directory: Path, end: SegmentEnd, *, log: OpenFile, now_ms: int) -> LogSegment:
        """The active segment of a log that was closed cleanly; its indexes are empty still."""
        created_ms = min(now_ms, end.created_ms)
        segment = cls(directory, end.base_offset, log=log, created_ms=created_ms, active=True)
        segment.end_offset = end.end_offset
        segment.size_bytes = end.size_bytes
        segment.max_timestamp_ms = end.max_timestamp_ms
        segment.max_timestamp_offset = end.max_timestamp_offset
        segment._first_timestamp_ms = end.first_timestamp_ms
        segment._bytes_since_index = end.unindexed_bytes
        return segment

    def resume_indexes(self, config: LogConfig) -> None:
        """Takes over the configuration, after the indexes were filled."""
        self.apply_config(config)
        self.is_index_full = self._has_full_index()

    def end(self) -> SegmentEnd:
        """What `resumed` has to know."""
        return SegmentEnd(
            self.base_offset,
            self.end_offset,
            self.size_bytes,
            self.created_ms,
            self.max_timestamp_ms,
            self.max_timestamp_offset,
            self._first_timestamp_ms,
            self._bytes_since_index,
        )

    # --- files that are opened late, and given up -------------------------------------------

    @property
    def is_opened(self) -> bool:
        """Whether its files were looked at."""
        return self._open is None

    @property
    def has_open_file(self) -> bool:
        return type(self) is LogSegment

    def give_up_file(self) -> None:
        """See OpenSegments. Its readers keep the file until they are done."""
        with _SWITCHING:
            if self.has_open_file:
                # In this order: who looks for the file in between finds that it is to be opened.
                self.__class__ = UnopenedSegment
                del self.log

    def retire(self) -> None:
        """Gets ready for the loss of its names: who reads it now may go on."""
        try:
            _ = self.log
        except StorageError as error:
            log.warning(
                "segment removed that could not be opened",
                extra={"fields": {"path": str(self.log_path), "reason": str(error)}},
            )
        OPEN_SEALED.forget(self)
        self.forget_indexes()

    def close(self) -> None:
        """Closes what is open."""
        OPEN_SEALED.forget(self)
        self.forget_indexes()
        if self.has_open_file:
            self.log.close()

    def forget_indexes(self) -> None:
        """Gives back the memory of its indexes."""
        if self.is_opened:
            LOADED.forget(self.offset_index)
            LOADED.forget(self.time_index)

    # --- appending ---------------------------------------------------------------------------

    def apply_config(self, config: LogConfig) -> None:
        """Takes over index interval, index size and age; the age with a new jitter."""
        age_ms_max = config.segment_age_ms_max
        jitter_ms_max = min(config.segment_jitter_ms, age_ms_max)
        jitter_ms = random.randrange(jitter_ms_max) if jitter_ms_max else 0
        self._roll_age_ms = age_ms_max - jitter_ms
        self._index_interval_bytes = config.index_interval_bytes
        # As Kafka's indexes: time entries are the larger ones, and sealing adds one more of them.
        self.entries_max = max(1, config.segment_index_bytes // TimeIndex.ENTRY_BYTES - 1)
        self._offset_entries_max = max(1, config.segment_index_bytes // OffsetIndex.ENTRY_BYTES)
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
            entry_count = self.offset_index.entry_count
            self.is_index_full = entry_count >= self.entries_max and self._has_full_index()
            self._bytes_since_index = size_bytes
        else:
            self._bytes_since_index += size_bytes
            if position == 0:
                self._first_timestamp_ms = max_timestamp_ms
                self._set_roll_timestamp()
        self.size_bytes = position + size_bytes
        self.end_offset = last_offset + 1

    def _has_full_index(self) -> bool:
        """Whether either index has no room for another entry.

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
        """Whether it is older than segment.ms by the wall clock.

        Counted from its first record where that tells a later time: a segment that was empty for
        long is not closed for the first record that comes. What is said to have begun in a time
        that is still to come has begun by now: the clock was put back, or a producer's is ahead.
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
        OPEN_SEALED.forget(self)
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
            # Not before: the kernel tells a file that is open of a page that it could not write.
            OPEN_SEALED.add(self)

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
            self._begun_ms = NEVER_MS
        self._set_roll_timestamp()
        self.is_index_full = self._has_full_index()
        self._bytes_since_index = position - self._border_before(position)
        self._reload_max_timestamp()

    def activate_up_to_last_entry(self) -> None:
        """Makes a cleanly closed segment active again, up to its last index entry.

        Its index files were read before, and end with a whole entry.

        The caller notes the batches from `size_bytes` on. Raises CorruptRecords.
        """
        self.offset_index.resume()
        self.time_index.resume()
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
            self.is_index_full = self._has_full_index()
            self._set_roll_timestamp()

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

    def __repr__(self) -> str:
        state = "active" if self.is_active else "durable" if self.is_durable else "sealed"
        size = f"{self.size_bytes} bytes" if self.is_opened else "not opened"
        return (
            f"<LogSegment {self.log_path.name} [{self.base_offset},{self.end_offset}) "
            f"{size} {state}>"
        )


class UnopenedSegment(LogSegment):
    """A sealed and synced segment without an open file; it becomes a LogSegment when it is used.

    A class of its own, because the attributes of one with `__getattr__` are slow, and the active
    segment's are asked for with every batch.
    """

    __slots__ = ()

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        end_offset: int,
        open_segment: Callable[[LogSegment], LogSegment],
    ) -> None:
        """Only its name was seen.

        `open_segment` gives the same one opened and looked at, or this one if another thread was
        faster. It is called when something of it is needed, from any thread. Raises DiskError.
        """
        self.directory = directory
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.is_durable = True
        self._hints = {}
        self._open = open_segment
        self._begin(active=False)

    if not TYPE_CHECKING:  # There are no other attributes than the slots.

        def __getattr__(self, name):
            """A slot that is not filled: what belongs there is in the files. Raises DiskError."""
            if name == "size_bytes":
                self.size_bytes = files.size_bytes(self.log_path)
            elif name in _FROM_FILES:
                UnopenedSegment._fill(self)
            else:
                raise AttributeError(name)
            # Once more in the usual way: meanwhile it may have given its file up again.
            return getattr(self, name)

    def open_now(self) -> None:
        """Looks at its files. Raises DiskError."""
        UnopenedSegment._fill(self)

    def _fill(self) -> None:
        open_segment = self._open
        opened = None if open_segment is None else open_segment(self)
        if opened is self:
            return
        with _SWITCHING:
            if self.has_open_file:
                return
            if opened is None:
                # It was opened once and gave its file up.
                self.log = OpenFile(self.log_path, writable=True)
            else:
                for name in _FROM_FILES:
                    setattr(self, name, getattr(opened, name))
                self._open = None
            self.__class__ = LogSegment  # type: ignore[assignment]  # the slots are the same
        if self.is_durable:
            OPEN_SEALED.add(self)


def _sync_if_there(path: Path) -> None:
    try:
        if path.exists():
            files.sync_file(path)
    except DiskError:
        # The segment may have been deleted between the two: then there is nothing to make durable.
        if path.exists():
            raise

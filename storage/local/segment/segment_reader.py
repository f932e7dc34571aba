"""Reading a segment: from an offset, a position or a time to whole batches.

A read is a range of the file that is cut at batch borders. The sparse index brings both ends near;
only the batches between the last index entry and the wanted place are walked, by header:

    index       e0              e1              e2
    log     |b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|b|
                   ^ offset                ^ bytes_max
                e0->walk                e1->walk

Index entries are hints: who uses one compares it with the batch that it names.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import CorruptFile, CorruptRecords
from strandline.storage.files import FileRange, OpenFile
from strandline.storage.local.formats.index import OffsetEntry, OffsetIndex, TimeEntry, TimeIndex
from strandline.storage.local.formats.scan import OLD_MESSAGE_BYTES_MAX, ScannedBatch, scan_batches
from strandline.storage.local.formats.segment_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from strandline.storage.local.formats.txn_index import TxnIndex
from strandline.storage.model import NO_TIMESTAMP, TimestampOffset
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch import old_messages
from strandline.storage.records.batch.any_batch import BATCH_BYTES_MIN, read_header
from strandline.storage.records.batch.batch import (
    BATCH_LENGTH_MIN,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
)
from strandline.storage.records.batch.record_times import iter_times

log = logging.getLogger(__name__)

# Who reads the place before a wrong entry reads it again. One for all segments, of which few
# are wrong.
_quiet_log = QuietLog(log)

# How much of the log one step of a walk reads: a default index interval, so mostly one read.
WALK_BYTES = 4096
# Places that recent reads ended at; a consumer's next fetch begins there. One per consumer helps.
HINTS_MAX = 32
# Last batches of so many producers, without records, are looked at; beyond it they are just sent.
BARE_BYTES_MAX = 64 * HEADER_BYTES

# Base offset, batch length, magic, last offset delta.
_WALK_FIELDS = struct.Struct(">qi4xb6xi")


class LocalRead(NamedTuple):
    """Whole batches as a range of a file; None if nothing is to be read at this offset yet.

    `is_cut` says that the next batch is there and did not fit into the bytes that were allowed.
    """

    range: FileRange | None
    next_offset: int
    is_cut: bool = False


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


class SegmentReader:
    """Batches [base_offset, end_offset) of one file, and the way to them."""

    __slots__ = (
        "_hints",
        "base_offset",
        "directory",
        "end_offset",
        "log",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "offset_index",
        "size_bytes",
        "time_index",
        "txn_index",
    )

    def __init__(self, directory: Path, base_offset: int, *, log: OpenFile, active: bool) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.log = log
        self.size_bytes = 0
        self.max_timestamp_ms = NO_TIMESTAMP
        # The last offset of the batch that holds the highest timestamp.
        self.max_timestamp_offset = base_offset
        # As text: a start makes thousands of them, and a Path takes ten times as long and much.
        stem = f"{directory}/{file_name(base_offset, '')}"
        self.offset_index = OffsetIndex(stem + INDEX_SUFFIX, active=active)
        self.time_index = TimeIndex(stem + TIME_INDEX_SUFFIX, active=active)
        self.txn_index = TxnIndex(stem + TXN_INDEX_SUFFIX)
        self._hints: dict[int, BatchPosition] = {}

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
            FileRange(self.log, start.position, end.position - start.position),
            end.base_offset,
            is_cut,
        )

    def is_bare(self, found: FileRange) -> bool:
        """Whether `found` goes to the end of this segment, and has no record in it.

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
        """The first batch that ends at or after `offset`; None if there is none (yet).

        Its header was read, or ended an earlier read. Raises CorruptFile.
        """
        if offset >= self.end_offset or self.size_bytes == 0:
            return None
        if offset <= self.base_offset:
            # Once per segment and consumer: a disk that lost the beginning would be sent as it is.
            next(self._walk(0))
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
        if entry is not None and entry.position > start.position:
            border = self._border_near(entry, position_max)
            if border is not None:
                return border
        for batch in self._walk_from(entry, start.position):
            if batch.end_position > position_max:
                return BatchPosition(batch.position, batch.base_offset)
        raise CorruptFile(f"{self.log_path}: no batch border after position {position_max}")

    def _border_near(self, entry: OffsetEntry, position_max: int) -> BatchPosition | None:
        """`_last_border`, if one read from the entry on shows it; None if it does not, or if what
        is there is not as it should be.

        Nearly always it does, for half of what the walk costs that would find the same.
        """
        position, size_bytes, end_offset = entry.position, self.size_bytes, self.end_offset
        window = self.log.read_at(position, min(WALK_BYTES, size_bytes - position))
        expected_last_offset: int | None = self.base_offset + entry.relative_offset
        at, last_at = 0, len(window) - _WALK_FIELDS.size
        while at <= last_at:
            base_offset, length, magic, last_delta = _WALK_FIELDS.unpack_from(window, at)
            last_offset = base_offset + last_delta
            end_at = at + length + LOG_OVERHEAD_BYTES
            if (
                magic < MAGIC
                or length < BATCH_LENGTH_MIN
                or position + end_at > size_bytes
                or not self.base_offset <= base_offset <= last_offset < end_offset
                or expected_last_offset not in (None, last_offset)
            ):
                return None
            if position + end_at > position_max:
                return BatchPosition(position + at, base_offset)
            at, expected_last_offset = end_at, None
        return None

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
            path = str(self.index_path)
            _quiet_log.say(
                logging.WARNING,
                "index entry does not fit the log",
                path,
                {"path": path, "position": entry.position},
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
                base_offset, length, magic, last_delta = _WALK_FIELDS.unpack_from(window, at)
                if magic < MAGIC:
                    break
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
                message = self._old_message(position, window)
                yield message
                at = message.end_position - position
            position += at

    def _old_message(self, position: int, window: bytes) -> WalkedBatch:
        """The message of an old format at `position`, where no batch begins. Raises CorruptFile."""
        if not old_messages.is_old(window):
            raise CorruptFile(f"{self.log_path} ends inside a batch header at {position}")
        try:
            header = self._header_at(position)
        except CorruptRecords as error:
            raise CorruptFile(f"{self.log_path}: at position {position}: {error}") from error
        if (
            position + header.size_bytes > self.size_bytes
            or not self.base_offset <= header.base_offset <= header.last_offset < self.end_offset
        ):
            raise CorruptFile(f"{self.log_path}: no message begins at position {position}")
        return WalkedBatch(
            position, header.base_offset, header.last_offset, position + header.size_bytes
        )

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
        start = self.locate(self.max_timestamp_offset)
        if start is None:
            return None
        found = self._latest(next(self._walk(start.position)), self.base_offset)
        if found is not None and found.offset >= start_offset:
            return found
        # That record was deleted, or compaction took it and left its batch's header with its time.
        return self._search_latest(start_offset)

    def _search_latest(self, start_offset: int) -> TimestampOffset | None:
        """Reads all headers, and the records of those batches that come into question."""
        first = self.locate(start_offset)
        if first is None:
            return None
        timed = [
            (self._header_at(b.position).max_timestamp_ms, b) for b in self._walk(first.position)
        ]
        best: TimestampOffset | None = None
        for highest_ms, batch in sorted(timed, key=lambda pair: pair[0], reverse=True):
            if best is not None and highest_ms <= best.timestamp_ms:
                break
            found = self._latest(batch, start_offset)
            if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
                best = found
        return best

    def _latest(self, batch: WalkedBatch, start_offset: int) -> TimestampOffset | None:
        header = self._header_at(batch.position)
        times = (found for found in self._times(batch) if found[0] >= start_offset)
        # max() keeps the first of equals. The header's own maximum is the client's word only.
        latest = max(times, key=lambda found: found[1], default=None)
        if latest is None:
            return None
        offset, timestamp_ms = latest
        return TimestampOffset(timestamp_ms, offset, header.leader_epoch)

    def _times(self, batch: WalkedBatch) -> Iterator[tuple[int, int]]:
        content = self.log.read_at(batch.position, batch.end_position - batch.position)
        return iter_times(content, read_header(content))

    # --- indexes beside the log --------------------------------------------------------------

    def index_mismatch(self, config: LogConfig) -> str | None:
        """What in the index files does not fit the log; None if nothing.

        Looks at the last entries only, and at the batches they name. Raises CorruptRecords,
        CorruptFile.
        """
        last_entry = self.offset_index.last_entry()
        border = last_entry.position if last_entry else 0
        unindexed_bytes = self.size_bytes - border
        if unindexed_bytes < BATCH_BYTES_MIN:
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
        content = self.log.read_at(position, HEADER_BYTES)
        if old_messages.is_old(content):
            size_bytes = old_messages.message_bytes(content)
            if size_bytes > OLD_MESSAGE_BYTES_MAX:
                raise CorruptRecords(f"message of {size_bytes} bytes")
            content = self.log.read_at(position, size_bytes)
        return read_header(content)

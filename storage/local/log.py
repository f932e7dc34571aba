"""The log of one partition on local disk: append, roll, read, find, truncate, flush.

    start_offset                 last_stable_offset    end_offset
        |                                |                 |
        [ s0 sealed ][ s1 sealed ][ s2 active .............]
                          ^ recovery_point: everything before it is synced

Segments are a tuple that is replaced, never changed, so a reader keeps its view while retention
removes a segment; a file lives as long as somebody holds a range of it.

One event loop owns the log and calls everything here; nothing waits but `open`, `flush`, `close`,
`purge_deleted` and the recovery in `truncate_to`. `flush`, `find_timestamp`, `max_timestamp` and
`purge_deleted` may run in a worker thread while the loop appends.

Order of an append:  1 check  2 stamp offset and epoch  3 one write  4 indexes, producers (memory).
Order of a roll:     1 index files and producer snapshot whole, not synced  2 new segment file
                     3 segment list  4 hook.  `flush` syncs all of it later and only then moves the
                     recovery point, so a crash before that rebuilds from the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import crc32c

from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.errors import (
    CorruptRecords,
    DiskError,
    InvalidRecords,
    InvalidTimestamp,
    OffsetOutOfRange,
)
from strandline.storage.local.append_rules import (
    UNUSUAL_BITS,
    AppendInfo,
    AppendOrigin,
    check_not_too_old,
    check_replicated,
    check_unusual,
    misshapen_batch,
    short_batch,
    stamp_append_time,
)
from strandline.storage.local.index import LOADED
from strandline.storage.local.producer_state import (
    TransactionMarker,
)
from strandline.storage.local.recovery import (
    LoadedLog,
    RecoveryReport,
    aborted_entry,
    load_log,
    reload_producers,
)
from strandline.storage.local.segment import (
    RELATIVE_OFFSET_MAX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    LocalRead,
    LogSegment,
    file_name,
)
from strandline.storage.local.segment_list import SegmentList
from strandline.storage.local.trash import Trash
from strandline.storage.log_config import LONG_MAX, LogConfig
from strandline.storage.model import (
    NO_TIMESTAMP,
    AbortedTransaction,
    Buffer,
    EpochStart,
    TimestampOffset,
    TimestampType,
    TopicId,
    TopicPartition,
)
from strandline.storage.records import batch as batch_format

__all__ = ["AppendInfo", "AppendOrigin", "LocalLog", "LocalRead", "LogStatistics"]

log = logging.getLogger(__name__)

_HEADER_BYTES = batch_format.HEADER_BYTES
_LOG_OVERHEAD_BYTES = batch_format.LOG_OVERHEAD_BYTES
_CRC_START = batch_format.CRC_START
_EPOCH_POSITION = batch_format.EPOCH_POSITION
_unpack_header = batch_format.HEADER.unpack_from
_pack_offset = batch_format.OFFSET_FIELD.pack_into
_pack_epoch = batch_format.EPOCH_FIELD.pack_into
_crc32c = crc32c.crc32c

_CLIENT = AppendOrigin.CLIENT
_REPLICATION = AppendOrigin.REPLICATION
_TRANSACTIONAL_BIT = batch_format.TRANSACTIONAL_BIT
_CODEC_LAST = batch_format.CODEC_LAST


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    """A partition's local log at a glance."""

    start_offset: int
    end_offset: int
    last_stable_offset: int
    recovery_point: int
    size_bytes: int
    segment_count: int
    producer_count: int
    open_transaction_count: int
    deleted_file_count: int


class LocalLog:
    """One partition on local disk. Opened by `open`, owned by one event loop."""

    def __init__(
        self,
        directory: Path,
        loaded: LoadedLog,
        *,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        clock: Clock,
    ) -> None:
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.leader_epochs = loaded.leader_epochs
        self.producers = loaded.producers
        self.recovery_report: RecoveryReport = loaded.report
        # Told to producers in AppendInfo. The owner of both tiers moves it.
        self.log_start_offset = loaded.segments[0].base_offset
        self.on_segment_closed: Callable[[LogSegment], None] | None = None
        self.last_flush_ms = clock.now_ms()
        self._clock = clock
        self._failure: DiskError | None = None
        self._trash = Trash()
        self._names_unsynced = True
        # Guards the recovery point against a truncation while a worker thread flushes.
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._recovery_point = 0
        self._end_offset = loaded.end_offset
        self._set_segments(loaded.segments)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        clock: Clock,
        recovery_point: int,
        log_start_offset: int,
        clean_shutdown: bool,
    ) -> LocalLog:
        """Opens the folder, repairing what an unclean stop left; see `recovery_report`.

        `log_start_offset` is where an empty folder begins. If it lies behind all that is here, the
        folder is emptied: everything in it was deleted already. Raises DiskError.
        """
        loaded = load_log(
            directory,
            config=config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean_shutdown=clean_shutdown,
            now_ms=clock.now_ms(),
        )
        opened = cls(
            directory,
            loaded,
            topic_partition=topic_partition,
            topic_id=topic_id,
            config=config,
            clock=clock,
        )
        if log_start_offset > opened.end_offset:
            opened.reset_to(log_start_offset)
        opened.log_start_offset = max(log_start_offset, opened.start_offset)
        checked_point = opened.end_offset if clean_shutdown else recovery_point
        opened._recovery_point = min(checked_point, opened.end_offset)
        if loaded.report.problems:
            opened._recovery_point = min(recovery_point, opened.end_offset)
        return opened

    # --- where things are ----------------------------------------------------------------------

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        return self._list.segments

    @property
    def active_segment(self) -> LogSegment:
        return self._active

    @property
    def start_offset(self) -> int:
        """The first local offset."""
        return self._list.start_offset

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the end."""
        first_open = self.producers.first_open_offset
        return self._end_offset if first_open is None else first_open

    @property
    def recovery_point(self) -> int:
        return self._recovery_point

    @property
    def size_bytes(self) -> int:
        return self._list.sealed_bytes + self._active.size_bytes

    @property
    def unflushed_record_count(self) -> int:
        return self._end_offset - self._recovery_point

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms ask for a `flush`, which is the caller's to run."""
        unflushed = self._end_offset - self._recovery_point
        if unflushed <= 0:
            return False
        if unflushed >= self.config.flush_messages:
            return True
        return now_ms - self.last_flush_ms >= self.config.flush_ms

    def statistics(self) -> LogStatistics:
        return LogStatistics(
            start_offset=self.start_offset,
            end_offset=self._end_offset,
            last_stable_offset=self.last_stable_offset,
            recovery_point=self._recovery_point,
            size_bytes=self.size_bytes,
            segment_count=len(self._list.segments),
            producer_count=len(self.producers.entries),
            open_transaction_count=self.producers.open_transaction_count,
            deleted_file_count=len(self._trash),
        )

    def update_config(self, config: LogConfig) -> None:
        """Takes over a changed topic configuration, for the active segment too."""
        self.config = config
        self._active.apply_config(config)

    def _set_segments(self, segments: Sequence[LogSegment]) -> None:
        self._list = SegmentList(segments)
        self._active = self._list.active

    # --- append ----------------------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Appends one batch (any number of them for REPLICATION, which keeps their offsets).

        `records` must be writable and is stamped in place. Raises CorruptRecords, InvalidRecords,
        InvalidTimestamp, UnsupportedCodec, MessageTooLarge, RecordListTooLarge, and for producers
        OutOfOrderSequence, InvalidProducerEpoch, InvalidTransactionState: nothing has changed then.
        Raises DiskError: the batch is not in the log, and if the file could not be put right the
        log refuses everything that follows.
        """
        # The hot path. It is one long function because a batch of 16 KiB has 15 us in all, of which
        # the write takes most, and each call costs a hundredth of that.
        if self._failure is not None:
            raise self._stopped()
        if origin is _REPLICATION:
            return self._append_replicated(records)
        size_bytes = len(records)
        if size_bytes < _HEADER_BYTES:
            raise short_batch(records)
        (
            _,
            batch_length,
            _,
            magic,
            crc,
            attributes,
            offset_delta,
            _,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = _unpack_header(records)
        config = self.config
        if (
            size_bytes > config.max_message_bytes
            or magic != 2
            or batch_length + _LOG_OVERHEAD_BYTES != size_bytes
            or size_bytes > config.segment_bytes
        ):
            raise misshapen_batch(size_bytes, magic, batch_length, config)
        if _crc32c(records[_CRC_START:]) != crc:
            raise CorruptRecords(f"{self.topic_partition}: CRC of the batch is wrong")
        if record_count < 1 or offset_delta + 1 != record_count:
            raise InvalidRecords(
                f"batch of {record_count} records has a last offset delta of {offset_delta}"
            )
        marker = None
        if attributes & UNUSUAL_BITS > _CODEC_LAST:
            marker = check_unusual(records, attributes, origin, self.producers)
        is_transactional = attributes & _TRANSACTIONAL_BIT != 0
        if producer_id >= 0 and marker is None:
            entry = self.producers.entries.get(producer_id)
            if (
                entry is None
                or base_sequence != entry.next_sequence
                or producer_epoch != entry.epoch
                or (not is_transactional and entry.transaction_first_offset >= 0)
            ):
                duplicate = self.producers.check(
                    producer_id,
                    producer_epoch,
                    base_sequence,
                    (base_sequence + offset_delta) & 0x7FFFFFFF,
                    is_transactional=is_transactional,
                )
                if duplicate is not None:
                    return self._answer_duplicate(
                        duplicate.base_offset, duplicate.last_offset, duplicate.timestamp_ms
                    )
        elif is_transactional and marker is None:
            raise InvalidRecords("transactional batch without a producer id")
        now_ms = self._clock.now_ms()
        log_append_time_ms = NO_TIMESTAMP
        if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            max_timestamp_ms = log_append_time_ms = now_ms
        elif max_timestamp_ms - now_ms > config.message_timestamp_after_max_ms:
            raise InvalidTimestamp(
                f"timestamp {max_timestamp_ms} is more than "
                f"{config.message_timestamp_after_max_ms} ms after {now_ms}"
            )
        elif config.message_timestamp_before_max_ms != LONG_MAX:
            check_not_too_old(records, now_ms, config.message_timestamp_before_max_ms)

        base_offset = self._end_offset
        last_offset = base_offset + offset_delta
        segment = self._active
        if (
            segment.size_bytes + size_bytes > config.segment_bytes
            or max_timestamp_ms > segment.roll_timestamp_ms
            or segment.is_index_full
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        ):
            self.roll()
            segment = self._active
        if log_append_time_ms >= 0:
            stamp_append_time(records, attributes, now_ms)
        _pack_offset(records, 0, base_offset)
        _pack_epoch(records, _EPOCH_POSITION, leader_epoch)
        if leader_epoch > self.leader_epochs.latest_epoch:
            self.leader_epochs.assign(leader_epoch, base_offset)
        try:
            segment.append(records, last_offset, max_timestamp_ms)
        except DiskError as error:
            self._note_failed_write(segment, error)
            raise
        self._end_offset = last_offset + 1
        if producer_id >= 0:
            if marker is None:
                self.producers.record_batch(
                    producer_id,
                    producer_epoch,
                    base_sequence,
                    last_offset,
                    offset_delta,
                    max_timestamp_ms,
                    is_transactional,
                )
            else:
                self._end_transaction(
                    segment, producer_id, producer_epoch, marker, last_offset, max_timestamp_ms
                )
        return AppendInfo(
            base_offset,
            last_offset,
            max_timestamp_ms,
            log_append_time_ms,
            self.log_start_offset,
            False,
            size_bytes,
        )

    def _answer_duplicate(
        self, base_offset: int, last_offset: int, timestamp_ms: int
    ) -> AppendInfo:
        is_append_time = self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        return AppendInfo(
            base_offset,
            last_offset,
            timestamp_ms,
            timestamp_ms if is_append_time else NO_TIMESTAMP,
            self.log_start_offset,
            True,
            0,
        )

    def _end_transaction(
        self,
        segment: LogSegment,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        offset: int,
        timestamp_ms: int,
    ) -> None:
        completed = self.producers.record_marker(
            producer_id, producer_epoch, marker, offset, timestamp_ms
        )
        if completed is not None and completed.aborted:
            segment.txn_index.append(aborted_entry(completed, self.producers.first_open_offset))

    def _append_replicated(self, records: memoryview) -> AppendInfo:
        """Appends what another broker has stored, with its offsets and epochs."""
        batches = check_replicated(records, self._end_offset)
        for position, header, marker in batches:
            segment = self._active
            if (
                segment.size_bytes + header.size_bytes > self.config.segment_bytes
                or header.max_timestamp_ms > segment.roll_timestamp_ms
                or segment.is_index_full
                or header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            ):
                self._end_offset = header.base_offset
                self.roll()
                segment = self._active
            if header.leader_epoch > self.leader_epochs.latest_epoch:
                self.leader_epochs.assign(header.leader_epoch, header.base_offset)
            try:
                segment.append(
                    records[position : position + header.size_bytes],
                    header.last_offset,
                    header.max_timestamp_ms,
                )
            except DiskError as error:
                self._note_failed_write(segment, error)
                raise
            self._end_offset = header.next_offset
            completed = self.producers.replay(header, marker)
            if completed is not None and completed.aborted:
                segment.txn_index.append(aborted_entry(completed, self.producers.first_open_offset))
        first, last = batches[0].header, batches[-1].header
        return AppendInfo(
            first.base_offset,
            last.last_offset,
            max(batch.header.max_timestamp_ms for batch in batches),
            NO_TIMESTAMP,
            self.log_start_offset,
            False,
            len(records),
        )

    def _note_failed_write(self, segment: LogSegment, error: DiskError) -> None:
        """Stops the log if the file holds half a batch that could not be taken back."""
        try:
            is_torn = segment.is_torn
        except OSError:
            is_torn = True
        if is_torn:
            self._failure = error
        log.error(
            "append failed",
            extra={
                "fields": {
                    "partition": str(self.topic_partition),
                    "reason": str(error),
                    "stopped": is_torn,
                }
            },
        )

    def _stopped(self) -> DiskError:
        return DiskError(f"{self.topic_partition} is stopped: {self._failure}")

    # --- segments --------------------------------------------------------------------------------

    def roll(self) -> LogSegment:
        """Closes the active segment and begins a new one; an empty one is kept. Raises DiskError.

        Does not sync: the closed segment is durable after the next `flush`.
        """
        if self._failure is not None:
            raise self._stopped()
        closed = self._active
        if closed.size_bytes == 0 and closed.base_offset == self._end_offset:
            return closed
        closed.end_offset = self._end_offset
        closed.write_indexes()
        self._write_snapshot(sync=False)
        opened = LogSegment.create(
            self.directory, self._end_offset, config=self.config, now_ms=self._clock.now_ms()
        )
        # Only now, so that a full disk leaves the log as it was, with its active segment.
        closed.seal()
        self._names_unsynced = True
        self._set_segments([*self._list.segments, opened])
        if self.on_segment_closed is not None:
            self.on_segment_closed(closed)
        return opened

    def roll_if_expired(self, now_ms: int) -> bool:
        """Rolls an active segment that is older than segment.ms by the clock, written to or not."""
        if self._active.size_bytes == 0 or not self._active.outlives(now_ms):
            return False
        self.roll()
        return True

    def _write_snapshot(self, *, sync: bool) -> None:
        path = self.directory / file_name(self._end_offset, SNAPSHOT_SUFFIX)
        files.write_atomically(path, self.producers.encode_snapshot(), sync=sync)

    def flush(self) -> None:
        """Syncs everything up to the end and moves the recovery point. Blocks; thread-safe.

        Raises DiskError: the recovery point stays, and the log takes no more appends.
        """
        with self._flush_lock:
            # The end is read first: what is appended meanwhile may be synced but is not counted.
            end_offset, recovery_point = self._end_offset, self._recovery_point
            names_unsynced, self._names_unsynced = self._names_unsynced, False
            try:
                for segment in self._list.segments:
                    is_behind = segment.end_offset > recovery_point
                    if is_behind or not (segment.is_active or segment.is_durable):
                        segment.sync()
                if names_unsynced:
                    files.sync_directory(self.directory)
            except DiskError as error:
                self._names_unsynced = True
                # The kernel may have dropped the pages that it could not write and will call the
                # next fsync a success, so nothing more may be acknowledged until a restart has
                # looked at what is really there.
                self._failure = error
                raise
            with self._lock:
                # A truncation may have come in between.
                reached = min(end_offset, self._end_offset)
                self._recovery_point = max(self._recovery_point, reached)
            self.last_flush_ms = self._clock.now_ms()

    def delete_segments(self, segments: Sequence[LogSegment]) -> None:
        """Takes the oldest segments off the log; their files go after file.delete.delay.ms.

        They must be the first ones, in order, without the active one.
        """
        count = len(segments)
        assert tuple(segments) == self._list.segments[:count], (segments, self._list.segments)
        assert count < len(self._list.segments), "the active segment stays"
        self._set_segments(self._list.segments[count:])
        # The oldest first: a crash in between leaves a log without a hole.
        for segment in segments:
            self._discard(segment)

    def _discard(self, segment: LogSegment) -> None:
        """Renames the files of a segment that is off the list, to be unlinked later."""
        LOADED.forget(segment.offset_index)
        LOADED.forget(segment.time_index)
        names = [file_name(segment.base_offset, suffix) for suffix in SEGMENT_SUFFIXES]
        names.append(file_name(segment.base_offset, SNAPSHOT_SUFFIX))
        unlink_at_ms = self._clock.now_ms() + self.config.file_delete_delay_ms
        for name in names:
            self._trash.put(self.directory / name, unlink_at_ms=unlink_at_ms)

    def purge_deleted(self, now_ms: int) -> int:
        """Unlinks files whose delay is over; how many. Blocks for large files; thread-safe."""
        return self._trash.purge(now_ms)

    def truncate_to(self, offset: int) -> None:
        """Drops every batch that ends at or after `offset`.

        Batches [0,9][10,19][20,29]: `truncate_to(20)` leaves two, `truncate_to(15)` leaves one.
        Raises OffsetOutOfRange below the local start. Reads batches again for the producers, so it
        may take a while.
        """
        if offset >= self._end_offset:
            return
        if offset < self.start_offset:
            raise OffsetOutOfRange(f"cannot truncate to {offset}, begins at {self.start_offset}")
        kept = [segment for segment in self._list.segments if segment.base_offset <= offset]
        removed = self._list.segments[len(kept) :]
        active = kept[-1]
        start = active.locate(offset)
        assert start is not None, (offset, active)
        for segment in reversed(removed):
            self._discard(segment)
        active.truncate(start.position, start.base_offset)
        with self._lock:
            self._end_offset = start.base_offset
            self._recovery_point = min(self._recovery_point, self._end_offset)
        self.leader_epochs.truncate_from_end(self._end_offset)
        active.reactivate(self.config)
        self._names_unsynced = True
        self._set_segments(kept)
        self.producers = reload_producers(self.directory, kept, self._end_offset)

    def reset_to(
        self,
        offset: int,
        *,
        producer_snapshot: Buffer | None = None,
        leader_epochs: Sequence[EpochStart] = (),
    ) -> None:
        """Empties the log and begins it anew at `offset`, as a replica does that takes over a tier.

        Producers and lineage are those given, as they were at `offset`.
        """
        old = self._list.segments
        for segment in reversed(old):
            self._discard(segment)
        fresh = LogSegment.create(
            self.directory, offset, config=self.config, now_ms=self._clock.now_ms()
        )
        with self._lock:
            self._end_offset = self._recovery_point = offset
        self._names_unsynced = True
        self._set_segments([fresh])
        self.log_start_offset = offset
        self.leader_epochs.replace(leader_epochs)
        self.producers.clear()
        if producer_snapshot is not None:
            self.producers.load_snapshot(producer_snapshot)
        self._failure = None
        self._write_snapshot(sync=False)

    def close(self) -> None:
        """Flushes, writes a snapshot for a short next start, and closes the files. Blocks.

        Raises DiskError: the files are closed, and the next start must not count as clean.
        """
        try:
            if self._failure is not None:
                raise self._stopped()
            self._active.write_indexes()
            self._write_snapshot(sync=True)
            self.leader_epochs.write(sync=True)
            self.flush()
            self._active.sync_indexes()
        finally:
            for segment in self._list.segments:
                LOADED.forget(segment.offset_index)
                LOADED.forget(segment.time_index)
                segment.log.close()

    # --- read ------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        *,
        bytes_max: int,
        end_offset: int | None = None,
        at_least_one_batch: bool = True,
    ) -> LocalRead:
        """Whole batches from the one that holds `offset`, of one segment, before `end_offset`.

        Raises OffsetOutOfRange outside [start_offset, end_offset], CorruptFile, DiskError.
        """
        segments = self._list
        if not segments.start_offset <= offset <= self._end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: offset {offset} is outside "
                f"[{self.start_offset}, {self._end_offset}]"
            )
        for segment in segments.from_offset(offset):
            found = segment.read_range(
                offset,
                bytes_max=bytes_max,
                end_offset=end_offset,
                at_least_one_batch=at_least_one_batch,
            )
            if found is not None:
                return found
        return LocalRead(None, offset)

    def find_timestamp(
        self, timestamp_ms: int, *, start_offset: int | None = None
    ) -> TimestampOffset | None:
        """The first record at or after `timestamp_ms`, and at or after `start_offset` if given.

        Exact to the record: decompresses a batch, so large ones belong in a worker thread.
        """
        segments = self._list
        first_offset = segments.start_offset if start_offset is None else start_offset
        return segments.find_timestamp(timestamp_ms, first_offset)

    def max_timestamp(self) -> TimestampOffset | None:
        """The first record with the highest timestamp of the log; None without timestamps."""
        return self._list.find_max_timestamp()

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that have records in [start_offset, end_offset)."""
        return self._list.aborted_transactions(start_offset, end_offset)

    def __repr__(self) -> str:
        return (
            f"<LocalLog {self.topic_partition} [{self.start_offset},{self._end_offset}) "
            f"{len(self._list.segments)} segments, {self.size_bytes} bytes, "
            f"recovery point {self._recovery_point}>"
        )

"""The log of one partition on local disk: append, roll, read, find, truncate, flush.

    start_offset         last_stable_offset  high_watermark  end_offset
        |                         |                |             |
        [ s0 sealed ][ s1 sealed ][ s2 active ...................]
                          ^ recovery_point: everything before it is synced

Records below the high watermark are on all in-sync replicas: the log's owner moves it, for only the
owner knows the others. What consumers, the archive or a deletion get ends there or earlier.

`SegmentList` has the segments and their files. A reader keeps its view of them while retention
removes a segment; a file stays open while a reader holds a range of it.

One event loop owns the log and calls all methods. Only `open`, `flush`, `close`, `purge_deleted`,
`lower_recovery_point` and the recovery in `truncate_to` block. `flush`, `find_timestamp`,
`max_timestamp`, `purge_deleted` and `lower_recovery_point` may run in a worker thread while the
loop appends.

Order of an append:  1 check  2 stamp offset and epoch  3 one write  4 indexes, producers (memory).
Order of a roll:     1 index files and producer snapshot whole, not synced  2 new segment file
                     3 segment list  4 hook.  `flush` syncs it later, segment by segment, and only
                     then moves the recovery point, so a crash before that rebuilds from the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    DiskError,
    InvalidRecords,
    InvalidTimestamp,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageError,
)
from strandline.storage.files import OpenFile
from strandline.storage.local.formats.names import SNAPSHOT_SUFFIX, file_name
from strandline.storage.local.formats.producer_state import (
    AppendedBatch,
    CompletedTransaction,
    InvalidTransactionState,
)
from strandline.storage.local.log.append_rules import (
    UNUSUAL_BITS,
    AppendInfo,
    AppendOrigin,
    check_records,
    check_replicated,
    check_unusual,
    marker_of,
    misshapen_batch,
    short_batch,
    stamp_append_time,
)
from strandline.storage.local.log.recovery import LoadedLog, aborted_entry, load_log
from strandline.storage.local.log.recovery_point import RecoveryPoint
from strandline.storage.local.segment.cleaned_segment import CleanedFacts
from strandline.storage.local.segment.earlier_batches import (
    reaches_earlier_batches,
    read_earlier_batches,
)
from strandline.storage.local.segment.producer_snapshots import reload_producers
from strandline.storage.local.segment.recovery_report import RecoveryReport
from strandline.storage.local.segment.segment import RELATIVE_OFFSET_MAX, LocalRead, LogSegment
from strandline.storage.local.segment.segment_list import SegmentList
from strandline.storage.model import (
    NO_TIMESTAMP,
    AbortedTransaction,
    Buffer,
    EpochStart,
    Isolation,
    Offset,
    TimestampOffset,
    TimestampType,
    TopicId,
    TopicPartition,
)
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import Batch
from strandline.storage.system import crc32c

__all__ = ["AppendInfo", "AppendOrigin", "LocalLog", "LocalRead"]

log = logging.getLogger(__name__)

# Producers retry several times a second while a disk is full. One limit for all logs, of which
# few fail.
_failures = QuietLog(log)

# Segments without records that one read skips: each costs a read of its file.
BARE_SEGMENTS_MAX = 64

_HEADER_BYTES = batch_format.HEADER_BYTES
_LOG_OVERHEAD_BYTES = batch_format.LOG_OVERHEAD_BYTES
_CRC_START = batch_format.CRC_START
_EPOCH_POSITION = batch_format.EPOCH_POSITION
_unpack_header = batch_format.HEADER.unpack_from
_pack_offset = batch_format.OFFSET_FIELD.pack_into
_pack_epoch = batch_format.EPOCH_FIELD.pack_into
_crc32c = crc32c.crc32c

_CLIENT = AppendOrigin.CLIENT
_COORDINATOR = AppendOrigin.COORDINATOR
_REPLICATION = AppendOrigin.REPLICATION
_TRANSACTIONAL_BIT = batch_format.TRANSACTIONAL_BIT
_CODEC_LAST = batch_format.CODEC_LAST


class LocalLog:
    """The log of one partition on local disk, owned by one event loop. `open` opens it."""

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
        # Sent to producers in AppendInfo. The owner of both tiers moves it.
        self.log_start_offset = loaded.segments[0].base_offset
        # Compacted below this offset; None if never. Kept by LogDirs, moved by the cleaner.
        self.cleaned_offset: int | None = None
        # Makes it durable that the log is compacted only up to an offset. Blocks; raises DiskError.
        self.on_cleaning_undone: Callable[[int], None] | None = None
        # Makes the lowered recovery point durable. Blocks; raises DiskError.
        self.on_cut: Callable[[], None] | None = None
        # Called when a write found no room.
        self.on_full: Callable[[], None] | None = None
        # Records below this offset are archived, and their local segments no longer change;
        # None: not known yet. The owner of both tiers supplies it.
        self.archived_below: Callable[[], int | None] = lambda: 0
        self.on_segment_closed: Callable[[LogSegment], None] | None = None
        # Called when this log can no longer trust its disk; may be called in a worker thread.
        self.on_failure: Callable[[DiskError], None] | None = None
        self.clock = clock
        self._last_flush_s = clock.monotonic_s()
        self._segments = SegmentList(directory, loaded.segments, config=config, clock=clock)
        # The error that stopped this log; None while it works.
        self.failure: DiskError | None = None
        self._names_unsynced = True
        self._flush_turn = threading.Condition()
        self._is_flushing = False
        self._recovery_point = RecoveryPoint()
        self._end_offset = loaded.end_offset
        # Moved by `advance_high_watermark`; a cut takes it along.
        self.high_watermark: Offset = loaded.segments[0].base_offset
        # Records from here on were appended since the log was opened.
        self.opened_end_offset: Offset = loaded.end_offset
        # Whether the markers of transactions may be lost that are open below `opened_end_offset`.
        self.may_lack_markers = not loaded.report.clean_shutdown
        # The row of the last clean stop, if the next one may write it again.
        self._as_resumed = self._state() if loaded.report.was_resumed else None

    # --- offsets and sizes ---------------------------------------------------------------------

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        return self._segments.segments

    @property
    def active_segment(self) -> LogSegment:
        return self._segments.active

    @property
    def start_offset(self) -> int:
        """The first local offset."""
        return self._segments.start_offset

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def is_being_copied(self) -> bool:
        """Whether closed segments are copied to the archive."""
        return self.config.remote_storage_enable and not self.config.remote_log_copy_disable

    @property
    def has_gaps(self) -> bool:
        """Whether offsets may be missing, because the log is or was compacted."""
        return self.config.is_compacted or self.cleaned_offset is not None

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an undecided transaction, or the high watermark if that is lower.

        Never below the log start: deleted records of a transaction hold no reader back.
        """
        undecided = self.producers.first_undecided_offset
        if undecided is None:
            return self.high_watermark
        return min(self.high_watermark, max(undecided, self.log_start_offset))

    def readable_end(self, isolation: Isolation) -> int:
        """Returns the offset before which a read of that isolation ends."""
        if isolation is Isolation.READ_UNCOMMITTED:
            return self.high_watermark
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self._end_offset

    def advance_high_watermark(self, offset: Offset) -> None:
        """Moves the high watermark up to `offset`, at most the end; it never goes back."""
        assert offset <= self._end_offset, (offset, self)
        if offset > self.high_watermark:
            self.high_watermark = offset
            if self.producers.unreplicated:
                self.producers.replicated_up_to(offset)

    @property
    def recovery_point(self) -> int:
        return self._recovery_point.offset

    @property
    def cut_count(self) -> int:
        """Grows with every truncation of the end: a running copy may hold records that are cut."""
        return self._recovery_point.cut_count

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def unflushed_record_count(self) -> int:
        return self._end_offset - self.recovery_point

    def flush_is_due(self, now_s: float) -> bool:
        """Returns whether flush.messages or flush.ms require a `flush`, which the caller runs.

        By monotonic time: a wall clock that is set back delays no flush.
        """
        unflushed_count = self.unflushed_record_count
        if unflushed_count <= 0:
            return False
        if unflushed_count >= self.config.flush_messages:
            return True
        return (now_s - self._last_flush_s) * 1000 >= self.config.flush_ms

    def update_config(self, config: LogConfig) -> None:
        """Takes over a changed topic configuration, for the active segment too."""
        self.config = config
        self._segments.update_config(config)

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
        was_compacted: bool = False,
        loaded: LoadedLog | None = None,
    ) -> LocalLog:
        """Opens the folder, repairing it after an unclean stop; see `recovery_report`.

        An empty folder begins at `log_start_offset`. If that is after the log's end, the folder is
        emptied: all its records were deleted already. `loaded` is what nothing has to be
        read of: a new log, or that of the row of its clean stop if its files are unchanged since.
        Raises DiskError.
        """
        loaded = loaded or load_log(
            directory,
            config=config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean_shutdown=clean_shutdown,
            now_ms=clock.now_ms(),
            was_compacted=was_compacted,
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
        opened.advance_high_watermark(opened.log_start_offset)
        is_whole = clean_shutdown and not loaded.report.problems
        synced_end = opened.end_offset if is_whole else recovery_point
        opened._recovery_point.offset = min(synced_end, opened.end_offset)
        return opened

    def drop_callbacks(self) -> None:
        """Drops all callbacks: their cycle of references keeps deleted files open until a GC.

        On a quiet broker that may take hours.
        """
        self.on_failure = self.on_cleaning_undone = self.on_cut = self.on_segment_closed = None
        self.on_full = None
        self.archived_below = lambda: None

    def stop(self, error: DiskError) -> None:
        """Refuses all later operations; `error` is the reason. Thread-safe."""
        if self.failure is None:
            self.failure = error

    def abandon(self) -> None:
        """Frees the indexes of a stopped log, which is opened again in its place."""
        assert self.failure is not None, self
        for segment in self.segments:
            segment.forget_indexes()

    def _stopped(self) -> DiskError:
        return DiskError(f"{self.topic_partition} is stopped: {self.failure}")

    def _fail(self, error: DiskError) -> None:
        """Stops for good, and notifies the owner of the folder."""
        self.stop(error)
        if self.on_failure is not None:
            self.on_failure(error)

    # --- append ----------------------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        records_checked: bool = False,
    ) -> AppendInfo:
        """Appends one batch (any number of them for REPLICATION, which keeps their offsets).

        `records` must be writable and is stamped in place. With `records_checked`, the checks of
        single records that the topic's configuration requires are done (see preparation.py).

        Raises CorruptRecords, InvalidRecords, InvalidTimestamp, UnsupportedCodec, MessageTooLarge,
        RecordListTooLarge, and for producers OutOfOrderSequence, InvalidProducerEpoch,
        InvalidTransactionState: nothing has changed then.
        Raises DiskError: the batch is not in the log, and if the file could not be restored, or
        memory ran out, the log refuses all later appends.
        """
        # The hot path. It is one long function because an append of 16 KiB takes 15 us, most of it
        # for the write, and each call costs a hundredth of that.
        if self.failure is not None:
            raise self._stopped()
        if origin is _REPLICATION:
            return self._append_replicated(records)

        # 1 Check: the batch, then its producer's sequence, then the topic's settings.
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
        if producer_id >= 0 and marker is None and origin is not _COORDINATOR:
            entry = self.producers.entries.get(producer_id)
            if (
                entry is None
                or base_sequence != entry.next_sequence
                or producer_epoch != entry.epoch
                or (not is_transactional and entry.transaction_first_offset >= 0)
            ):
                duplicate = self._duplicate_of(
                    partial(
                        self.producers.check,
                        producer_id,
                        producer_epoch,
                        base_sequence,
                        (base_sequence + offset_delta) & 0x7FFFFFFF,
                        is_transactional=is_transactional,
                    )
                )
                if duplicate is not None:
                    return self._answer_duplicate(
                        duplicate.base_offset, duplicate.last_offset, duplicate.timestamp_ms
                    )
            if (
                is_transactional
                and origin is _CLIENT
                and (entry is None or not entry.has_open_transaction(producer_epoch))
            ):
                raise InvalidTransactionState("the batch is not part of an open transaction")
        elif is_transactional and marker is None:
            if producer_id < 0:
                raise InvalidRecords("transactional batch without a producer id")
            self.producers.check_coordinated(producer_id, producer_epoch)
        now_ms = self.clock.now_ms()
        log_append_time_ms = NO_TIMESTAMP
        if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            max_timestamp_ms = log_append_time_ms = now_ms
        elif max_timestamp_ms - now_ms > config.message_timestamp_after_max_ms:
            raise InvalidTimestamp(
                f"timestamp {max_timestamp_ms} is more than "
                f"{config.message_timestamp_after_max_ms} ms after {now_ms}"
            )
        if (
            not (records_checked or config.stores_as_sent)
            and origin is not _COORDINATOR
            and config.needs_records
        ):
            check_records(records, config, now_ms)

        # 2 Stamp, for the segment that has room. A roll that fails leaves the log as it was.
        base_offset = self._end_offset
        last_offset = base_offset + offset_delta
        segment = self._segments.active
        if (
            segment.end_position + size_bytes > config.segment_bytes
            or max_timestamp_ms > segment.roll_timestamp_ms
            or segment.is_index_full
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        ):
            self.roll()
            segment = self._segments.active
        if log_append_time_ms >= 0:
            stamp_append_time(records, attributes, now_ms)
        _pack_offset(records, 0, base_offset)
        _pack_epoch(records, _EPOCH_POSITION, leader_epoch)
        if leader_epoch > self.leader_epochs.latest_epoch:
            self.leader_epochs.assign(leader_epoch, base_offset)

        # 3 One write.  4 Indexes (by the segment), the end of the log, the producer: in memory.
        try:
            segment.append(records, last_offset, max_timestamp_ms)
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
                    completed = self.producers.record_marker(
                        producer_id, producer_epoch, marker, last_offset, max_timestamp_ms
                    )
                    self._index_aborted(segment, completed)
        except DiskError as error:
            self._note_failed_write(segment, error, base_offset)
            raise
        except MemoryError as error:
            raise self._half_appended() from error
        return AppendInfo(
            base_offset,
            last_offset,
            max_timestamp_ms,
            log_append_time_ms,
            self.log_start_offset,
            False,
            size_bytes,
        )

    def _duplicate_of(self, check: Callable[[], AppendedBatch | None]) -> AppendedBatch | None:
        """What `ProducerState.check` says: after a load it may not know each batch in flight."""
        try:
            return check()
        except OutOfOrderSequence:
            if not read_earlier_batches(self.producers, self.segments):
                raise
        return check()

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

    def _index_aborted(self, segment: LogSegment, completed: CompletedTransaction | None) -> None:
        if completed is not None and completed.aborted:
            segment.txn_index.append(aborted_entry(completed, self.producers.first_open_offset))
            # The file may be new.
            self._names_unsynced = True

    def append_as_follower(self, records: memoryview, *, leader_epoch: int) -> AppendInfo | None:
        """Appends what a leader answered under `leader_epoch`; None if no batch of it is to stay.

        Raises as `append` does for REPLICATION.
        """
        if self.failure is not None:
            raise self._stopped()
        batches = check_replicated(records, self._end_offset, leader_epoch=leader_epoch)
        return self._append_stored(records, batches) if batches else None

    def _append_replicated(self, records: memoryview) -> AppendInfo:
        """Appends batches of another broker with their offsets and epochs."""
        return self._append_stored(records, check_replicated(records, self._end_offset))

    def _append_stored(self, records: memoryview, batches: Sequence[Batch]) -> AppendInfo:
        """Steps 2 to 4 of `append`, for batches that are stamped and checked already.

        Those that one segment takes are written at once.
        """
        segment_bytes = self.config.segment_bytes
        segment = self._segments.active
        # The run that is to be written: its batches, and its bytes at most.
        run: list[Batch] = []
        position, bytes_max = segment.end_position, segment.run_bytes_max
        for batch in batches:
            header = batch.header
            position += header.size_bytes
            needs_roll = (
                position > segment_bytes
                or header.max_timestamp_ms > segment.roll_timestamp_ms
                or segment.is_index_full
                or header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            )
            if run and (
                needs_roll
                or segment.end_position == 0
                or batch.end_position - run[0].position > bytes_max
            ):
                self._write_run(segment, records, run)
                run, bytes_max = [], segment.run_bytes_max
                needs_roll |= segment.is_index_full or (
                    header.max_timestamp_ms > segment.roll_timestamp_ms
                )
            if needs_roll:
                # A gap before the batch belongs to the segment that is closed.
                self._end_offset = header.base_offset
                self.roll()
                segment = self._segments.active
                position = segment.end_position + header.size_bytes
                bytes_max = segment.run_bytes_max
            run.append(batch)
        self._write_run(segment, records, run)
        first, last = batches[0].header, batches[-1].header
        return AppendInfo(
            first.base_offset,
            last.last_offset,
            max(batch.header.max_timestamp_ms for batch in batches),
            NO_TIMESTAMP,
            self.log_start_offset,
            False,
            batches[-1].end_position - batches[0].position,
        )

    def _write_run(self, segment: LogSegment, records: memoryview, run: Sequence[Batch]) -> None:
        first = run[0].header
        epochs = self.leader_epochs
        for _, header in run:
            if header.leader_epoch > epochs.latest_epoch:
                epochs.assign(header.leader_epoch, header.base_offset)
        try:
            segment.append_run(records[run[0].position : run[-1].end_position], run)
            self._end_offset = run[-1].header.next_offset
            for batch in run:
                if batch.header.producer_id >= 0:
                    completed = self.producers.replay(batch.header, marker_of(records, batch))
                    self._index_aborted(segment, completed)
        except DiskError as error:
            self._note_failed_write(segment, error, first.base_offset)
            raise
        except MemoryError as error:
            raise self._half_appended() from error

    def _half_appended(self) -> DiskError:
        """Stops the log after a batch that is in the file but not completely in memory.

        The next append would overwrite its offsets, or accept a duplicate from its producer.
        The log is reopened with its folder, from the content of the file.
        """
        failure = DiskError(f"{self.topic_partition}: no memory to account for a batch")
        self._fail(failure)
        return failure

    def _note_failed_write(
        self, segment: LogSegment, error: DiskError, base_offset: Offset
    ) -> None:
        """Logs the failure. Stops the log if it holds a part of the batch at `base_offset`: bytes
        that could not be removed, or entries in memory.
        """
        try:
            is_torn = segment.is_torn or self._end_offset > base_offset
        except OSError:
            is_torn = True
        if is_torn or error.condemns_folder:
            self._fail(error)
        self._note_full(error)
        _failures.say(
            logging.ERROR,
            "append failed",
            (self.directory, is_torn),
            {
                "partition": str(self.topic_partition),
                "reason": str(error),
                "stopped": self.failure is not None,
            },
        )

    def _note_full(self, error: DiskError) -> None:
        if error.is_full and self.on_full is not None:
            self.on_full()

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

        Segments in which compaction left no record are skipped while another follows: clients
        take many answers without a record for a batch that does not fit. Gaps in a log that was
        never compacted are not skipped: they are an error.
        Raises OffsetOutOfRange outside [start_offset, end_offset], CorruptFile, DiskError.
        """
        if self.failure is not None:
            raise self._stopped()
        segments = self._segments
        if not segments.start_offset <= offset <= self._end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: offset {offset} is outside "
                f"[{self.start_offset}, {self._end_offset}]"
            )
        if bytes_max <= 0 and not at_least_one_batch:
            # The response of the fetch is full. Often a thousand partitions remain, and finding
            # their positions would take longer than all other work for them.
            return LocalRead(None, offset, is_cut=offset < self._end_offset)
        bare: LocalRead | None = None
        passed = 0
        try:
            for segment in segments.from_offset(offset):
                found = segment.read_range(
                    offset,
                    bytes_max=bytes_max,
                    end_offset=end_offset,
                    at_least_one_batch=at_least_one_batch,
                )
                if found is None:
                    if offset < segment.end_offset and not self.has_gaps:
                        # The next segment's records in the response would hide the loss of these.
                        raise CorruptFile(f"{segment.log_path} has lost offset {offset}")
                    continue
                if found.range is None:
                    return bare or found
                passed += 1
                may_pass = self.config.is_compacted and passed < BARE_SEGMENTS_MAX
                if not (may_pass and segment.is_bare(found.range)):
                    return found
                bare = found
        except DiskError as error:
            if error.condemns_folder:
                self._fail(error)
            raise
        return bare or LocalRead(None, offset)

    def find_timestamp(self, timestamp_ms: int, *, start_offset: int = 0) -> TimestampOffset | None:
        """Returns the first record at or after both.

        Exact to the record: decompresses a batch, so large ones belong in a worker thread.
        """
        for segment in self._segments.from_offset(start_offset):
            if segment.max_timestamp_ms >= timestamp_ms:
                found = segment.find_timestamp(timestamp_ms, start_offset)
                if found is not None:
                    return found
        return None

    def max_timestamp(self, *, start_offset: int = 0) -> TimestampOffset | None:
        """Returns the first record with the highest timestamp of those at or after `start_offset`.

        None without timestamps. As `find_timestamp`, this belongs in a worker thread.
        """
        best: TimestampOffset | None = None
        # The first of equals comes first. A compacted segment may no longer hold the record that
        # gave it its time; then another segment's record may be later.
        segments = self._segments.from_offset(start_offset)
        for segment in sorted(segments, key=lambda s: s.max_timestamp_ms, reverse=True):
            if best is not None and segment.max_timestamp_ms <= best.timestamp_ms:
                break
            found = segment.find_max_timestamp(start_offset)
            if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
                best = found
        return best

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions that have records in [start_offset, end_offset)."""
        aborted = []
        for segment in self._segments.from_offset(start_offset):
            for entry in segment.txn_index.entries:
                if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                    aborted.append(entry)
                # Everything before this offset was decided when the entry was written, so later
                # entries cannot reach back behind it.
                if entry.last_stable_offset >= end_offset:
                    return aborted
        return aborted

    # --- segments --------------------------------------------------------------------------------

    def roll(self) -> LogSegment:
        """Closes the active segment and begins a new one; an empty one is kept. Raises DiskError.

        Does not sync: the closed segment is durable after the next `flush`.
        """
        if self.failure is not None:
            raise self._stopped()
        closed = self._segments.active
        if closed.size_bytes == 0 and closed.base_offset == self._end_offset:
            return closed
        closed.end_offset = self._end_offset
        try:
            closed.write_indexes()
            self._write_snapshot(sync=False)
            # Readers of the closed segment from outside find its epochs in the file.
            if self.leader_epochs.is_unwritten:
                self.leader_epochs.write(sync=False)
            self._segments.roll(self._end_offset)
            self._names_unsynced = True
        except DiskError as error:
            self._note_full(error)
            if error.condemns_folder:
                self._fail(error)
            raise
        except MemoryError as error:
            # The file of the next segment may exist. A start would take its name for the end of
            # this segment, so no append may follow here.
            failure = DiskError(f"{self.topic_partition}: no memory for a segment")
            self._fail(failure)
            raise failure from error
        if self.on_segment_closed is not None:
            self.on_segment_closed(closed)
        return self._segments.active

    def roll_if_expired(self, now_ms: int) -> bool:
        """Rolls an active segment older than segment.ms by the clock, even without appends."""
        active = self._segments.active
        if active.size_bytes == 0 or not active.outlives(now_ms):
            return False
        self.roll()
        return True

    def _state(self) -> tuple[object, ...]:
        """Equal to an earlier value if there is nothing to write or to sync since.

        The first append after a start begins an epoch, even one that fails.
        """
        epochs = self.leader_epochs
        is_late = epochs.is_unwritten or epochs.is_unsynced
        producer_count = len(self.producers.entries)
        changes = (self._segments.change_count, self.cut_count)
        return (self._end_offset, *changes, producer_count, epochs.starts, is_late)

    def _write_snapshot(self, *, sync: bool) -> None:
        path = self.directory / file_name(self._end_offset, SNAPSHOT_SUFFIX)
        files.write_atomically(path, self.producers.encode_snapshot(), sync=sync)

    def flush(self, up_to: Offset | None = None) -> None:
        """Syncs the segments that begin below `up_to` (None: all), and what their recovery needs.

        The recovery point moves with each of them, up to the end that the log had before its sync.
        Callers take turns, a segment each: one that wants less does not wait for the others' rest.
        Blocks; thread-safe. Raises DiskError: the recovery point stays, and the log takes no more
        appends, unless the process only had no descriptor left to sync with. A log that is stopped
        is not synced.
        """
        # Read before the segments: after a cut, those may have lost records that the log has again.
        cut_count, end_offset = self.cut_count, self._end_offset
        wanted = [s for s in self.segments if up_to is None or s.base_offset < up_to]
        for segment in (*wanted, None):
            self._flush_in_turn(segment, cut_count)
        if up_to is None or up_to >= end_offset:
            self._last_flush_s = self.clock.monotonic_s()

    def _flush_in_turn(self, segment: LogSegment | None, cut_count: int) -> None:
        with self._flush_turn:
            self._flush_turn.wait_for(lambda: not self._is_flushing or self._is_synced(segment))
            if self.failure is not None:
                # The next fsync would succeed, see below.
                raise self._stopped()
            if self._is_synced(segment):
                return
            self._is_flushing = True
        try:
            self._sync(segment, cut_count)
        finally:
            with self._flush_turn:
                self._is_flushing = False
                self._flush_turn.notify_all()

    def _is_synced(self, segment: LogSegment | None) -> bool:
        """Whether a segment is durable as far as it goes; None: the names and the epochs."""
        if segment is None:
            epochs = self.leader_epochs
            is_unsynced = self._names_unsynced or epochs.is_unwritten or epochs.is_unsynced
            return not is_unsynced and self.start_offset <= self.recovery_point
        is_whole = segment.is_active or segment.is_durable
        return is_whole and self._end_of(segment) <= self.recovery_point

    def _end_of(self, segment: LogSegment) -> Offset:
        end_offset = self._end_offset
        # Compaction may leave the active segment without its last batches.
        return end_offset if segment is self._segments.active else segment.end_offset

    def _sync(self, segment: LogSegment | None, cut_count: int) -> None:
        # Read before the sync: records appended meanwhile belong to the next flush.
        # Segments that were removed before their sync need none.
        end_offset = self.start_offset if segment is None else self._end_of(segment)
        # Only a mark that was seen is taken away: a roll may set it at any moment.
        if names_unsynced := self._names_unsynced:
            self._names_unsynced = False
        try:
            if segment is not None:
                segment.sync()
            if self.leader_epochs.is_unwritten:
                self.leader_epochs.write(sync=True)
            elif self.leader_epochs.is_unsynced:
                self.leader_epochs.sync()
                names_unsynced = True
            if names_unsynced:
                files.sync_directory(self.directory)
        except DiskError as error:
            self._names_unsynced = True
            # The kernel may have dropped pages that it could not write, and the next fsync
            # would succeed. So nothing may be acknowledged until a recovery has read the files
            # again. A file that could not be opened was not synced at all.
            self._note_full(error)
            if not error.is_out_of_descriptors:
                self._fail(error)
            raise
        except MemoryError:
            self._names_unsynced = True
            raise
        self._recovery_point.raise_to(end_offset, cut_count=cut_count)

    def write_epochs(self) -> None:
        """Writes leader epochs that are only in memory. Blocks; thread-safe. Raises DiskError."""
        if self.failure is not None or not self.leader_epochs.is_unwritten:
            return
        try:
            self.leader_epochs.write(sync=False)
        except DiskError as error:
            if error.condemns_folder:
                self._fail(error)
            raise

    def delete_segments(self, segments: Sequence[LogSegment]) -> None:
        """Removes the oldest segments from the log; their files go after file.delete.delay.ms.

        They must be the first ones, in order, without the active one.
        """
        self._know_batches_of_first(len(segments))
        self._segments.delete(segments)

    def _know_batches_of_first(self, segment_count: int) -> None:
        """Takes note of the batches in flight in the first segments, which will be gone."""
        if reaches_earlier_batches(self.producers, self.segments, segment_count):
            # A disk that cannot be read must not keep what nobody needs: they stay unknown.
            with suppress(DiskError):
                read_earlier_batches(self.producers, self.segments)

    def replace_segments(
        self, sources: Sequence[LogSegment], opened: OpenFile, facts: CleanedFacts
    ) -> LogSegment:
        """Replaces neighbouring segments by the cleaned one: steps 4 to 6 of swap.py.

        The caller syncs the folder. Raises StorageError: the log takes no more appends then, and
        the next start completes the swap.
        """
        self._know_batches_of_first(self.segments.index(sources[-1]) + 1)
        try:
            segment = self._segments.replace(sources, opened, facts)
        except StorageError as error:
            self.failure = DiskError(f"a cleaned segment is half swapped in: {error}")
            raise
        self._names_unsynced = True
        return segment

    def note_archived_records(self) -> None:
        """Its records are from the archive, which may lack what followed them on a lost disk."""
        self.opened_end_offset = self._end_offset
        self.may_lack_markers = True

    def purge_deleted(self, now_s: float) -> int:
        """Unlinks files whose delay is over by monotonic time; returns how many.

        Blocks for large files; thread-safe.
        """
        return self._segments.trash.purge(now_s, delay_ms=self.config.file_delete_delay_ms)

    def lower_recovery_point(self, offset: Offset) -> None:
        """Has recovery begin at `offset`, durably: a truncation to there syncs nothing then.

        Blocks; thread-safe. Raises DiskError.
        """
        if self.start_offset <= offset < self._end_offset:
            # That of the batch: whole ones are cut.
            start = self._segments.from_offset(offset)[0].locate(offset)
            offset = offset if start is None else start.base_offset
        with self._recovery_point.cutting(offset, self.on_cut):
            pass

    def truncate_to(self, offset: int) -> None:
        """Drops every batch that ends at or after `offset`.

            1 the recovery point is no higher, durably   2 segments behind   3 the file   4 lineage

        Batches [0,9][10,19][20,29]: `truncate_to(20)` leaves two, `truncate_to(15)` leaves one.
        Raises OffsetOutOfRange below the local start, and DiskError: after 1 nothing has changed.
        Reads batches again for the producers, so it may take a while.
        """
        if offset >= self._end_offset:
            return
        if offset < self.start_offset:
            raise OffsetOutOfRange(f"cannot truncate to {offset}, begins at {self.start_offset}")
        active = self._segments.from_offset(offset)[0]
        start = active.locate(offset)
        assert start is not None, (offset, active)
        if self.cleaned_offset is not None and start.base_offset < self.cleaned_offset:
            # Lowered before any file is cut: later records at these offsets are not compacted yet.
            self.cleaned_offset = start.base_offset
            if self.on_cleaning_undone is not None:
                self.on_cleaning_undone(start.base_offset)
        with self._recovery_point.cutting(start.base_offset, self.on_cut):  # 1
            self._segments.truncate(start)  # 2, 3
            self._end_offset = start.base_offset
        self.leader_epochs.truncate_from_end(self._end_offset)  # 4
        active.reactivate(self.config)
        self._names_unsynced = True
        self.producers = reload_producers(self.directory, self.segments, self._end_offset)
        self.high_watermark = min(self.high_watermark, self._end_offset)
        self.producers.replicated_up_to(self.high_watermark)

    def reset_to(
        self,
        offset: int,
        *,
        producer_snapshot: Buffer | None = None,
        leader_epochs: Sequence[EpochStart] = (),
    ) -> None:
        """Empties the log and restarts it at `offset`, to continue an archive, whose records are
        below the high watermark.

        `producers` and lineage are those of the log at `offset`. Raises DiskError.
        """
        with self._recovery_point.cutting(offset, self.on_cut):
            self._segments.restart(offset)
            self._end_offset = self._recovery_point.offset = self.high_watermark = offset
        self._names_unsynced = True
        self.log_start_offset = offset
        self.leader_epochs.replace(leader_epochs)
        self.producers.clear()
        if producer_snapshot is not None:
            self.producers.load_snapshot(producer_snapshot)
        self.failure = None
        self._write_snapshot(sync=False)

    def close(self) -> None:
        """Flushes, writes a snapshot for a short next start, and closes the files. Blocks.

        Raises DiskError: the files are closed, and the next start must not count as clean.
        """
        try:
            if self.failure is not None:
                raise self._stopped()
            # Of thousands of partitions, few were written to since the start.
            if self._as_resumed != self._state():
                self.active_segment.write_indexes()
                self._write_snapshot(sync=True)
                self.leader_epochs.write(sync=True)
                self.flush()
                self.active_segment.sync_indexes()
        finally:
            self._segments.close()

    def __repr__(self) -> str:
        return (
            f"<LocalLog {self.topic_partition} [{self.start_offset},{self._end_offset}) "
            f"{len(self.segments)} segments, {self.size_bytes} bytes, "
            f"high watermark {self.high_watermark}, "
            f"recovery point {self.recovery_point}>"
        )

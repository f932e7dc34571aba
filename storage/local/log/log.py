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
Rolling, flushing, truncating and deleting are in segmented_log.py.
"""

from __future__ import annotations

import logging
from pathlib import Path

from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    DiskError,
    InvalidRecords,
    InvalidTimestamp,
    OffsetOutOfRange,
)
from strandline.storage.local.formats.producer_state import CompletedTransaction, TransactionMarker
from strandline.storage.local.log.append_rules import (
    UNUSUAL_BITS,
    AppendInfo,
    AppendOrigin,
    ReplicatedBatch,
    check_records,
    check_replicated,
    check_unusual,
    misshapen_batch,
    short_batch,
    stamp_append_time,
)
from strandline.storage.local.log.closed_log import ClosedLog, resume_log
from strandline.storage.local.log.recovery import aborted_entry, load_log
from strandline.storage.local.log.segmented_log import LogStatistics, SegmentedLog
from strandline.storage.local.segment.segment import RELATIVE_OFFSET_MAX, LocalRead, LogSegment
from strandline.storage.model import (
    NO_TIMESTAMP,
    AbortedTransaction,
    Offset,
    TimestampOffset,
    TimestampType,
    TopicId,
    TopicPartition,
)
from strandline.storage.quiet_log import QuietLog
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.system import crc32c

__all__ = ["AppendInfo", "AppendOrigin", "LocalLog", "LocalRead", "LogStatistics"]

log = logging.getLogger(__name__)

# Producers try again several times a second while a disk is full. One for all logs, of which
# few fail.
_failures = QuietLog(log)

# Segments without records that one read passes over: each is a look into its file.
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
_REPLICATION = AppendOrigin.REPLICATION
_TRANSACTIONAL_BIT = batch_format.TRANSACTIONAL_BIT
_CODEC_LAST = batch_format.CODEC_LAST


class LocalLog(SegmentedLog):
    """One partition on local disk. Opened by `open`, owned by one event loop."""

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
        closed: ClosedLog | None = None,
    ) -> LocalLog:
        """Opens the folder, repairing what an unclean stop left; see `recovery_report`.

        `log_start_offset` is where an empty folder begins. If it lies behind all that is here, the
        folder is emptied: everything in it was deleted already. `closed` says how a clean stop has
        left it, if that is known and nothing in the folder has changed. Raises DiskError.
        """
        loaded = None
        if closed is not None and clean_shutdown:
            loaded = resume_log(directory, closed, config=config, now_ms=clock.now_ms())
        if loaded is None:
            loaded = load_log(
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
        is_whole = clean_shutdown and not loaded.report.problems
        synced_end = opened.end_offset if is_whole else recovery_point
        opened._recovery_point.offset = min(synced_end, opened.end_offset)
        return opened

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

        `records` must be writable and is stamped in place. With `records_checked`, what the topic's
        configuration asks of single records was seen to (see preparation.py).

        Raises CorruptRecords, InvalidRecords, InvalidTimestamp, UnsupportedCodec, MessageTooLarge,
        RecordListTooLarge, and for producers OutOfOrderSequence, InvalidProducerEpoch,
        InvalidTransactionState: nothing has changed then.
        Raises DiskError: the batch is not in the log, and if the file could not be put right, or
        memory ran out, the log refuses everything that follows.
        """
        # The hot path. It is one long function because a batch of 16 KiB has 15 us in all, of which
        # the write takes most, and each call costs a hundredth of that.
        if self._failure is not None:
            raise self._stopped()
        if origin is _REPLICATION:
            return self._append_replicated(records)

        # 1 Check: the batch alone, then as its producer's next one, then by the topic's settings.
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
        if (
            not (records_checked or config.stores_as_sent)
            and origin is _CLIENT
            and config.needs_records
        ):
            check_records(records, config, now_ms)

        # 2 Stamp, for the segment that has room. A roll that fails leaves the log as it was.
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
                    self._end_transaction(
                        segment, producer_id, producer_epoch, marker, last_offset, max_timestamp_ms
                    )
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
        self._index_aborted(segment, completed)

    def _index_aborted(self, segment: LogSegment, completed: CompletedTransaction | None) -> None:
        if completed is not None and completed.aborted:
            segment.txn_index.append(aborted_entry(completed, self.producers.first_open_offset))

    def _append_replicated(self, records: memoryview) -> AppendInfo:
        """Appends what another broker has stored, with its offsets and epochs."""
        batches = check_replicated(records, self._end_offset)
        for batch in batches:
            self._append_stored(records, batch)
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

    def _append_stored(self, records: memoryview, batch: ReplicatedBatch) -> None:
        """Steps 2 to 4 of `append`, for one that is stamped already and was checked."""
        header = batch.header
        segment = self._active
        if (
            segment.size_bytes + header.size_bytes > self.config.segment_bytes
            or header.max_timestamp_ms > segment.roll_timestamp_ms
            or segment.is_index_full
            or header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        ):
            # There may be a gap in front of it, which belongs to the segment that is closed.
            self._end_offset = header.base_offset
            self.roll()
            segment = self._active
        if header.leader_epoch > self.leader_epochs.latest_epoch:
            self.leader_epochs.assign(header.leader_epoch, header.base_offset)
        try:
            segment.append(
                records[batch.position : batch.position + header.size_bytes],
                header.last_offset,
                header.max_timestamp_ms,
            )
            self._end_offset = header.next_offset
            self._index_aborted(segment, self.producers.replay(header, batch.marker))
        except DiskError as error:
            self._note_failed_write(segment, error, header.base_offset)
            raise
        except MemoryError as error:
            raise self._half_appended() from error

    def _half_appended(self) -> DiskError:
        """Stops the log after a batch that is in the file and not, or not wholly, accounted for.

        What comes next would be written over its offsets, or it be taken twice from its producer.
        The log is opened anew with its folder, by what is in the file.
        """
        failure = DiskError(f"{self.topic_partition}: no memory to account for a batch")
        self._fail(failure)
        return failure

    def _note_failed_write(
        self, segment: LogSegment, error: DiskError, base_offset: Offset
    ) -> None:
        """Stops the log if it holds half of the batch at `base_offset`: of its bytes, which could
        not be taken back, or of what is to be known of it.
        """
        try:
            is_torn = segment.is_torn or self._end_offset > base_offset
        except OSError:
            is_torn = True
        if is_torn or error.condemns_folder:
            self._fail(error)
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

        Segments in which compaction left no record are passed over while another follows: clients
        take many answers without a record for a batch that does not fit. What only compaction
        may take, no other log passes over: that is an error.
        Raises OffsetOutOfRange outside [start_offset, end_offset], CorruptFile, DiskError.
        """
        if self._failure is not None:
            raise self._stopped()
        segments = self._list
        if not segments.start_offset <= offset <= self._end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: offset {offset} is outside "
                f"[{self.start_offset}, {self._end_offset}]"
            )
        if bytes_max <= 0 and not at_least_one_batch:
            # The rest of a fetch whose answer is full, often of a thousand partitions: finding
            # where they would be read takes longer than all else that is done for them.
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
                        # The next segment's records in their place would hide that they are lost.
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

    def find_timestamp(
        self, timestamp_ms: int, *, start_offset: int | None = None
    ) -> TimestampOffset | None:
        """The first record at or after `timestamp_ms`, and at or after `start_offset` if given.

        Exact to the record: decompresses a batch, so large ones belong in a worker thread.
        """
        segments = self._list
        first_offset = segments.start_offset if start_offset is None else start_offset
        return segments.find_timestamp(timestamp_ms, first_offset)

    def max_timestamp(self, *, start_offset: int | None = None) -> TimestampOffset | None:
        """The first record with the highest timestamp, at or after `start_offset` if given.

        None without timestamps. As `find_timestamp`, this belongs in a worker thread.
        """
        segments = self._list
        first_offset = segments.start_offset if start_offset is None else start_offset
        return segments.find_max_timestamp(first_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that have records in [start_offset, end_offset)."""
        return self._list.aborted_transactions(start_offset, end_offset)

    def __repr__(self) -> str:
        return (
            f"<LocalLog {self.topic_partition} [{self.start_offset},{self._end_offset}) "
            f"{len(self._list.segments)} segments, {self.size_bytes} bytes, "
            f"recovery point {self.recovery_point}>"
        )

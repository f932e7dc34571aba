"""The segments of one log: where it begins and ends, and how segments come and go.

Everything about a log but appending to it and reading it, which is log.py. Nothing here looks into
a batch.

Order of a roll:     1 index files and producer snapshot whole, not synced  2 new segment file
                     3 segment list  4 hook.  `flush` syncs all of it later and only then moves the
                     recovery point, so a crash before that rebuilds from the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.crash_points import (
    CLEAN_AFTER_DISCARD,
    CLEAN_AFTER_RENAME,
    crash_point,
)
from strandline.storage.errors import DiskError, OffsetOutOfRange, StorageError
from strandline.storage.files import OpenFile
from strandline.storage.local.formats.segment_names import (
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    file_name,
)
from strandline.storage.local.log.recovery import LoadedLog
from strandline.storage.local.log.recovery_point import RecoveryPoint
from strandline.storage.local.segment import swap
from strandline.storage.local.segment.cleaned_segment import CleanedFacts
from strandline.storage.local.segment.producer_snapshots import reload_producers
from strandline.storage.local.segment.recovery_report import RecoveryReport
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.local.segment.segment_list import SegmentList
from strandline.storage.local.segment.trash import Trash
from strandline.storage.model import Buffer, EpochStart, TopicId, TopicPartition


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


class SegmentedLog:
    """The segments of one partition on local disk, and what is known of their batches."""

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
        # Up to where it is compacted; None if it never was. Kept by LogDirs, moved by the cleaner.
        self.cleaned_offset: int | None = None
        # Makes durable that the log is compacted only up to an offset. Blocks; raises DiskError.
        self.on_cleaning_undone: Callable[[int], None] | None = None
        # Makes the recovery point durable, which was lowered. Blocks; raises DiskError.
        self.on_cut: Callable[[], None] | None = None
        # What lies below is in another tier too, and is changed here no more; None: nobody knows
        # yet. The owner of both tiers answers.
        self.archived_below: Callable[[], int | None] = _nothing_archived
        self.on_segment_closed: Callable[[LogSegment], None] | None = None
        # Told when this log can no longer trust its disk; may come from a worker thread.
        self.on_failure: Callable[[DiskError], None] | None = None
        self._last_flush_s = clock.monotonic_s()
        self._clock = clock
        self._failure: DiskError | None = None
        self._trash = Trash()
        self._names_unsynced = True
        self._flush_lock = threading.Lock()
        self._recovery_point = RecoveryPoint()
        self._end_offset = loaded.end_offset
        # What a clean stop left, and the next one may leave as it is; None: it has more to do.
        self._as_resumed: tuple[object, ...] | None = None
        self._set_segments(loaded.segments)
        if loaded.report.was_resumed:
            self._as_resumed = self._state()

    @property
    def clock(self) -> Clock:
        """The clock of everything about this log."""
        return self._clock

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
    def is_being_copied(self) -> bool:
        """Whether closed segments go to another tier, one after the other."""
        return self.config.remote_storage_enable and not self.config.remote_log_copy_disable

    @property
    def has_gaps(self) -> bool:
        """Whether offsets may be missing, because the log is or was compacted."""
        return self.config.is_compacted or self.cleaned_offset is not None

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the end.

        Never below the log start: what was deleted of a transaction holds nobody back.
        """
        first_open = self.producers.first_open_offset
        return self._end_offset if first_open is None else max(first_open, self.log_start_offset)

    @property
    def is_stopped(self) -> bool:
        """Whether a failure of the disk has ended appending until the next start."""
        return self._failure is not None

    @property
    def recovery_point(self) -> int:
        return self._recovery_point.offset

    @property
    def cut_count(self) -> int:
        """Grows when something is taken off the end: who copies it may have copied that."""
        return self._recovery_point.cut_count

    @property
    def size_bytes(self) -> int:
        return self._list.sealed_bytes + self._active.size_bytes

    @property
    def unflushed_record_count(self) -> int:
        return self._end_offset - self.recovery_point

    def flush_is_due(self, now_s: float) -> bool:
        """Whether flush.messages or flush.ms ask for a `flush`, which is the caller's to run.

        By monotonic time: records do not wait for a wall clock that was put back.
        """
        unflushed = self._end_offset - self.recovery_point
        if unflushed <= 0:
            return False
        if unflushed >= self.config.flush_messages:
            return True
        return (now_s - self._last_flush_s) * 1000 >= self.config.flush_ms

    def statistics(self) -> LogStatistics:
        return LogStatistics(
            start_offset=self.start_offset,
            end_offset=self._end_offset,
            last_stable_offset=self.last_stable_offset,
            recovery_point=self.recovery_point,
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
        self._as_resumed = None

    @property
    def failure(self) -> DiskError | None:
        """Why this log takes and gives nothing any more; None while it works."""
        return self._failure

    def let_go(self) -> None:
        """Nobody owns this log any more, and nobody is told of it.

        Its owners are reached by what they wanted to be told, and reach it: without the collector's
        help it would never end, and its deleted files keep their descriptors and their room on the
        disk until it does. A quiet broker's collector may take hours.
        """
        self.on_failure = self.on_cleaning_undone = self.on_cut = self.on_segment_closed = None
        self.archived_below = _nobody_knows

    def stop(self, error: DiskError) -> None:
        """Refuses everything from now on, with `error` for the reason. Thread-safe."""
        if self._failure is None:
            self._failure = error

    def abandon(self) -> None:
        """Closes the files of a stopped log as they are, for it is opened anew."""
        assert self._failure is not None, self
        for segment in self._list.segments:
            segment.forget_indexes()

    def _stopped(self) -> DiskError:
        return DiskError(f"{self.topic_partition} is stopped: {self._failure}")

    def _fail(self, error: DiskError) -> None:
        """Stops for good, and says so to whom the folder belongs."""
        self.stop(error)
        if self.on_failure is not None:
            self.on_failure(error)

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
        try:
            closed.write_indexes()
            self._write_snapshot(sync=False)
            # Who looks at the closed segment from outside finds its epochs in the file.
            if self.leader_epochs.is_unwritten:
                self.leader_epochs.write(sync=False)
            opened = LogSegment.create(
                self.directory, self._end_offset, config=self.config, now_ms=self._clock.now_ms()
            )
            # Only now, so that a full disk leaves the log as it was, with its active segment.
            closed.seal()
            self._names_unsynced = True
            self._set_segments([*self._list.segments, opened])
        except DiskError as error:
            if error.condemns_folder:
                self._fail(error)
            raise
        except MemoryError as error:
            # There may be a file where the next segment was to begin. To a start the one before
            # ends there, so nothing may be appended to it any more.
            failure = DiskError(f"{self.topic_partition}: no memory for a segment")
            self._fail(failure)
            raise failure from error
        if self.on_segment_closed is not None:
            self.on_segment_closed(closed)
        return opened

    def roll_if_expired(self, now_ms: int) -> bool:
        """Rolls an active segment that is older than segment.ms by the clock, written to or not."""
        if self._active.size_bytes == 0 or not self._active.outlives(now_ms):
            return False
        self.roll()
        return True

    def _state(self) -> tuple[object, ...]:
        """Equal to an earlier one if there is nothing to write or to sync since, while no segment
        came or went: the first append after a start begins an epoch, even one that fails.
        """
        epochs = self.leader_epochs
        is_late = epochs.is_unwritten or epochs.is_unsynced
        producer_count = len(self.producers.entries)
        return (self._end_offset, self.cut_count, producer_count, epochs.starts, is_late)

    def _write_snapshot(self, *, sync: bool) -> None:
        path = self.directory / file_name(self._end_offset, SNAPSHOT_SUFFIX)
        files.write_atomically(path, self.producers.encode_snapshot(), sync=sync)

    def flush(self) -> None:
        """Syncs everything up to the end and moves the recovery point. Blocks; thread-safe.

        Raises DiskError: the recovery point stays, and the log takes no more appends; it does if
        the process had no descriptor left to sync with. A log that is stopped is not synced.
        """
        with self._flush_lock:
            if self._failure is not None:
                # The next fsync would be called a success, see below.
                raise self._stopped()
            # Read before anything is synced: what is appended meanwhile is for the next flush.
            cut_count = self.cut_count
            end_offset, recovery_point = self._end_offset, self.recovery_point
            names_unsynced, self._names_unsynced = self._names_unsynced, False
            try:
                for segment in self._list.segments:
                    is_behind = segment.end_offset > recovery_point
                    if is_behind or not (segment.is_active or segment.is_durable):
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
                # The kernel may have dropped the pages that it could not write and will call the
                # next fsync a success, so nothing more may be acknowledged until a recovery has
                # looked at what is really there. What could not be opened was not synced at all.
                if not error.is_out_of_descriptors:
                    self._fail(error)
                raise
            except MemoryError:
                self._names_unsynced = True
                raise
            self._recovery_point.raise_to(end_offset, cut_count=cut_count)
            self._last_flush_s = self._clock.monotonic_s()

    def write_epochs(self) -> None:
        """Writes leader epochs that are in memory alone. Blocks; thread-safe. Raises DiskError."""
        if self._failure is not None or not self.leader_epochs.is_unwritten:
            return
        try:
            self.leader_epochs.write(sync=False)
        except DiskError as error:
            if error.condemns_folder:
                self._fail(error)
            raise

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

    def replace_segments(
        self, sources: Sequence[LogSegment], opened: OpenFile, facts: CleanedFacts
    ) -> LogSegment:
        """Puts a cleaned segment in the place of its sources, neighbours in this log.

        Steps 4 to 6 of swap.py; the caller syncs the folder. Raises StorageError: the log takes no
        more appends then, and the next start completes what was begun.
        """
        first = self._list.segments.index(sources[0])
        kept_before = self._list.segments[:first]
        kept_behind = self._list.segments[first + len(sources) :]
        assert self._list.segments[first : first + len(sources)] == tuple(sources), sources
        assert kept_behind, "the active segment stays"
        try:
            for segment in sources:
                self._discard(segment, with_snapshot=segment is not sources[0])  # 4
            crash_point(CLEAN_AFTER_DISCARD)
            swap.name_finally(self.directory, facts.base_offset)  # 5
            crash_point(CLEAN_AFTER_RENAME)
            segment = swap.replacement(self.directory, opened, facts, sources)
        except StorageError as error:
            self._failure = DiskError(f"a cleaned segment is half swapped in: {error}")
            raise
        segment.apply_config(self.config)
        self._names_unsynced = True
        self._set_segments([*kept_before, segment, *kept_behind])  # 6
        return segment

    def _discard(self, segment: LogSegment, *, with_snapshot: bool = True) -> None:
        """Renames the files of a segment that is off the list, to be unlinked later."""
        segment.retire()
        names = [file_name(segment.base_offset, suffix) for suffix in SEGMENT_SUFFIXES]
        if with_snapshot:
            names.append(file_name(segment.base_offset, SNAPSHOT_SUFFIX))
        unlink_at_s = self._clock.monotonic_s() + self.config.file_delete_delay_ms / 1000
        for name in names:
            self._trash.put(self.directory / name, unlink_at_s=unlink_at_s)

    def purge_deleted(self, now_s: float) -> int:
        """Unlinks files whose delay is over by monotonic time; how many.

        Blocks for large files; thread-safe.
        """
        return self._trash.purge(now_s)

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
        kept = [segment for segment in self._list.segments if segment.base_offset <= offset]
        removed = self._list.segments[len(kept) :]
        active = kept[-1]
        start = active.locate(offset)
        assert start is not None, (offset, active)
        if self.cleaned_offset is not None and start.base_offset < self.cleaned_offset:
            # Before anything goes: what is appended there next was never compacted.
            self.cleaned_offset = start.base_offset
            if self.on_cleaning_undone is not None:
                self.on_cleaning_undone(start.base_offset)
        with self._recovery_point.cutting(start.base_offset, self.on_cut):  # 1
            for segment in reversed(removed):  # 2
                self._discard(segment)
            active.truncate(start.position, start.base_offset)  # 3
            self._end_offset = start.base_offset
        self.leader_epochs.truncate_from_end(self._end_offset)  # 4
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

        Producers and lineage are those given, as they were at `offset`. Raises DiskError.
        """
        with self._recovery_point.cutting(offset, self.on_cut):
            for segment in reversed(self._list.segments):
                self._discard(segment)
            fresh = LogSegment.create(
                self.directory, offset, config=self.config, now_ms=self._clock.now_ms()
            )
            self._end_offset = self._recovery_point.offset = offset
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
            # A broker has thousands of partitions, and few that were written to since its start.
            if self._as_resumed != self._state():
                self._active.write_indexes()
                self._write_snapshot(sync=True)
                self.leader_epochs.write(sync=True)
                self.flush()
                self._active.sync_indexes()
        finally:
            for segment in self._list.segments:
                segment.close()


def _nothing_archived() -> int:
    return 0


def _nobody_knows() -> None:
    return None

"""Opens the log of a partition from its files, after a clean or an unclean stop.

    bases        s0        s1        s2        s3 (last)
                 |---------|---------|---------|-----~~~
    recovery point                       ^
    clean        trusted   trusted   trusted   tail checked from its last index entry
    unclean      trusted   trusted   CHECKED   CHECKED

Trusted: synced before the stop. Only its name is read until a caller needs more of it; then its
indexes are checked, and rebuilt if they do not match the log.
Checked: every batch is read and its CRC verified, its base offset must follow the one before, and
index, transaction index, leader epochs and producers are rebuilt from it.

The log ends before the first damaged batch: its file is cut there and later segments are removed,
so a log is always a prefix of the appended records. A gap between segments is damage too: blocks
were lost. Base offset and leader epoch lie outside the CRC, so the base offset is checked by
continuity: a gap is damage, unless compaction may have made it.

A process that is killed leaves a torn batch at most, the one that it was about to write. Anything
else that is cut or missing was in the log, and may have been acknowledged (`has_lost_records`).

The RecoveryReport lists every repair. The next flush, not recovery, moves the recovery point.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    UnsupportedFormat,
)
from strandline.storage.files import OpenFile
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.formats.epoch_cache import LeaderEpochCache
from strandline.storage.local.formats.names import (
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    file_name,
)
from strandline.storage.local.formats.producer_state import CompletedTransaction, ProducerState
from strandline.storage.local.segment import partition_folder as folder
from strandline.storage.local.segment.producer_snapshots import ProducerSnapshots
from strandline.storage.local.segment.recovery_report import RecoveryReport
from strandline.storage.local.segment.segment import RELATIVE_OFFSET_MAX, LogSegment, SegmentEnd
from strandline.storage.model import AbortedTransaction
from strandline.storage.records.batch.any_batch import BATCH_BYTES_MIN, TornBatch, walk_file
from strandline.storage.records.batch.batch import Batch
from strandline.storage.records.batch.marker import marker_in

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """The parts of a log that is ready to be served; the last segment is the active one."""

    segments: tuple[LogSegment, ...]
    leader_epochs: LeaderEpochCache
    producers: ProducerState
    report: RecoveryReport

    @classmethod
    def of_new_folder(cls, directory: Path, *, config: LogConfig, now_ms: int) -> LoadedLog:
        """Begins a log at offset 0 in a folder that was made for it, of which nothing is read."""
        return cls(
            segments=(LogSegment.create(directory, 0, config=config, now_ms=now_ms),),
            leader_epochs=LeaderEpochCache(f"{directory}/{checkpoint.LEADER_EPOCHS}"),
            producers=ProducerState(),
            report=RecoveryReport(clean_shutdown=True),
        )

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset


def load_log(
    directory: Path,
    *,
    config: LogConfig,
    recovery_point: int,
    log_start_offset: int,
    clean_shutdown: bool,
    now_ms: int,
    was_compacted: bool = False,
) -> LoadedLog:
    """Opens the files in `directory`, or begins a log at `log_start_offset` if there are none.

    A gap between two offsets is damage unless the log is or `was_compacted`.
    Raises DiskError; damage is repaired and reported instead.
    """
    loader = _Loader(directory, config, now_ms, RecoveryReport(clean_shutdown=clean_shutdown))
    loader.was_compacted = was_compacted
    return loader.load(recovery_point, log_start_offset)


def aborted_entry(
    completed: CompletedTransaction, first_open_offset: int | None
) -> AbortedTransaction:
    """The transaction-index entry of an abort; `first_open_offset` is that of the others."""
    stable_offset = completed.last_offset + 1 if first_open_offset is None else first_open_offset
    return AbortedTransaction(
        completed.producer_id, completed.first_offset, completed.last_offset, stable_offset
    )


class LateOpener:
    """Opens trusted segments of a log when they are needed, in any thread, one at a time."""

    __slots__ = ("_config", "_directory", "_lock", "_now_ms", "_report")

    def __init__(
        self, directory: Path, config: LogConfig, now_ms: int, report: RecoveryReport
    ) -> None:
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._report = report
        # Rebuilding one may read the segments before it, for the producers.
        self._lock = threading.RLock()

    def open(self, segment: LogSegment) -> None:
        """Checks its files, unless another thread did so meanwhile. Raises DiskError.

        If its indexes must be rebuilt, this reads the whole segment.
        """
        with self._lock:
            if segment.is_opened:
                return
            loader = _Loader(self._directory, self._config, self._now_ms, self._report)
            loader.late_opener = self
            segment.take_over(loader.open_trusted(segment.base_offset, segment.end_offset))


class _Loader:
    """Opens the files of one log, or one of its segments after the start."""

    def __init__(
        self, directory: Path, config: LogConfig, now_ms: int, report: RecoveryReport
    ) -> None:
        self.directory = directory
        self.config = config
        self.now_ms = now_ms
        self.report = report
        self.was_compacted = False
        # Set when a single segment is opened after the start.
        self.late_opener: LateOpener | None = None
        self.segments: list[LogSegment] = []
        self.snapshots = ProducerSnapshots(directory, report)
        # The segments with a transaction index, by the listing of the folder.
        self.transactional_bases: frozenset[int] = frozenset()
        self.epochs = LeaderEpochCache(f"{directory}/{checkpoint.LEADER_EPOCHS}")
        self.epochs_on_disk = self.epochs.starts
        self.epochs_complete = True

    def load(self, recovery_point: int, log_start_offset: int) -> LoadedLog:
        content = folder.tidy(self.directory)
        self.report.files_removed = content.files_removed
        self.snapshots.offsets = set(content.snapshot_offsets)
        self.transactional_bases = content.transactional_bases
        self._open_epochs(log_is_empty=not content.segment_bases)
        if not content.segment_bases:
            producers = self._begin(log_start_offset)
        else:
            bases = content.segment_bases
            # The last segment is always checked; after a clean stop that is short.
            first_checked = len(bases) - 1
            if not self.report.clean_shutdown:
                first_checked = next(
                    (i for i, end in enumerate(bases[1:]) if end > recovery_point), first_checked
                )
            look = LateOpener(self.directory, self.config, self.now_ms, self.report).open
            for base_offset, end_offset in pairwise(bases[: first_checked + 1]):
                segment = LogSegment(self.directory, base_offset, end_offset, look=look)
                if base_offset in content.unindexed_bases:
                    segment.open()
                self.segments.append(segment)
            producers = self._load_rest(bases[first_checked:])
        end_offset = self.segments[-1].end_offset
        if content.segment_bases and end_offset < recovery_point:
            self.report.has_lost_records = True
            self._problem(f"offsets up to {recovery_point} were safe, the log ends at {end_offset}")
        self._finish_epochs()
        self.snapshots.drop_strays(self.segments)
        return LoadedLog(
            segments=tuple(self.segments),
            leader_epochs=self.epochs,
            producers=producers,
            report=self.report,
        )

    def _begin(self, base_offset: int) -> ProducerState:
        self.snapshots.drop_from(0)
        self.segments.append(
            LogSegment.create(self.directory, base_offset, config=self.config, now_ms=self.now_ms)
        )
        return ProducerState()

    def _load_rest(self, bases: tuple[int, ...]) -> ProducerState:
        """Opens the last segment after a clean stop; checks all of `bases` after any other."""
        if self.report.clean_shutdown:
            active = self._open_clean_tail(bases[0])
            if active is not None:
                self.segments.append(active)
                return self.snapshots.producers_at(self.segments, active.end_offset)
        producers = self.snapshots.producers_at(self.segments, bases[0])
        self.snapshots.drop_from(bases[0] + 1)
        for i, base_offset in enumerate(bases):
            if i > 0:
                previous = self.segments[-1]
                if base_offset != previous.end_offset and not self._may_have_gaps:
                    self.report.has_lost_records = True
                    self._problem(
                        f"segment {base_offset} does not follow offset {previous.end_offset}"
                    )
                    self._remove_segments(bases[i:])
                    break
                # Compaction may have removed the records at its end.
                previous.end_offset = base_offset
                self._close_checked(previous, producers)
            if not self._check_segment(base_offset, producers):
                self.report.has_lost_records |= base_offset != bases[-1]
                self._remove_segments(bases[i + 1 :])
                break
        return producers

    # --- segments ----------------------------------------------------------------------------

    def _open_file(self, base_offset: int, *, active: bool) -> LogSegment:
        file = OpenFile(self._text(base_offset, LOG_SUFFIX), writable=True)
        created_ms = min(self.now_ms, file.modified_ms(), self._snapshot_ms(base_offset))
        end = SegmentEnd.of_empty(base_offset, created_ms=created_ms)
        segment = LogSegment.opened(self.directory, end, file=file, active=active)
        segment.apply_config(self.config)
        return segment

    def _snapshot_ms(self, base_offset: int) -> int:
        """Creation time of a segment: the snapshot at its base is written then, and only then."""
        if self.late_opener is None and base_offset not in self.snapshots.offsets:
            return self.now_ms
        modified_ms = files.modified_ms(self._text(base_offset, SNAPSHOT_SUFFIX))
        return self.now_ms if modified_ms is None else modified_ms

    def _text(self, offset: int, suffix: str) -> str:
        """Returns a path as text: see LogSegment.opened."""
        return f"{self.directory}/{file_name(offset, suffix)}"

    def open_trusted(self, base_offset: int, end_offset: int) -> LogSegment:
        """Returns a sealed and synced segment; its log is trusted, its indexes are checked."""
        segment = self._open_file(base_offset, active=False)
        segment.trust_file(end_offset)
        problem = self._index_problem(
            segment, segment.offset_index.size_on_disk(), segment.time_index.size_on_disk()
        )
        if problem is None:
            problem = self._load_txn_index(segment)
        if problem is not None:
            self._problem(problem)
            segment = self._rebuild_trusted(base_offset, end_offset)
        segment.take_last_timestamp()
        segment.is_durable = problem is None
        return segment

    def _load_txn_index(self, segment: LogSegment) -> str | None:
        """Loads its transaction index; returns why it cannot be trusted, None if it can."""
        if self.late_opener is None and segment.base_offset not in self.transactional_bases:
            return None
        try:
            segment.txn_index.load()
        except CorruptFile as error:
            return str(error)
        return None

    def _rebuild_trusted(self, base_offset: int, end_offset: int) -> LogSegment:
        """Rebuilds the indexes of a sealed segment from its log, as far as that is readable."""
        if self.late_opener is not None:
            self._list_earlier(base_offset, self.late_opener)
        producers = self.snapshots.producers_at(self.segments, base_offset)
        segment = self._empty_for_rebuild(base_offset)
        try:
            for batch in self._batches(segment, 0, segment.file().size_bytes(), verify_crc=False):
                self._take_over(segment, batch, producers)
        except CorruptRecords as error:
            # These bytes were synced, so cutting them restores nothing. Batches before them stay
            # readable, and reads beyond get an error instead of wrong data.
            self.report.has_lost_records = True
            self._problem(f"segment {base_offset} is damaged: {error}")
        segment.trust_file(end_offset)
        segment.seal()
        return segment

    def _list_earlier(self, base_offset: int, opener: LateOpener) -> None:
        """Lists the snapshots and segments that give the producers at `base_offset`."""
        self.snapshots.offsets = folder.snapshot_offsets(self.directory)
        bases = [base for base in folder.segment_bases(self.directory) if base <= base_offset]
        self.segments = [
            LogSegment(self.directory, base, end, look=opener.open) for base, end in pairwise(bases)
        ]

    def _open_clean_tail(self, base_offset: int) -> LogSegment | None:
        """Returns the last segment after a clean stop; None if it is damaged or incomplete."""
        segment = self._open_file(base_offset, active=False)
        # The end is unknown before the tail is read; the indexed batches lie below it.
        segment.trust_file(base_offset + RELATIVE_OFFSET_MAX)
        file_bytes = segment.size_bytes
        # Appends follow, so the index files are read whole.
        problem = self._index_problem(
            segment, segment.offset_index.read_file(), segment.time_index.read_file()
        )
        if problem is None:
            problem = self._load_txn_index(segment)
        if problem is None:
            try:
                segment.activate_up_to_last_entry()
                for batch in self._batches(
                    segment, segment.size_bytes, file_bytes, verify_crc=True
                ):
                    self._note(segment, batch)
            except CorruptRecords as error:
                problem = f"clean shutdown, but the last segment is not whole: {error}"
        if problem is not None:
            self._problem(problem)
            return None
        return segment

    def _index_problem(
        self, segment: LogSegment, offset_index_bytes: int, time_index_bytes: int
    ) -> str | None:
        """Why index files of these sizes cannot be trusted; None if they can."""
        for index, size_bytes in (
            (segment.offset_index, offset_index_bytes),
            (segment.time_index, time_index_bytes),
        ):
            if size_bytes < 0:
                return f"{index.path.name} is missing"
            if size_bytes % index.ENTRY_BYTES:
                return f"{index.path.name} ends inside an entry"
        if segment.size_bytes < BATCH_BYTES_MIN:
            return None
        try:
            return segment.index_mismatch()
        except (CorruptRecords, CorruptFile) as error:
            return f"{segment.index_path.name}: {error}"

    def _empty_for_rebuild(self, base_offset: int) -> LogSegment:
        segment = self._open_file(base_offset, active=True)
        segment.offset_index.clear()
        segment.time_index.clear()
        segment.txn_index.clear()
        self.report.indexes_rebuilt += 1
        return segment

    def _check_segment(self, base_offset: int, producers: ProducerState) -> bool:
        """Reads and verifies a whole segment; False if it had to be cut."""
        segment = self._empty_for_rebuild(base_offset)
        self.segments.append(segment)
        self.report.segments_checked += 1
        file_bytes = segment.file().size_bytes()
        try:
            for batch in self._batches(segment, 0, file_bytes, verify_crc=True):
                self._take_over(segment, batch, producers)
        except CorruptRecords as error:
            self._problem(
                f"segment {base_offset} cut from {file_bytes} to {segment.size_bytes} bytes "
                f"at offset {segment.end_offset}: {error}"
            )
            is_torn = isinstance(error, TornBatch) and not self.report.clean_shutdown
            self.report.has_lost_records |= not is_torn
            self.report.bytes_cut += file_bytes - segment.size_bytes
            segment.file().truncate(segment.size_bytes)
            return False
        return True

    def _close_checked(self, segment: LogSegment, producers: ProducerState) -> None:
        """Seals a checked segment behind which another one follows."""
        segment.seal()
        files.write_atomically(segment.snapshot_path, producers.encode_snapshot(), sync=False)
        self.snapshots.offsets.add(segment.end_offset)

    def _batches(
        self, segment: LogSegment, position: int, end_position: int, *, verify_crc: bool
    ) -> Iterator[Batch]:
        """The batches from `position` to the end of the file, which the caller notes one by one.

        Raises CorruptRecords where a batch does not follow the one before.
        """
        for batch in walk_file(
            segment.file().read_at, position, end_position, verify_crc=verify_crc
        ):
            header = batch.header
            is_gap = header.base_offset > segment.end_offset and not self._may_have_gaps
            # Indexes must hold the offset, also after a gap that compaction made.
            is_beyond = header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            is_before = header.base_offset < segment.end_offset
            if is_gap or is_before or is_beyond or header.last_offset_delta < 0:
                raise CorruptRecords(
                    f"batch at position {batch.position} has offsets {header.base_offset} to "
                    f"{header.last_offset} where {segment.end_offset} should begin"
                )
            self.report.batches_checked += 1
            yield batch

    @property
    def _may_have_gaps(self) -> bool:
        return self.was_compacted or self.config.is_compacted

    def _note(self, segment: LogSegment, batch: Batch) -> None:
        header = batch.header
        segment.note_batch(header.size_bytes, header.last_offset, header.max_timestamp_ms)

    def _take_over(self, segment: LogSegment, batch: Batch, producers: ProducerState) -> None:
        """Adds a batch to the state that is rebuilt from the log."""
        marker = marker_in(segment.file(), batch)
        self._note(segment, batch)
        self.epochs.assign(batch.header.leader_epoch, batch.header.base_offset)
        completed = producers.replay(batch.header, marker)
        if completed is not None and completed.aborted:
            segment.txn_index.append(aborted_entry(completed, producers.first_open_offset))

    def _remove_segments(self, bases: tuple[int, ...]) -> None:
        """Removes segments after a cut, the last one first: a crash in between leaves a prefix."""
        for base_offset in reversed(bases):
            path = self.directory / file_name(base_offset, LOG_SUFFIX)
            self.report.bytes_cut += path.stat().st_size
            self.report.segments_removed += 1
            self._problem(f"segment {base_offset} removed: it lies behind a cut")
            for suffix in reversed(SEGMENT_SUFFIXES):
                files.remove(self.directory / file_name(base_offset, suffix))

    # --- leader epochs -----------------------------------------------------------------------

    def _open_epochs(self, *, log_is_empty: bool) -> None:
        path = self.epochs.path
        try:
            self.epochs = LeaderEpochCache.open(path)
            # An empty file counts as missing: power was lost before its content reached the disk.
            self.epochs_complete = (
                log_is_empty or bool(self.epochs.starts) or bool(checkpoint.read_text(path))
            )
        except (CorruptFile, UnsupportedFormat) as error:
            self._problem(f"leader epochs are read from the log again: {error}")
            self.epochs_complete = False
        self.epochs_on_disk = self.epochs.starts

    def _finish_epochs(self) -> None:
        """Completes the lineage from the batches if its file was not usable, and cuts its end."""
        if not self.epochs_complete:
            self.epochs = LeaderEpochCache(self.epochs.path)
            for segment in self.segments:
                try:
                    for batch in segment.scan():
                        self.epochs.assign(batch.header.leader_epoch, batch.header.base_offset)
                except CorruptRecords as error:
                    self._problem(f"epochs of segment {segment.base_offset} unread: {error}")
        self.epochs.truncate_from_end(self.segments[-1].end_offset)
        if self.epochs.starts != self.epochs_on_disk or not self.epochs_complete:
            self.epochs.write(sync=False)
        elif not self.report.clean_shutdown and self.epochs.starts:
            # It may have been written shortly before a kill, without a sync.
            self.epochs.is_unsynced = True

    def _problem(self, text: str) -> None:
        self.report.note_problem(self.directory, text)

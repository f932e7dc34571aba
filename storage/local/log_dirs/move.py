"""Moves a log to another log folder while it is appended to and read (KIP-113).

The copy has its final name in the other folder, with a mark of its state:

    <log.dir>/<topic>-<partition>/moving     unfinished: continues after a stop, if still wanted
    <log.dir>/<topic>-<partition>/moved      took over: the log of that name elsewhere is the old
                                             one; content: "0\\n<log start>\\n"

    1 folder with the mark `moving`, synced           5 short tail: synced, then on the owner's loop
    2 the log rolls; closed segments are copied         the last batches, and `moved` is written
    3 the copy is opened as a log                     6 `moved` is synced, old folder to -delete
    4 what was appended meanwhile is copied, synced   7 checkpoints, then the marks are removed

A crash before `moved` is written leaves the old log as it was; after it, the copy is the log and
has all acknowledged records. Segments are copied file by file and the tail rolls where the original
rolls, so the segments stay the same (the archive knows them by their borders).

A copy that was begun before a stop restarts over its files: a segment with the bytes of the
original is kept, all others are replaced. A folder of that name always has a mark: it gets the name
after the mark, and an unwanted copy loses the name first. Otherwise a start would find two logs of
one partition.

A log must not be compacted while it is copied: removed records could return with the copy. If a
segment is replaced or the log truncated, `SourceChanged` is raised, and the move restarts. A log
with records set aside (`diverged_records.py`) is not moved.
Retention only takes segments off the front; the copy keeps them until its own retention.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LONG_MAX
from strandline.storage.errors import DiskError, OffsetOutOfRange, StorageError
from strandline.storage.files import FileRange
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.formats.names import (
    DELETE_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    put_aside,
)
from strandline.storage.local.log import diverged_records
from strandline.storage.local.log.append_rules import AppendOrigin
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs import missing_folder_mark
from strandline.storage.local.log_dirs.copy_pace import CopyPace, unbounded
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import NO_EPOCH

MOVING_MARK = "moving"
MOVED_MARK = "moved"
_MARK_VERSION = "0"

# A file is compared with an earlier copy of it in pieces of so many bytes.
COMPARED_BYTES = 8 * 1024 * 1024
# One piece of the tail; whole batches, so it may be as large as the largest batch.
PIECE_BYTES = 1024 * 1024
# The loop itself copies no more than this in step 5: a few milliseconds.
LAST_PIECE_BYTES = 256 * 1024


class SourceChanged(StorageError):
    """A copied segment was replaced or removed, or the log was cut: the move restarts."""


class LogMove:
    """One copy of a log. `prepare`, `copy_closed`, `open_copy`, `append` and `sync` block."""

    def __init__(
        self, source: LocalLog, target: Path, *, clock: Clock, pace: CopyPace | None = None
    ) -> None:
        """`target` is the folder of the copy, which does not exist yet or is an unfinished one.

        `pace` is that of all copies of the broker; without one they are as fast as the disks.
        """
        self.source = source
        self.target = target
        self._clock = clock
        self._copy: LocalLog | None = None
        self._cut_count = source.cut_count
        # Every segment whose batches are in the copy, by base offset.
        self._copied: dict[int, LogSegment] = {}
        self._pace = pace or unbounded(clock)
        self._cancelling = threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._cancelling.is_set()

    def cancel(self) -> None:
        """Ends the copy at its next look; also one that waits for its pace."""
        self._cancelling.set()

    @property
    def copy(self) -> LocalLog:
        assert self._copy is not None
        return self._copy

    @property
    def size_bytes(self) -> int:
        """Size of the batches that are in the copy so far."""
        if self._copy is not None:
            return self._copy.size_bytes
        return sum(segment.size_bytes for segment in self._copied.values())

    @property
    def offset_lag(self) -> int:
        """How many offsets the copy is behind."""
        source = self.source
        if self._copy is not None:
            return source.end_offset - self._copy.end_offset
        ends = [segment.end_offset for segment in self._copied.values()]
        return source.end_offset - max(ends, default=source.start_offset)

    # --- 1, 2, 3: in a worker -----------------------------------------------------------------

    def prepare(self) -> None:
        """Step 1. Raises DiskError."""
        if diverged_records.is_any(self.source.directory):
            raise DiskError(f"records of {self.source.directory} are set aside and come back first")
        if self.target.exists() and not is_unfinished(self.target):
            raise DiskError(f"{self.target} exists already")
        if missing_folder_mark.is_marked(self.source.directory):
            raise DiskError(f"what the archive has of {self.source.directory} is not known yet")
        if not self.target.exists():
            made = self.target.with_name(put_aside(self.target.name, DELETE_SUFFIX))
            files.make_directory(made)
            files.write_atomically(made / MOVING_MARK, f"{_MARK_VERSION}\n".encode())
            files.rename(made, self.target)
        checkpoint.write_topic_id(self.target, self.source.topic_id)

    def copy_closed(self, segments: Sequence[LogSegment]) -> None:
        """Step 2, after a roll. Raises SourceChanged, DiskError."""
        self._remove_others(segments)
        for segment in segments:
            if self.cancelled:
                return
            self._copy_segment(segment)
        starts = self.source.leader_epochs.starts
        end_offset = segments[-1].end_offset if segments else self.source.start_offset
        kept = [start for start in starts if start.start_offset < end_offset or not segments]
        checkpoint.write_epochs(self.target / checkpoint.LEADER_EPOCHS, kept, sync=True)
        files.sync_directory(self.target)

    def _remove_others(self, segments: Sequence[LogSegment]) -> None:
        """Removes files of an earlier attempt but not logs and indexes of these segments."""
        kept = {
            file_name(segment.base_offset, suffix)
            for segment in segments
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        }
        try:
            found = list(self.target.iterdir())
        except OSError as error:
            raise DiskError(f"cannot list {self.target}: {error.strerror}") from error
        for path in found:
            if path.name not in {*kept, MOVING_MARK, checkpoint.PARTITION_METADATA}:
                files.remove(path)

    def _copy_segment(self, segment: LogSegment) -> None:
        base, end = segment.base_offset, segment.end_offset
        self._copy_bytes(segment)
        others = [file_name(base, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        optional = [file_name(base, TXN_INDEX_SUFFIX), file_name(end, SNAPSHOT_SUFFIX)]
        for name in [*others, *optional]:
            original = self.source.directory / name
            try:
                content = original.read_bytes()
            except FileNotFoundError:
                if name in others:
                    raise SourceChanged(f"{original} is gone") from None
                continue
            except OSError as error:
                raise DiskError(f"cannot read {original}: {error.strerror}") from error
            # `copy_closed` syncs the folder, once: nobody opens the copy before.
            files.write_atomically(self.target / name, content, sync=False)
            files.sync_file(self.target / name)
        self._copied[base] = segment

    def _copy_bytes(self, segment: LogSegment) -> None:
        """Copies the batches from the open file: retention may have renamed it."""
        path = self.target / file_name(segment.base_offset, LOG_SUFFIX)
        position, size_bytes = 0, segment.size_bytes
        try:
            if self._has_copied(segment, path):
                # The earlier process may have ended before its sync.
                files.sync_file(path)
                return
            with open(path, "wb") as out:
                while position < size_bytes and not self.cancelled:
                    count = os.sendfile(
                        out.fileno(),
                        segment.file().fileno(),
                        position,
                        min(self._pace.piece_bytes(), size_bytes - position),
                    )
                    if count == 0:
                        raise DiskError(f"{segment.log_path} ends before {size_bytes}")
                    position += count
                    self._keep_pace(count)
        except OSError as error:
            raise DiskError(f"cannot copy to {path}: {error.strerror}") from error
        files.sync_file(path)

    def _keep_pace(self, count: int) -> None:
        self._pace.copied(count)
        while pause_s := self._pace.pause_s():
            if self._cancelling.wait(pause_s):
                return

    def _has_copied(self, segment: LogSegment, path: Path) -> bool:
        """Returns whether an earlier attempt copied the batches of this segment, byte for byte."""
        size_bytes = segment.size_bytes
        if not path.exists() or path.stat().st_size != size_bytes:
            return False
        with open(path, "rb") as earlier:
            for position in range(0, size_bytes, COMPARED_BYTES):
                count = min(COMPARED_BYTES, size_bytes - position)
                original = os.pread(segment.file().fileno(), count, position)
                if self.cancelled or original != earlier.read(count):
                    return False
        return True

    def open_copy(self, end_offset: int) -> None:
        """Step 3; `end_offset` is the end of what was copied. Raises DiskError."""
        opened = LocalLog.open(
            self.target,
            topic_partition=self.source.topic_partition,
            topic_id=self.source.topic_id,
            # Cut where the original is cut, and nowhere else.
            config=replace(
                self.source.config,
                segment_bytes=2**31 - 1,
                segment_ms=LONG_MAX,
                segment_jitter_ms=0,
            ),
            clock=self._clock,
            recovery_point=end_offset,
            log_start_offset=0 if self._copied else end_offset,
            clean_shutdown=True,
        )
        if opened.end_offset != end_offset or opened.recovery_report.problems:
            raise DiskError(
                f"{self.target}: the copy ends at {opened.end_offset}, not {end_offset}"
            )
        opened.roll()
        self._copy = opened

    # --- 4: the tail, piece by piece ----------------------------------------------------------

    def next_piece(self, bytes_max: int = PIECE_BYTES) -> FileRange | None:
        """On the loop: the next piece the copy lacks; None if it has all. Raises SourceChanged.

        Rolls the copy where the original rolled.
        """
        source, copy = self.source, self.copy
        if source.cut_count != self._cut_count:
            raise SourceChanged(f"{source.topic_partition} was cut while it was copied")
        while (offset := copy.end_offset) < source.end_offset:
            segment = next((s for s in reversed(source.segments) if s.base_offset <= offset), None)
            if segment is None:
                raise SourceChanged(f"{source.topic_partition} now begins behind the copy")
            known = self._copied.setdefault(segment.base_offset, segment)
            if known is not segment:
                raise SourceChanged(f"{segment.log_path} has been replaced")
            if segment.base_offset == offset:
                copy.roll()
            try:
                found = source.read(offset, bytes_max=bytes_max)
            except OffsetOutOfRange as error:
                raise SourceChanged(str(error)) from error
            return found.range
        return None

    def append(self, piece: FileRange) -> None:
        """In a worker, or on the loop when the copy is not in use elsewhere."""
        records = memoryview(bytearray(piece.read()))
        self.copy.append(records, leader_epoch=NO_EPOCH, origin=AppendOrigin.REPLICATION)

    def sync(self) -> None:
        """Makes the copy durable. Raises DiskError."""
        self.copy.flush()
        self.copy.leader_epochs.write(sync=True)

    # --- 5: the swap, on the loop -------------------------------------------------------------

    def take_over(self, log_start_offset: int, *, is_synced: bool = True) -> LocalLog:
        """Copies the last batches and makes the copy the log; returns it.

        If the copy is not `is_synced`, this waits for its disk first, else for no disk. The owner
        must use the copy at once, without an `await` in between. Raises SourceChanged, DiskError:
        the original is still the log.
        """
        source, copy = self.source, self.copy
        while (piece := self.next_piece()) is not None:
            self.append(piece)
        for segment in source.segments:
            if self._copied.get(segment.base_offset, segment) is not segment:
                raise SourceChanged(f"{segment.log_path} has been replaced")
        copy.log_start_offset = log_start_offset
        copy.update_config(source.config)
        copy.on_segment_closed = source.on_segment_closed
        if not is_synced:
            copy.flush()
        content = f"{_MARK_VERSION}\n{log_start_offset}\n".encode()
        files.write_atomically(self.target / MOVED_MARK, content, sync=False)
        return copy

    def abandon(self) -> None:
        """Removes the copy. Blocks."""
        if self._copy is not None:
            for segment in self._copy.segments:
                segment.close()
        # A topic that was deleted and created again may have its log there.
        if is_unfinished(self.target):
            remove_copy(self.target)


# --- marks at a start ----------------------------------------------------------------------------


def is_unfinished(folder: Path) -> bool:
    """Returns whether a partition's folder is a copy that never took over."""
    return files.is_there(folder, MOVING_MARK) and not has_taken_over(folder)


def remove_copy(folder: Path) -> None:
    """Removes an unfinished copy. Blocks; a folder that is gone is fine."""
    if folder.exists():
        aside = folder.with_name(put_aside(folder.name, DELETE_SUFFIX))
        files.rename(folder, aside)
        files.remove_tree(aside)


def has_taken_over(folder: Path) -> bool:
    """Whether a folder is a copy that took over; one of the same name elsewhere is the old log."""
    return files.is_there(folder, MOVED_MARK)


def marked_log_start(folder: Path) -> int:
    """Returns the log start at the time of the move, 0 without a mark."""
    if not has_taken_over(folder):
        return 0
    lines = (checkpoint.read_text(folder / MOVED_MARK) or "").splitlines()
    return int(lines[1]) if len(lines) > 1 and lines[1].isdigit() else 0


def remove_marks(folder: Path) -> None:
    """Step 7, after the checkpoints have the log here. Blocks; a folder without marks is fine."""
    if (folder / MOVED_MARK).exists():
        # `moving` first: alone it would mark the copy as unfinished.
        files.remove(folder / MOVING_MARK)
        files.sync_directory(folder)
        files.remove(folder / MOVED_MARK)
        files.sync_directory(folder)

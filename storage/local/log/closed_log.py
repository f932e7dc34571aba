"""The state of each log at a clean stop, so that the next start need not recover it from files.

    <log.dir>/logs-at-clean-shutdown
        {"magic": "strandline-closed-logs", "version": 1, "crc32c": of the text of the rows}
        [[...], [...], ...]                                    one row for each log, see ClosedLog

Written after every log of the folder is closed and synced, just before the clean-shutdown mark.
A start reads it only if it finds that mark, and removes both before anything else.

A row holds the inode, size and change times of the folder and of each file that it describes. If
one of them differs, the log is opened and checked as if it had no row. The comparison takes seven
stat calls in place of a listing, five file reads and the checksums of batches: a tenth of the time,
and one disk read in place of thousands.

A log gets no row if it has files that wait to be deleted, marks of a move, aborted transactions
in its last segment, or more segments than ROW_SEGMENTS_MAX.
"""

from __future__ import annotations

import io
import json
import logging
import operator
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import CorruptFile, DiskError, UnsupportedFormat
from strandline.storage.files import FileMark, OpenFile
from strandline.storage.local.formats import checkpoint, headed_file
from strandline.storage.local.formats.epoch_cache import LeaderEpochCache
from strandline.storage.local.formats.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    file_name,
)
from strandline.storage.local.formats.producer_state import ProducerState
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log.recovery import LateOpener, LoadedLog
from strandline.storage.local.segment import partition_folder as folder
from strandline.storage.local.segment.producer_snapshots import ProducerSnapshots
from strandline.storage.local.segment.recovery_report import RecoveryReport
from strandline.storage.local.segment.segment import LogSegment, SegmentEnd
from strandline.storage.model import EpochStart

log = logging.getLogger(__name__)

FILE_NAME = "logs-at-clean-shutdown"
MAGIC = "strandline-closed-logs"
VERSION = 1

# A larger index is read from its file; a row stays small.
ROW_INDEX_BYTES_MAX = 512
ROW_SEGMENTS_MAX = 1000
ROW_EPOCHS_MAX = 1000
# Some 100,000 logs. Logs beyond it are opened without a row.
FILE_BYTES_MAX = 64 * 1024 * 1024

# The files of a partition's folder that a row describes, beside the folder and the last segment.
_SMALL_FILES = (checkpoint.LEADER_EPOCHS, checkpoint.PARTITION_METADATA)


class ClosedLog(NamedTuple):
    """One row: the state of a log after its clean close."""

    folder: str
    topic_id: str
    # Marks of the folder, of _SMALL_FILES, and of the last segment's indexes and log, in order.
    marks: Sequence[Sequence[int]]
    # Of all segments, in order.
    bases: Sequence[int]
    last_segment: Sequence[int]
    epochs: Sequence[Sequence[int]]
    # False: the newest snapshot has no producer.
    has_producers: bool
    # In hexadecimal digits; None if the file must be read.
    offset_index: str | None
    time_index: str | None

    def is_unchanged(self, directory: str) -> bool:
        """Returns whether the folder and its files, except the log file, are unchanged."""
        try:
            found = _marks(directory, self.bases[-1])
        except DiskError:
            return False
        return all(map(operator.eq, map(list, found), self.marks))


def _marks(directory: str, last_base: int) -> list[FileMark]:
    """Returns the file marks for a row, except that of the last segment's log. Raises DiskError."""
    stem = file_name(last_base, "")
    names = (*_SMALL_FILES, stem + INDEX_SUFFIX, stem + TIME_INDEX_SUFFIX)
    return [files.mark(directory), *(files.mark(f"{directory}/{name}") for name in names)]


# --- at the stop -----------------------------------------------------------------------------


def close(opened: LocalLog) -> ClosedLog | DiskError | None:
    """Closes a log; its row, None if it gets none, or the error of an unclean close. Blocks."""
    try:
        opened.close()
        return describe(opened)
    except DiskError as error:
        return error
    except MemoryError:
        return DiskError(f"{opened.topic_partition}: no memory to close it")


def describe(closed: LocalLog) -> ClosedLog | None:
    """Returns the row of a log that was just closed; None if it gets none. Blocks.

    Removes the producer snapshots that the next start would remove.
    """
    try:
        return _describe(closed)
    except DiskError as error:
        log.debug(
            "log will be looked at by the next start",
            extra={"fields": {"folder": str(closed.directory), "reason": str(error)}},
        )
        return None


def _describe(closed: LocalLog) -> ClosedLog | None:
    directory, segments = closed.directory, closed.segments
    names = folder.file_names(directory)
    content = folder.ordinary_content(names)
    bases = [segment.base_offset for segment in segments]
    epochs = [[start.epoch, start.start_offset] for start in closed.leader_epochs.starts]
    if (
        content is None
        or list(content.segment_bases) != bases
        or content.unindexed_bases
        or bases[-1] in content.transactional_bases
        or closed.recovery_point != closed.end_offset
        or closed.leader_epochs.is_unwritten
        or len(bases) > ROW_SEGMENTS_MAX
        or len(epochs) > ROW_EPOCHS_MAX
    ):
        return None
    snapshots = ProducerSnapshots(directory, RecoveryReport(clean_shutdown=True))
    snapshots.offsets = set(content.snapshot_offsets)
    snapshots.drop_strays(segments)
    if closed.end_offset not in snapshots.offsets:
        return None
    text, last = str(directory), bases[-1]
    marks = [*_marks(text, last), files.mark(f"{text}/{file_name(last, LOG_SUFFIX)}")]
    end = closed.active_segment.end()
    if marks[-1].size_bytes != end.size_bytes:
        return None
    return ClosedLog(
        folder=directory.name,
        topic_id=checkpoint.encode_id(closed.topic_id),
        marks=marks,
        bases=bases,
        last_segment=end,
        epochs=epochs,
        has_producers=bool(closed.producers.entries),
        offset_index=_index_text(f"{text}/{file_name(last, INDEX_SUFFIX)}", marks[-3]),
        time_index=_index_text(f"{text}/{file_name(last, TIME_INDEX_SUFFIX)}", marks[-2]),
    )


def _index_text(path: str, mark: FileMark) -> str | None:
    if mark.size_bytes > ROW_INDEX_BYTES_MAX:
        return None
    return files.read_whole(path).hex() if mark.size_bytes else ""


def write_rows(directory: Path, rows: Iterable[ClosedLog]) -> None:
    """Replaces the file in a log folder and syncs it. Raises DiskError."""
    body = bytearray()
    for row in rows:
        body += json.dumps(row, separators=(",", ":")).encode() + b"\n"
        if len(body) > FILE_BYTES_MAX:
            break
    headed_file.write(directory / FILE_NAME, body, magic=MAGIC, version=VERSION)


# --- at the start ----------------------------------------------------------------------------


def read_rows(directory: Path) -> dict[str, ClosedLog]:
    """Returns the rows of logs with unchanged files, by folder name; none if the file is damaged.

    Raises DiskError.
    """
    rows: dict[str, ClosedLog] = {}
    try:
        body = headed_file.read(directory / FILE_NAME, magic=MAGIC, version=VERSION)
        for line in io.BytesIO(body or b""):
            row = ClosedLog(*json.loads(line))
            if row.is_unchanged(f"{directory}/{row.folder}"):
                # The other marks are checked, and are most of the size of a row.
                rows[row.folder] = row._replace(marks=row.marks[-3:])
    except (CorruptFile, UnsupportedFormat, ValueError, TypeError) as error:
        log.warning(
            "logs are checked one by one",
            extra={"fields": {"folder": str(directory), "reason": f"{FILE_NAME}: {error}"}},
        )
        return {}
    return rows


def resume_log(
    directory: Path, row: ClosedLog, *, config: LogConfig, now_ms: int
) -> LoadedLog | None:
    """Returns the log opened from its row of `read_rows`; None if a file has changed.

    Opens the log file, and reads the snapshot if there are producers.
    """
    try:
        return _resume(directory, row, config, now_ms)
    except (DiskError, CorruptFile, UnsupportedFormat) as error:
        log.debug(
            "closed log is looked at",
            extra={"fields": {"folder": str(directory), "reason": str(error)}},
        )
        return None


def _resume(directory: Path, row: ClosedLog, config: LogConfig, now_ms: int) -> LoadedLog | None:
    text, end = str(directory), SegmentEnd(*row.last_segment)
    opened = OpenFile(f"{text}/{file_name(end.base_offset, LOG_SUFFIX)}", writable=True)
    if opened.mark() != tuple(row.marks[-1]):
        return None
    report = RecoveryReport(clean_shutdown=True, was_resumed=True)
    end = end._replace(created_ms=min(now_ms, end.created_ms))
    active = LogSegment.opened(directory, end, file=opened, active=True)
    for index, content, mark in (
        (active.offset_index, row.offset_index, row.marks[-3]),
        (active.time_index, row.time_index, row.marks[-2]),
    ):
        if content is None:
            if index.read_file() != mark[1]:
                return None
            index.resume()
        elif content:
            index.resume_with(bytes.fromhex(content))
    active.resume_indexes(config)
    look = LateOpener(directory, config, now_ms, report).open
    segments = (
        *(LogSegment(directory, *pair, look=look) for pair in pairwise(row.bases)),
        active,
    )
    producers = ProducerState()
    if row.has_producers:
        name = file_name(end.end_offset, SNAPSHOT_SUFFIX)
        producers.load_snapshot(files.read_whole(f"{text}/{name}"))
    epochs = LeaderEpochCache(
        f"{text}/{checkpoint.LEADER_EPOCHS}", [EpochStart(*start) for start in row.epochs]
    )
    return LoadedLog(segments=segments, leader_epochs=epochs, producers=producers, report=report)

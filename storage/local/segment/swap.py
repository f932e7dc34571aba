"""Replaces the sources of a cleaning by the cleaned segment.

    1 (cleaning)   .cleaned files, whole and synced               before 3: a start undoes it
    2 in a worker  index files .cleaned -> .swap
    3 in a worker  log .cleaned -> .swap, folder synced           from here on: a start completes it
    4 on the loop  files of the sources -> .deleted
    5 on the loop  .swap -> final names, the log last
    6 on the loop  the list of segments
    7 in a worker  folder synced
    8 in a worker  cleaner-offset-checkpoint, after the last group

A start after a crash removes `.cleaned` files and the `.swap` files beside them (up to 2), and
completes the swap of a `.swap` without them (from 3 on): see partition_folder.py. 4 to 6 are one
step of the event loop, so no reader sees half of it. A reader keeps its range of an old file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strandline.storage import files
from strandline.storage.crash_points import (
    CLEAN_AFTER_COMMIT,
    CLEAN_AFTER_INDEXES,
    CLEAN_AFTER_WRITE,
    crash_point,
)
from strandline.storage.files import OpenFile
from strandline.storage.local.formats.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from strandline.storage.local.segment import partition_folder as folder
from strandline.storage.local.segment.cleaned_segment import CleanedFacts, cleaned_path
from strandline.storage.local.segment.open_files import OPEN_SEALED
from strandline.storage.local.segment.partition_folder import CLEANED_SUFFIX, SWAP_SUFFIX
from strandline.storage.local.segment.segment import LogSegment, SegmentEnd

_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def commit_swap(directory: Path, facts: CleanedFacts) -> OpenFile:
    """Steps 2 and 3; the log file of the new segment, open. Blocks. Raises DiskError."""
    base_offset = facts.base_offset
    crash_point(CLEAN_AFTER_WRITE)
    for suffix in _INDEX_SUFFIXES:
        source = cleaned_path(directory, base_offset, suffix)
        if source.exists():
            files.rename(source, _swap_path(directory, base_offset, suffix), sync=False)  # 2
    crash_point(CLEAN_AFTER_INDEXES)
    # Opened before the rename: with no descriptor left the old segments simply stay.
    opened = OpenFile(cleaned_path(directory, base_offset, LOG_SUFFIX), writable=True)
    files.rename(opened.path, _swap_path(directory, base_offset, LOG_SUFFIX), sync=True)  # 3
    opened.path = directory / file_name(base_offset, LOG_SUFFIX)
    crash_point(CLEAN_AFTER_COMMIT)
    return opened


def name_finally(directory: Path, base_offset: int) -> None:
    """Step 5. Raises DiskError."""
    for suffix in (*_INDEX_SUFFIXES, LOG_SUFFIX):
        source = _swap_path(directory, base_offset, suffix)
        if source.exists():
            files.rename(source, directory / file_name(base_offset, suffix), sync=False)


def replacement(
    directory: Path, opened: OpenFile, facts: CleanedFacts, sources: Sequence[LogSegment]
) -> LogSegment:
    """The new segment, after its files have their final names. Raises CorruptFile, DiskError."""
    end = SegmentEnd(
        base_offset=facts.base_offset,
        end_offset=sources[-1].end_offset,
        size_bytes=facts.size_bytes,
        created_ms=min(source.created_ms for source in sources),
        max_timestamp_ms=facts.max_timestamp_ms,
        max_timestamp_offset=facts.max_timestamp_offset,
    )
    segment = LogSegment.opened(directory, end, file=opened, active=False)
    segment.txn_index.load()
    segment.is_durable = True
    OPEN_SEALED.add(segment)
    return segment


def _swap_path(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / (file_name(base_offset, suffix) + SWAP_SUFFIX)


def withdraw(directory: Path, base_offset: int) -> None:
    """Undoes steps 2 and 3: the sources changed meanwhile. Blocks. Raises DiskError."""
    # The log last: the next start swaps in a log without indexes, and rebuilds them. Indexes
    # without the log would replace those of the old one.
    for suffix in (*_INDEX_SUFFIXES, LOG_SUFFIX):
        files.remove(_swap_path(directory, base_offset, suffix))
    files.sync_directory(directory)


def clear_unfinished(directory: Path) -> None:
    """Removes the files of an aborted cleaning. Blocks. Raises DiskError."""
    if not directory.is_dir():
        return
    names = folder.file_names(directory)
    committed = {name[:20] for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)}
    for name in names:
        if name.endswith(SWAP_SUFFIX) and name[:20] not in committed:
            files.remove(directory / name)
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            files.remove(directory / name)

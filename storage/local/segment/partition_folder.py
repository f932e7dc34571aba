"""The files of a partition's folder, and their clean-up before the log is opened.

    <20 digits>.log .index .timeindex .txnindex .snapshot     a segment, see segment.py
    *.deleted                                                 removed segments, not yet unlinked
    *.tmp                                                     an unfinished replacement of a file
    *.cleaned                                                 an unfinished compaction
    *.swap                                                    a finished one: its files replace the
                                                              sources, unless a .cleaned has the
                                                              same or a lower base offset
    leader-epoch-checkpoint, partition.metadata               see checkpoint.py

Other files stay, as they are not the broker's. swap.py explains `.cleaned` and `.swap`, which a
data folder of Apache Kafka may have too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import CorruptRecords, DiskError
from strandline.storage.files import TEMPORARY_SUFFIX, OpenFile
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.formats.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from strandline.storage.local.segment.trash import DELETED_SUFFIX
from strandline.storage.records.batch.any_batch import walk_file

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

_NAME = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.cleaned|\.swap)?"
)
_CHECKPOINTS = frozenset((checkpoint.LEADER_EPOCHS, checkpoint.PARTITION_METADATA))
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContent:
    """Base offsets of the segments, sorted, and offsets of the producer snapshots."""

    segment_bases: tuple[int, ...]
    snapshot_offsets: frozenset[int]
    # Segments that lack the offset index or the time index.
    unindexed_bases: frozenset[int]
    # Segments with a transaction index.
    transactional_bases: frozenset[int]
    files_removed: int


def file_names(folder: Path) -> list[str]:
    """Names of the plain files in a folder, sorted. Raises DiskError."""
    try:
        # scandir gets the type from the listing; iterdir would need a stat call for each name.
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())
    except OSError as error:
        raise DiskError(f"cannot list {folder}: {error.strerror}") from error


def tidy(folder: Path) -> FolderContent:
    """Removes unfinished files of a stop, and lists the others. Raises DiskError."""
    names = file_names(folder)
    leftovers = {
        name for name in names if name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX, CLEANED_SUFFIX))
    }
    leftovers |= _unfinished_swaps(names)
    for name in leftovers:
        files.remove(folder / name)
    removed = len(leftovers)
    if any(name.endswith(SWAP_SUFFIX) for name in set(names) - leftovers):
        removed += _complete_swaps(folder)
        names = file_names(folder)
    offsets = _offsets_by_suffix(names)
    for suffix in _INDEX_SUFFIXES:
        for base_offset in offsets[suffix] - offsets[LOG_SUFFIX]:
            files.remove(folder / file_name(base_offset, suffix))
            removed += 1
    return _content(offsets, removed)


def ordinary_content(names: Sequence[str]) -> FolderContent | None:
    """Returns the content of a folder with these names, if they are only files of a log at rest.

    None if `tidy` would have work, or the folder has unknown files.
    """
    if any(not _NAME.fullmatch(name) and name not in _CHECKPOINTS for name in names):
        return None
    offsets = _offsets_by_suffix(names)
    count = sum(map(len, offsets.values()))
    if count != sum(name not in _CHECKPOINTS for name in names):
        return None
    if any(offsets[suffix] - offsets[LOG_SUFFIX] for suffix in _INDEX_SUFFIXES):
        return None
    return _content(offsets, 0) if offsets[LOG_SUFFIX] else None


def _content(offsets: dict[str, set[int]], removed: int) -> FolderContent:
    bases = offsets[LOG_SUFFIX]
    return FolderContent(
        segment_bases=tuple(sorted(bases)),
        snapshot_offsets=frozenset(offsets[SNAPSHOT_SUFFIX]),
        unindexed_bases=frozenset(bases - (offsets[INDEX_SUFFIX] & offsets[TIME_INDEX_SUFFIX])),
        transactional_bases=frozenset(offsets[TXN_INDEX_SUFFIX] & bases),
        files_removed=removed,
    )


def segment_bases(folder: Path) -> list[int]:
    """Returns the base offsets of the segments in a folder, sorted. Raises DiskError."""
    return sorted(_offsets_by_suffix(file_names(folder))[LOG_SUFFIX])


def snapshot_offsets(folder: Path) -> set[int]:
    """Returns the offsets of the producer snapshots in a folder. Raises DiskError."""
    return _offsets_by_suffix(file_names(folder))[SNAPSHOT_SUFFIX]


def _offsets_by_suffix(names: Sequence[str]) -> dict[str, set[int]]:
    offsets: dict[str, set[int]] = {
        suffix: set() for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)
    }
    for name in names:
        match = _NAME.fullmatch(name)
        if match and not match[3]:
            offsets[match[2]].add(int(match[1]))
    return offsets


def _complete_swaps(folder: Path) -> int:
    """Replaces segments by their compacted ones; returns the number of replaced files."""
    names = file_names(folder)
    swapped = [match for name in names if (match := _NAME.fullmatch(name)) and match[3]]
    removed = 0
    for match in swapped:
        if match[2] != LOG_SUFFIX:
            continue
        base_offset = int(match[1])
        end_offset = _end_offset(folder / match[0], base_offset)
        # The log of the first source may be gone while one of its indexes remains.
        for covered in _offsets_by_suffix(names)[LOG_SUFFIX] | {base_offset}:
            if base_offset <= covered < end_offset:
                for suffix in SEGMENT_SUFFIXES:
                    files.remove(folder / file_name(covered, suffix))
                    removed += 1
    # The log last: while its .swap exists, a start after a crash repeats the replacement.
    for match in sorted(swapped, key=lambda match: match[2] == LOG_SUFFIX):
        files.rename(folder / match[0], folder / match[0].removesuffix(SWAP_SUFFIX))
    return removed


def _unfinished_swaps(names: Sequence[str]) -> set[str]:
    """`.swap` files to ignore: a `.cleaned` file has the same or a lower base offset.

    That cleaning was not finished. Kafka's LogLoader has the same rule.
    """
    if not any(name.endswith(CLEANED_SUFFIX) for name in names):
        return set()
    cleaned = [match for name in names if (match := _NAME.fullmatch(name)) and match[3]]
    bases = [int(match[1]) for match in cleaned if match[3] == CLEANED_SUFFIX]
    if not bases:
        return set()
    swaps = [match for match in cleaned if match[3] == SWAP_SUFFIX]
    return {match[0] for match in swaps if int(match[1]) >= min(bases)}


def _end_offset(path: Path, base_offset: int) -> int:
    file = OpenFile(path, writable=False)
    end_offset = base_offset + 1
    try:
        for batch in walk_file(file.read_at, 0, file.size_bytes()):
            end_offset = batch.header.next_offset
    except CorruptRecords:
        pass  # Recovery reads the same bytes again and reports them.
    finally:
        file.close()
    return end_offset

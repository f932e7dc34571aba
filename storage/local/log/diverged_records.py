"""Keeps diverged records of a log while the log is reset to the end of its archive.

    <topic>-<partition>/set-aside/<20-digit offset>.log    segments, from the first batch that is
                                                           set aside; the first one is a copy cut
                                                           there, the others are links
    <topic>-<partition>/set-aside/note                     JSON, with a checksum; without it the
                                                           folder means nothing and is removed

    1a flush the log   1b copy and link   1c sync them   1d write the note  nothing is changed yet
    ... the log is reset, and the records are re-appended at its new end ...
    7a remove the note   7b remove the folder

The note holds the offsets, the leader epoch of the first one, and its new offset once that is
known. No record is appended to these segments.
`storage/tiering/partition/lone_disk/divergence.py` decides, and has steps 2 to 6.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import CorruptFile, CorruptRecords, DiskError
from strandline.storage.files import OpenFile
from strandline.storage.local.formats import headed_file
from strandline.storage.local.formats.names import LOG_SUFFIX, file_name
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.segment.partition_folder import segment_bases
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import Epoch, Offset
from strandline.storage.records.batch.any_batch import walk_file

FOLDER = "set-aside"
NOTE = "note"
MAGIC = "strandline-set-aside"
VERSION = 1
# The new offset of the first record, while it is unknown.
NOT_KNOWN = -1
# The first segment is copied up to the cut in pieces of this size.
COPY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Content of the note: records of [start_offset, end_offset), begun under `leader_epoch`."""

    start_offset: Offset
    end_offset: Offset
    leader_epoch: Epoch
    target_offset: Offset = NOT_KNOWN


def folder_of(log: LocalLog) -> Path:
    """Returns the folder with the set-aside records of this log."""
    return log.directory / FOLDER


def is_any(directory: Path) -> bool:
    """Returns whether records of the log in this folder are set aside."""
    return files.is_there(directory, f"{FOLDER}/{NOTE}")


def set_aside(log: LocalLog, note: SetAside, segments: Sequence[LogSegment]) -> None:
    """Steps 1a to 1d for `segments`: all that end above the note's start offset. Blocks.

    No appends may run meanwhile. Raises DiskError: then no records are set aside.
    """
    log.flush()  # 1a
    folder = folder_of(log)
    files.remove_tree(folder)
    files.make_directory(folder)
    for segment in segments:  # 1b
        target = folder / file_name(max(segment.base_offset, note.start_offset), LOG_SUFFIX)
        if segment.base_offset > note.start_offset:
            files.link(segment.log_path, target)
        else:
            # Truncating the log cuts this file in place, and a link with it.
            _copy_from(segment, note.start_offset, target)
    files.sync_directory(folder)  # 1c
    write_note(log, note)  # 1d


def _copy_from(segment: LogSegment, offset: Offset, target: Path) -> None:
    start = segment.locate(offset)
    position = segment.size_bytes if start is None else start.position
    copy = OpenFile(target, writable=True, create=True)
    try:
        while position < segment.size_bytes:
            piece = segment.file().read_at(position, min(COPY_BYTES, segment.size_bytes - position))
            if not piece:
                raise DiskError(f"{segment.log_path} ends before {segment.size_bytes}")
            copy.append(piece)
            position += len(piece)
        copy.sync()
    finally:
        copy.close()


def write_note(log: LocalLog, note: SetAside) -> None:
    """Replaces the note. Blocks. Raises DiskError."""
    text = json.dumps(asdict(note))
    path = folder_of(log) / NOTE
    headed_file.write(path, text.encode(), magic=MAGIC, version=VERSION, end=b"\n")


def read_note(log: LocalLog) -> SetAside | None:
    """Returns the note; None if no records are set aside. Blocks.

    Raises CorruptFile, UnsupportedFormat, DiskError.
    """
    path = folder_of(log) / NOTE
    text = headed_file.read(path, magic=MAGIC, version=VERSION, end=b"\n")
    if text is None:
        return None
    try:
        return SetAside(**{name: int(value) for name, value in json.loads(text).items()})
    except (ValueError, AttributeError, TypeError) as error:
        raise CorruptFile(f"{path}: {error}") from error


def read_pieces(log: LocalLog, note: SetAside, *, bytes_max: int) -> Iterator[bytearray]:
    """The set-aside records, in order, in pieces of whole batches up to `bytes_max`, or one batch.

    Blocks. Raises CorruptFile, DiskError.
    """
    folder = folder_of(log)
    for base_offset in segment_bases(folder):
        segment = OpenFile(folder / file_name(base_offset, LOG_SUFFIX), writable=False)
        try:
            begin = end = 0
            for batch in walk_file(segment.read_at, 0, segment.size_bytes(), verify_crc=True):
                if batch.header.base_offset >= note.end_offset:
                    break
                if end > begin and batch.end_position - begin > bytes_max:
                    yield bytearray(segment.read_at(begin, end - begin))
                    begin = end
                end = batch.end_position
            if end > begin:
                yield bytearray(segment.read_at(begin, end - begin))
        except CorruptRecords as error:
            raise CorruptFile(f"{segment.path}: {error}") from error
        finally:
            segment.close()


def remove(log: LocalLog) -> None:
    """Steps 7a and 7b. Blocks. Raises DiskError."""
    folder = folder_of(log)
    files.remove(folder / NOTE)  # 7a
    files.sync_directory(folder)
    files.remove_tree(folder)  # 7b

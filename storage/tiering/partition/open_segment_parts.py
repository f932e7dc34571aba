"""Uploaded parts of the log behind its archive: comparing, reading, checking and appending them."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.storage.errors import ObjectCorrupt, ObjectNotFound
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import Offset, Position
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.remote.object_store.interface import ObjectStore, checksum


def segments_from(local: LocalLog, base_offset: Offset) -> tuple[LogSegment, ...]:
    """Returns the segment that begins at `base_offset` and those behind it; none if none does."""
    found = tuple(s for s in local.segments if s.base_offset >= base_offset)
    return found if found and found[0].base_offset == base_offset else ()


def read_bytes(segments: Sequence[LogSegment], position: Position, size_bytes: int) -> bytes:
    """Returns bytes of the segments as if they were one file, fewer at their end. Blocks."""
    found: list[bytes] = []
    for segment in segments:
        file_bytes = segment.size_bytes
        if position < file_bytes and size_bytes > 0:
            found.append(segment.file().read_at(position, min(size_bytes, file_bytes - position)))
            size_bytes -= len(found[-1])
        position = max(0, position - file_bytes)
    return b"".join(found)


def is_prefix_of(tail: Sequence[TailPart], local: LocalLog) -> bool:
    """Whether the log from the parts' begin on has their bytes; reads its files. Blocks."""
    if not tail:
        return True
    segments = segments_from(local, tail[0].base_offset)
    return all(
        checksum(read_bytes(segments, part.position, part.size_bytes)) == part.crc32c
        for part in tail
    )


def read_part(store: ObjectStore, part: TailPart) -> bytearray:
    """Returns the batches of a part. Raises ObjectCorrupt, and the store's errors."""
    content = store.get(part.key)
    if len(content) != part.size_bytes or checksum(content) != part.crc32c:
        raise ObjectCorrupt(part.key, "get", "is not what the manifest says")
    return bytearray(content)


def fault_of_part(store: ObjectStore, part: TailPart) -> str:
    """The fault of a part that a HEAD shows; "" if there is none. Raises the store's errors.

    The part is read where the store keeps no checksum of it. Only reading finds damage in the store
    that leaves the stated checksum unchanged.
    """
    try:
        info = store.head(part.key)
        if info.crc32c is None:
            read_part(store, part)
    except ObjectNotFound:
        return "is missing"
    except ObjectCorrupt as error:
        return str(error)
    if info.size_bytes != part.size_bytes or info.stated_crc32c not in (None, part.crc32c):
        return "is not what the manifest says"
    return ""


def append_part(local: LocalLog, content: bytearray) -> None:
    """Appends the batches of a part that the log lacks, with their offsets and epochs.

    The bucket has only records below the high watermark. Raises CorruptRecords, DiskError.
    """
    for batch in walk(content):
        if batch.header.base_offset >= local.end_offset:
            rest = memoryview(content)[batch.position :]
            local.append(rest, leader_epoch=-1, origin=AppendOrigin.REPLICATION)
            local.advance_high_watermark(local.end_offset)
            return


def usable_tail(manifest: Manifest) -> tuple[TailPart, ...]:
    """Returns the parts with which a log continues that restarts behind the archive."""
    tail = manifest.tail
    is_needed = bool(tail) and tail[-1].end_offset > manifest.log_start_offset
    # While no segment is archived, the log start may lie inside the open segment.
    archive_end = 0 if manifest.is_empty else manifest.end_offset
    return tail if is_needed and tail[0].base_offset >= archive_end else ()

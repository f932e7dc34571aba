"""Uploaded parts of the log behind its archive: comparing, reading, checking and appending them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.storage.errors import ObjectCorrupt, ObjectNotFound
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import Offset, Position
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.remote.object_store.interface import ObjectStore, checksum
from strandline.storage.tiering.log.segment_views import position_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRun:
    """The log from an offset on: some segments as if they were one file, which begins `position`
    bytes inside the first of them. No record of an earlier offset lies in it.
    """

    base_offset: Offset
    segments: tuple[LogSegment, ...]
    position: Position

    def read(self, position: Position, size_bytes: int) -> bytes:
        """Returns bytes of the run, fewer at its end. Blocks."""
        found: list[bytes] = []
        position += self.position
        for segment in self.segments:
            left = min(size_bytes, segment.size_bytes - position)
            if left > 0:
                found.append(segment.file().read_at(position, left))
                size_bytes -= left
            position = max(0, position - segment.size_bytes)
        return b"".join(found)

    def begins_with(self, parts: Sequence[TailPart]) -> bool:
        """Whether the run begins with the bytes of the parts. Blocks."""
        if parts and parts[0].base_offset != self.base_offset:
            return False
        return all(
            checksum(self.read(part.position, part.size_bytes)) == part.crc32c for part in parts
        )


def log_from(local: LocalLog, offset: Offset) -> LogRun:
    """Returns the local log from `offset` on. Raises CorruptFile."""
    segments = tuple(
        s for s in local.segments if s.is_active or (s.size_bytes and s.end_offset > offset)
    )
    return LogRun(
        base_offset=max(offset, segments[0].base_offset),
        segments=segments,
        position=position_of(segments[0], offset),
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

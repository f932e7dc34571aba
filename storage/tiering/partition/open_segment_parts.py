"""Archived parts of the open segment: comparing, reading, checking and appending them."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.storage.errors import ObjectCorrupt, ObjectNotFound
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.remote.object_store.interface import ObjectStore, checksum


def is_prefix_of(tail: Sequence[TailPart], local: LocalLog) -> bool:
    """Whether the open segment begins with the bytes of the parts; reads its file. Blocks."""
    segment = local.active_segment
    if not tail:
        return True
    if tail[0].base_offset != segment.base_offset or tail[-1].end_position > segment.size_bytes:
        return False
    return all(
        checksum(segment.file().read_at(part.position, part.size_bytes)) == part.crc32c
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

    Raises CorruptRecords, DiskError.
    """
    for batch in walk(content):
        if batch.header.base_offset >= local.end_offset:
            rest = memoryview(content)[batch.position :]
            local.append(rest, leader_epoch=-1, origin=AppendOrigin.REPLICATION)
            return


def usable_tail(manifest: Manifest) -> tuple[TailPart, ...]:
    """Returns the parts with which a log continues that restarts behind the archive."""
    tail = manifest.tail
    is_needed = bool(tail) and tail[-1].end_offset > manifest.log_start_offset
    # While no segment is archived, the log start may lie inside the open segment.
    archive_end = 0 if manifest.is_empty else manifest.end_offset
    return tail if is_needed and tail[0].base_offset >= archive_end else ()

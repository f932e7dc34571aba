"""The parts of the open segment that the bucket has: compared, read, checked and appended."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.storage.errors import ObjectCorrupt, ObjectNotFound
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.remote.object_store.interface import ObjectStore, checksum


def is_prefix_of(tail: Sequence[TailPart], local: LocalLog) -> bool:
    """Whether the open segment begins as the parts do; reads what they hold. Blocks."""
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
    """The batches of a part. Raises ObjectCorrupt, and what the store raises."""
    content = store.get(part.key)
    if len(content) != part.size_bytes or checksum(content) != part.crc32c:
        raise ObjectCorrupt(part.key, "get", "is not what the manifest says")
    return bytearray(content)


def fault_of_part(store: ObjectStore, part: TailPart) -> str:
    """What a HEAD tells that is wrong with a part; "" if nothing is. Raises what the store raises.

    A part is read where the store keeps no checksum of it. What was damaged where it lies, and is
    still said to be what it was, only reading finds.
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
    """Appends what the log lacks of a part, with the offsets and epochs it has.

    Raises CorruptRecords, DiskError.
    """
    for batch in walk(content):
        if batch.header.base_offset >= local.end_offset:
            rest = memoryview(content)[batch.position :]
            local.append(rest, leader_epoch=-1, origin=AppendOrigin.REPLICATION)
            return


def usable_tail(manifest: Manifest) -> tuple[TailPart, ...]:
    """The parts that a log which begins behind the archive goes on with."""
    tail = manifest.tail
    is_needed = bool(tail) and tail[-1].end_offset > manifest.log_start_offset
    # Where nothing is archived yet, the log start may lie inside the open segment.
    archive_end = 0 if manifest.is_empty else manifest.end_offset
    return tail if is_needed and tail[0].base_offset >= archive_end else ()

"""Puts what is new in the open segment into the bucket, so that losing the machine loses little.

    1 flush      what is uploaded survives this machine too: the bucket never knows more than it
    2 put        a part with the new batches               crash point tail.after-part
    3 commit     the manifest, by compare-and-swap         crash point tail.after-commit

A crash after 2 leaves an orphan. A new part swallows the parts before it that are not larger than
itself, as long as it stays small enough for memory: so there are few parts however often this is
done, and each byte is uploaded only a few times. Only parts that get smaller and smaller are not
swallowed that way: from `PARTS_MANY` on a part swallows whatever fits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from strandline.storage.clock import Clock
from strandline.storage.crash_points import TAIL_AFTER_PART, crash_point
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    ObjectCorrupt,
    ObjectNotFound,
)
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import Epoch, Offset, TopicIdPartition
from strandline.storage.records.batch.batch import LOG_OVERHEAD, iter_batches
from strandline.storage.remote.keys import new_unique, tail_key
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.remote.object_store.interface import ObjectStore, checksum

# A part is read into memory; a larger one has a single batch.
PART_BYTES_MAX = 16 * 1024 * 1024
# The manifest names every part. Parts that grow as they should are never this many: any two
# neighbours are larger than one may be, which makes 256 of the largest segment, of 2 GiB.
PARTS_MANY = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extent:
    """The open segment at one moment."""

    segment: LogSegment
    size_bytes: int
    end_offset: Offset


class TailCopier:
    """Steps 1 and 2 for any partition; keeps no state about them."""

    def __init__(self, store: ObjectStore, *, executor: Executor, clock: Clock) -> None:
        self._store = store
        self._executor = executor
        self._clock = clock

    async def copy(
        self,
        local: LocalLog,
        tail: Sequence[TailPart],
        partition: TopicIdPartition,
        *,
        leader_epoch: Epoch,
    ) -> tuple[TailPart, ...]:
        """The parts to commit: those of `tail` that stay, and a new one.

        `tail` must be of the segment that is open now, or empty. Raises what disk and store raise.
        """
        segment = local.active_segment
        extent = _Extent(
            segment=segment, size_bytes=segment.size_bytes, end_offset=local.end_offset
        )
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, local.flush)  # 1
        call = partial(self._put, extent, tuple(tail), partition, leader_epoch)
        return await loop.run_in_executor(self._executor, call)  # 2

    def _put(
        self,
        extent: _Extent,
        tail: tuple[TailPart, ...],
        partition: TopicIdPartition,
        leader_epoch: Epoch,
    ) -> tuple[TailPart, ...]:
        position = tail[-1].end_position if tail else 0
        base_offset = tail[-1].end_offset if tail else extent.segment.base_offset
        size_bytes = min(extent.size_bytes - position, PART_BYTES_MAX)
        kept = list(tail)
        is_crowded = len(tail) >= PARTS_MANY
        while kept and _swallows(kept[-1].size_bytes, size_bytes, is_crowded=is_crowded):
            swallowed = kept.pop()
            position, base_offset = swallowed.position, swallowed.base_offset
            size_bytes += swallowed.size_bytes
        # Whatever max.message.bytes allows, a part holds a batch at least.
        _, batch_length = LOG_OVERHEAD.unpack(
            extent.segment.file().read_at(position, LOG_OVERHEAD.size)
        )
        size_bytes = max(size_bytes, LOG_OVERHEAD.size + batch_length)
        content = extent.segment.file().read_at(position, size_bytes)
        end_offset = extent.end_offset
        if position + size_bytes < extent.size_bytes:
            content, end_offset = _whole_batches(content)
        key = tail_key(
            partition, base_offset=base_offset, leader_epoch=leader_epoch, unique=new_unique()
        )
        record_count, has_transactions = _told_by_headers(content)
        self._store.put(key, content)
        crash_point(TAIL_AFTER_PART)
        part = TailPart(
            base_offset=base_offset,
            end_offset=end_offset,
            position=position,
            size_bytes=len(content),
            key=key,
            crc32c=checksum(content),
            uploaded_ms=self._clock.now_ms(),
            record_count=record_count,
            has_transactions=has_transactions,
        )
        return (*kept, part)


def _swallows(last_bytes: int, size_bytes: int, *, is_crowded: bool) -> bool:
    """Whether a new part takes the last of those before it along."""
    is_wanted = is_crowded or last_bytes <= size_bytes
    return is_wanted and last_bytes + size_bytes <= PART_BYTES_MAX


def _told_by_headers(content: bytes) -> tuple[int | None, bool | None]:
    """Records, control records among them, and whether there is a transaction; None: unknown."""
    record_count, has_transactions = 0, False
    try:
        for batch in iter_batches(content):
            record_count += batch.header.record_count
            has_transactions = has_transactions or batch.header.is_transactional
    except CorruptRecords:  # messages of an old format, from a folder that was taken over
        return None, None
    return record_count, has_transactions


def _whole_batches(content: bytes) -> tuple[bytes, Offset]:
    end = end_offset = 0
    for batch in iter_batches(content):
        end, end_offset = batch.position + batch.header.size_bytes, batch.header.next_offset
    if not end:
        raise CorruptFile(f"no batch ends in {len(content)} bytes of the open segment")
    return content[:end], end_offset


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
    for batch in iter_batches(content):
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

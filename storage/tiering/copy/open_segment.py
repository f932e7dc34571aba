"""Uploads what lies behind the archive's end in parts, so that losing the machine loses little.

    archive ... ][ part ][ part ][part]
           [ closed segment ][ open segment ...     those that cannot be copied yet, from the end of
                                                    the archive up to the high watermark

    1 flush      the log first, so that the bucket never has records that the disk may lose
    2 put        a part with the new batches               crash point tail.after-part
    3 commit     the manifest, by compare-and-swap         crash point tail.after-commit

A segment is copied as a whole once it is closed, no transaction in it is open, and the cleaner is
done with it. Until then it is uploaded in parts, and so is all behind it. A segment that only waits
for its turn, or as long as remote.copy.lag.* says, is not: it would be uploaded twice.

A crash after 2 leaves an orphan. A new part replaces the earlier parts of its segment that are not
larger than itself, as long as it stays small enough for memory: so there are few parts, and each
byte is uploaded only a few times. Parts that get smaller and smaller are not replaced that way:
from `PARTS_MANY` on, a part replaces every earlier one that fits.

Records wait for at most `strandline.remote.active.segment.upload.ms`. Their arrival is noticed at
the next check, so the time between two checks is subtracted. With `remote.log.copy.disable` nothing
new goes to the bucket, and what is there stays (KIP-950).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from weakref import WeakSet

from strandline.storage.clock import Clock
from strandline.storage.crash_points import TAIL_AFTER_COMMIT, TAIL_AFTER_PART, crash_point
from strandline.storage.errors import CorruptFile, CorruptRecords
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import Epoch, Offset, Position, TopicIdPartition
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import LOG_OVERHEAD
from strandline.storage.remote.keys import new_unique, tail_key
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.remote.object_store.interface import ObjectStore, checksum
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.partition.open_segment_parts import LogRun, log_from
from strandline.storage.tiering.policy.quota import TierQuota

# A part is read into memory; only a single larger batch exceeds this.
PART_BYTES_MAX = 16 * 1024 * 1024
# The manifest names every part. Normally there are fewer: any two neighbours together exceed the
# maximum of a part, which makes 256 parts for the largest segment, of 2 GiB.
PARTS_MANY = 300
# With so many, 16 GiB of them, nothing more is uploaded until a segment can be copied: each commit
# writes all names, some 300 KB.
PARTS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extent:
    """What is replicated of a segment behind the archive at one moment. Its file begins `position`
    bytes behind the first part, or before it, if the archive ends inside.
    """

    segment: LogSegment
    position: Position
    size_bytes: int
    end_offset: Offset

    @property
    def end_position(self) -> Position:
        return self.position + self.size_bytes


def _extents(run: LogRun, high_watermark: Offset) -> list[_Extent]:
    extents: list[_Extent] = []
    position = -run.position
    for segment in run.segments:
        border = segment.locate(high_watermark)
        size, end = border or (segment.size_bytes, segment.end_offset)
        extents.append(_Extent(segment=segment, position=position, size_bytes=size, end_offset=end))
        if border is not None:
            break
        position += size
    return extents


def tail_check_ms(interval_ms: int, upload_ms: int) -> int:
    """Ms between two checks whether a part is due: at least two in `upload_ms`."""
    return min(interval_ms, max(1, upload_ms // 2))


class OpenSegmentCopier:
    """Uploads parts of the log behind any partition's archive: steps 1 and 2."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        executor: Executor,
        clock: Clock,
        quota: TierQuota,
        interval_ms: int,
    ) -> None:
        """`interval_ms` is the longest time between two checks of a partition."""
        self.quota = quota
        self.interval_ms = interval_ms
        self._store = store
        self._executor = executor
        self._clock = clock

    async def copy(
        self,
        local: LocalLog,
        base_offset: Offset,
        extents: Sequence[_Extent],
        tail: Sequence[TailPart],
        partition: TopicIdPartition,
        *,
        leader_epoch: Epoch,
    ) -> tuple[TailPart, ...]:
        """Uploads a part; returns the parts to commit: those of `tail` that stay, and the new one.

        `extents` must begin with `tail` and have more; the first part begins at `base_offset`.
        Raises CorruptFile, DiskError, TierError.
        """
        position = tail[-1].end_position if tail else 0
        base_offset = tail[-1].end_offset if tail else base_offset
        extent = next(one for one in extents if one.end_position > position)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, local.flush, extent.end_offset)  # 1
        call = partial(self._put, extent, base_offset, tuple(tail), partition, leader_epoch)
        return await loop.run_in_executor(self._executor, call)  # 2

    def _put(
        self,
        extent: _Extent,
        base_offset: Offset,
        tail: tuple[TailPart, ...],
        partition: TopicIdPartition,
        leader_epoch: Epoch,
    ) -> tuple[TailPart, ...]:
        position = tail[-1].end_position if tail else 0
        size_bytes = min(extent.end_position - position, PART_BYTES_MAX)
        kept = list(tail)
        is_crowded = len(tail) >= PARTS_MANY
        while kept and kept[-1].position >= extent.position:
            if not _swallows(kept[-1].size_bytes, size_bytes, is_crowded=is_crowded):
                break
            swallowed = kept.pop()
            position, base_offset = swallowed.position, swallowed.base_offset
            size_bytes += swallowed.size_bytes
        file, file_position = extent.segment.file(), position - extent.position
        # Whatever max.message.bytes allows, a part holds a batch at least.
        first, batch_length = LOG_OVERHEAD.unpack(file.read_at(file_position, LOG_OVERHEAD.size))
        if first < base_offset:
            raise CorruptFile(f"the archive ends at {base_offset}, inside the batch at {first}")
        size_bytes = max(size_bytes, LOG_OVERHEAD.size + batch_length)
        content = file.read_at(file_position, size_bytes)
        end_offset = extent.end_offset
        if position + size_bytes < extent.end_position:
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
    """Returns whether a new part replaces the last of the earlier ones."""
    is_wanted = is_crowded or last_bytes <= size_bytes
    return is_wanted and last_bytes + size_bytes <= PART_BYTES_MAX


def _told_by_headers(content: bytes) -> tuple[int | None, bool | None]:
    """Count of records, with control records, and whether any is transactional; None: unknown."""
    record_count, has_transactions = 0, False
    try:
        for batch in walk(content):
            record_count += batch.header.record_count
            has_transactions = has_transactions or batch.header.is_transactional
    except CorruptRecords:  # it is uploaded unchanged, and its readers report the damage
        return None, None
    return record_count, has_transactions


def _whole_batches(content: bytes) -> tuple[bytes, Offset]:
    end = end_offset = 0
    for batch in walk(content):
        end, end_offset = batch.end_position, batch.header.next_offset
    if not end:
        raise CorruptFile(f"no batch ends in {len(content)} bytes of a segment")
    return content[:end], end_offset


class OpenSegmentSteps:
    """Uploads new records behind one partition's archive. Used on the event loop only."""

    def __init__(self, owner: ManifestOwner, copier: OpenSegmentCopier) -> None:
        self._owner = owner
        self._copier = copier
        # Since when records wait; None while all of them are in the bucket. How long they may is
        # asked for at each step: it may be altered meanwhile.
        self._waiting_since_s: float | None = None
        # Segments whose bytes the committed parts are known to have, since so many cuts of the log.
        # Weak: a segment that is held keeps its file on the disk.
        self._checked: WeakSet[LogSegment] = WeakSet()
        self._checked_cut_count = 0

    async def step(self) -> bool:
        """Uploads and commits a part if one is due; True if there is more. Raises StorageError."""
        owner, local = self._owner, self._owner.log.local
        waiting = owner.log.judge().not_copyable_yet
        if not waiting:
            # The first segment is copied soon.
            self._waiting_since_s = None
            return False
        cut_count, run = local.cut_count, log_from(local, waiting[0].base_offset)
        tail = await self._tail_that_fits(run)
        extents = _extents(run, local.high_watermark)
        if not self._is_due(owner.log, extents, tail) or len(tail) >= PARTS_MAX:
            return False
        if await self._copier.quota.wait_a_step():
            return True
        await owner.ensure_manifest()
        if owner.life.is_detached():
            return False
        manifest, extents = owner.manifest(), _extents(run, local.high_watermark)
        parts = await self._copier.copy(
            local,
            run.base_offset,
            extents,
            tail,
            owner.remote.partition,
            leader_epoch=owner.life.leader_epoch,
        )
        self._copier.quota.record(parts[-1].size_bytes)
        if owner.life.is_detached() or local.cut_count != cut_count:
            # The part is an orphan: its records are gone from the log.
            return not owner.life.is_detached()
        await owner.commit(manifest.with_tail(parts, marked_ms=owner.clock.now_ms()))  # 3
        crash_point(TAIL_AFTER_COMMIT)
        self._note_checked(run.segments, cut_count)
        if parts[-1].end_offset < extents[-1].end_offset:
            # The remaining records are as old: they are due as well.
            return True
        self._waiting_since_s = None
        return False

    async def _tail_that_fits(self, run: LogRun) -> tuple[TailPart, ...]:
        """Returns the committed parts, if the log behind the archive begins with them."""
        owner = self._owner
        tail = () if owner.remote.manifest is None else owner.remote.manifest.tail
        if not tail:
            return ()
        cut_count = owner.log.local.cut_count
        covered = [s for s in run.segments if s.base_offset < tail[-1].end_offset]
        is_checked = cut_count == self._checked_cut_count and self._checked.issuperset(covered)
        if not is_checked or tail[0].base_offset != run.base_offset:
            # After a start: the disk may have diverged from the bucket. The cleaner replaces files.
            if not await owner.threads.run(partial(run.begins_with, tail)):
                return ()
            self._note_checked(covered, cut_count)
        return tail

    def _note_checked(self, segments: Sequence[LogSegment], cut_count: int) -> None:
        self._checked, self._checked_cut_count = WeakSet(segments), cut_count

    def _is_due(
        self, unified_log: UnifiedLog, extents: Sequence[_Extent], tail: Sequence[TailPart]
    ) -> bool:
        """Returns whether records of `extents` behind `tail` have waited as long as they may."""
        upload_ms = unified_log.config.strandline_remote_active_segment_upload_ms
        is_wanted = upload_ms >= 0 and unified_log.local.is_being_copied
        has_more = extents[-1].end_position > (tail[-1].end_position if tail else 0)
        has_more = has_more and unified_log.high_watermark > unified_log.log_start_offset
        if not is_wanted or not has_more:
            self._waiting_since_s = None
            return False
        now_s = self._owner.clock.monotonic_s()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        # They may have arrived right after the check before the one that saw them.
        unseen_ms = tail_check_ms(self._copier.interval_ms, upload_ms)
        return (now_s - self._waiting_since_s) * 1000 + unseen_ms >= upload_ms

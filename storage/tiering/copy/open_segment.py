"""Uploads the open segment in parts, so that losing the machine loses few records.

    1 flush      the log first, so that the bucket never has records that the disk may lose
    2 put        a part with the new batches               crash point tail.after-part
    3 commit     the manifest, by compare-and-swap         crash point tail.after-commit

A crash after 2 leaves an orphan. A new part replaces the earlier parts that are not larger than
itself, as long as it stays small enough for memory: so there are few parts, and each byte is
uploaded only a few times. Parts that get smaller and smaller are not replaced that way: from
`PARTS_MANY` on, a part replaces every earlier one that fits.

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

from strandline.storage.clock import Clock
from strandline.storage.crash_points import TAIL_AFTER_COMMIT, TAIL_AFTER_PART, crash_point
from strandline.storage.errors import CorruptFile, CorruptRecords
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import Epoch, Offset, TopicIdPartition
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import LOG_OVERHEAD
from strandline.storage.remote.keys import new_unique, tail_key
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.remote.object_store.interface import ObjectStore, checksum
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner
from strandline.storage.tiering.partition.open_segment_parts import is_prefix_of
from strandline.storage.tiering.policy.lifecycle import SegmentState
from strandline.storage.tiering.policy.quota import TierQuota

# A part is read into memory; only a single larger batch exceeds this.
PART_BYTES_MAX = 16 * 1024 * 1024
# The manifest names every part. Normally there are fewer: any two neighbours together exceed the
# maximum of a part, which makes 256 parts for the largest segment, of 2 GiB.
PARTS_MANY = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extent:
    """The open segment at one moment."""

    segment: LogSegment
    size_bytes: int
    end_offset: Offset


def tail_check_ms(interval_ms: int, upload_ms: int) -> int:
    """Ms between two checks whether the open segment is due: at least two in `upload_ms`."""
    return min(interval_ms, max(1, upload_ms // 2))


class OpenSegmentCopier:
    """Uploads parts of the open segment of any partition: steps 1 and 2."""

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
        tail: Sequence[TailPart],
        partition: TopicIdPartition,
        *,
        leader_epoch: Epoch,
    ) -> tuple[TailPart, ...]:
        """Uploads a part; returns the parts to commit: those of `tail` that stay, and the new one.

        `tail` must be of the current open segment, or empty. Raises DiskError, TierError.
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
        raise CorruptFile(f"no batch ends in {len(content)} bytes of the open segment")
    return content[:end], end_offset


class OpenSegmentSteps:
    """Copies new records of one partition's open segment. Used on the event loop only."""

    def __init__(self, owner: ManifestOwner, copier: OpenSegmentCopier) -> None:
        self._owner = owner
        self._copier = copier
        # Since when records wait; None while all of them are in the bucket. How long they may is
        # asked for at each step: it may be altered meanwhile.
        self._waiting_since_s: float | None = None
        # The open segment of which the committed parts are known to be the beginning.
        self._checked: LogSegment | None = None

    async def step(self) -> bool:
        """Uploads and commits a part if one is due; True if there is more. Raises StorageError."""
        owner, local = self._owner, self._owner.log.local
        segment = local.active_segment
        tail = await self._tail_that_fits()
        covered = tail[-1].end_offset if tail else segment.base_offset
        if not self._is_due(owner.log, max(covered, owner.log.log_start_offset)):
            return False
        if await self._copier.quota.wait_a_step():
            return True
        await owner.ensure_manifest()
        if owner.life.is_detached() or local.active_segment is not segment:
            # `tail` belongs to a segment that is closed by now.
            return not owner.life.is_detached()
        end_offset = local.end_offset
        parts = await self._copier.copy(
            local, tail, owner.remote.partition, leader_epoch=owner.leader_epoch
        )
        self._copier.quota.record(parts[-1].size_bytes)
        if owner.life.is_detached() or local.active_segment is not segment:
            # It was closed meanwhile and will be copied as a whole: the part is an orphan.
            return True
        await owner.commit(  # 3
            owner.manifest().with_tail(parts, marked_ms=owner.clock.now_ms())
        )
        crash_point(TAIL_AFTER_COMMIT)
        if parts[-1].end_offset < end_offset:
            # The remaining records are as old: they are due as well.
            return True
        self._waiting_since_s = None
        return False

    async def _tail_that_fits(self) -> tuple[TailPart, ...]:
        """Returns the committed parts, if the current open segment begins with them."""
        tail = () if self._owner.remote.manifest is None else self._owner.remote.manifest.tail
        segment = self._owner.log.local.active_segment
        if not tail or tail[0].base_offset != segment.base_offset:
            return ()
        if self._checked is not segment:
            # Once after a start: the disk may have diverged from the bucket.
            if not await self._owner.threads.run(
                partial(is_prefix_of, tail, self._owner.log.local)
            ):
                return ()
            self._checked = segment
        return tail

    def _is_due(self, unified_log: UnifiedLog, covered_offset: Offset) -> bool:
        """Returns whether records above `covered_offset` have waited as long as they may."""
        upload_ms = unified_log.config.strandline_remote_active_segment_upload_ms
        is_wanted = upload_ms >= 0 and unified_log.local.is_being_copied
        pending = unified_log.judge().pending
        is_next = all(segment.state is SegmentState.ACTIVE for segment in pending)
        if not is_wanted or not is_next or unified_log.local.end_offset <= covered_offset:
            self._waiting_since_s = None
            return False
        now_s = self._owner.clock.monotonic_s()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        # They may have arrived right after the check before the one that saw them.
        unseen_ms = tail_check_ms(self._copier.interval_ms, upload_ms)
        return (now_s - self._waiting_since_s) * 1000 + unseen_ms >= upload_ms

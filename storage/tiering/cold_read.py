"""Reading one partition's archived records: the segment, its batches, what was aborted in them.

    offset -> entry of the manifest -> chunks of the segment -> whole batches
                                    -> its transaction index, and those of later segments

Between two awaits the archive may change: retention takes segments away, a merge puts one object
in the place of many. A reader that meets this looks again and finds either the new object or that
its offset is out of range now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strandline.storage.errors import ObjectNotFound, OffsetOutOfRange
from strandline.storage.local.log import LocalLog
from strandline.storage.model import AbortedTransaction, Isolation, Offset, TopicPartition
from strandline.storage.remote.manifest_entries import SegmentEntry
from strandline.storage.tiering.remote_log import RemoteLog
from strandline.storage.values import dataclass

OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRead:
    """Whole batches from the archive, byte for byte; the first one holds the wanted offset.

    `aborted` is filled for read_committed, ordered by first offset.
    """

    buffers: Sequence[memoryview]
    size_bytes: int
    next_offset: Offset
    aborted: Sequence[AbortedTransaction] = ()


class ReadLog(Protocol):
    """The log over both tiers, as far as a cold reader asks it."""

    local: LocalLog
    log_start_offset: Offset

    @property
    def topic_partition(self) -> TopicPartition: ...

    def out_of_range(self, offset: Offset) -> OffsetOutOfRange: ...


async def read(
    log: ReadLog, remote: RemoteLog, offset: Offset, *, bytes_max: int, isolation: Isolation
) -> RemoteRead:
    """Whole batches from the archive; cancelling it does not cancel the download.

    Raises OffsetOutOfRange below the log start, TierError if the archive cannot be read now or
    is damaged.
    """
    end_offset = None if isolation is Isolation.READ_UNCOMMITTED else log.local.last_stable_offset
    entry = await _entry_for(log, remote, offset)
    while True:
        try:
            found = await remote.read(entry, offset, bytes_max=bytes_max, end_offset=end_offset)
            if found.buffers or not offset < found.next_offset < log.local.start_offset:
                break
            # Compaction left nothing behind `offset` in this segment. Each turn is a segment
            # further.
            offset = found.next_offset
            entry = await _entry_for(log, remote, offset)
        except ObjectNotFound:
            # Deleted under the reader: that is an answer if the log start has moved, or if a
            # merge has put another object in its place; else a loss. Each turn needs a merge
            # that was committed since the last one, so there are few.
            if offset < log.log_start_offset:
                raise log.out_of_range(offset) from None
            replaced, entry = entry, await _entry_for(log, remote, offset)
            if entry.log_key == replaced.log_key:
                raise
    aborted: Sequence[AbortedTransaction] = ()
    if isolation is Isolation.READ_COMMITTED:
        aborted = await _aborted_from(log, remote, entry, offset, found.next_offset)
    return RemoteRead(
        buffers=found.buffers,
        size_bytes=found.size_bytes,
        next_offset=found.next_offset,
        aborted=aborted,
    )


async def _entry_for(log: ReadLog, remote: RemoteLog, offset: Offset) -> SegmentEntry:
    entry = await remote.find_entry(offset)
    if entry is None:
        if offset < log.log_start_offset:
            raise log.out_of_range(offset)
        # Not "out of range": that would make consumers skip what may only be misplaced.
        raise ObjectNotFound(str(log.topic_partition), "read", f"{offset} not archived")
    return entry


def read_from_memory(
    log: ReadLog, remote: RemoteLog, offset: Offset, *, bytes_max: int, isolation: Isolation
) -> RemoteRead | None:
    """As `read`, if neither the store nor a transaction index is needed; else None.

    A consumer that reads on finds most of its chunks read ahead, so most of its fetches end
    here, without a task.
    """
    if not remote.known:
        return None
    entry = remote.known_entry(offset)
    # The chunk may hold the head of a range whose batches are gone from the archive.
    if entry is None or entry.base_offset > offset:
        return None
    is_committed_only = isolation is Isolation.READ_COMMITTED
    if is_committed_only and entry.has_transactions:
        return None
    found = remote.read_from_memory(
        entry,
        offset,
        bytes_max=bytes_max,
        end_offset=log.local.last_stable_offset if is_committed_only else None,
    )
    if found is None:
        return None
    if is_committed_only and found.next_offset > entry.end_offset:
        touched = (
            later for later in remote.following(entry) if later.base_offset < found.next_offset
        )
        if any(later.has_transactions for later in touched):
            return None
    return RemoteRead(
        buffers=found.buffers, size_bytes=found.size_bytes, next_offset=found.next_offset
    )


async def _aborted_from(
    log: ReadLog,
    remote: RemoteLog,
    entry: SegmentEntry,
    start_offset: Offset,
    end_offset: Offset,
) -> Sequence[AbortedTransaction]:
    """Aborted transactions that touch [start_offset, end_offset), which begins in `entry`.

    A transaction is listed where its marker lies, which may be segments later, so the search
    goes on until an entry says that the last stable offset had passed the range by then. A
    range without transactional batches needs no search: the manifest says so.
    """
    found: set[AbortedTransaction] = set()
    is_transactional = False
    async for later in remote.entries_from(entry.base_offset):
        if later.base_offset >= end_offset and not is_transactional:
            return []
        is_transactional = is_transactional or later.has_transactions
        if not later.has_transactions:
            continue
        listed = await remote.aborted_transactions(later, start_offset, OFFSET_MAX)
        found.update(t for t in listed if t.first_offset < end_offset)
        if any(t.last_stable_offset >= end_offset for t in listed):
            return sorted(found, key=_first_offset)
    found.update(log.local.aborted_transactions(start_offset, end_offset))
    return sorted(found, key=_first_offset)


def _first_offset(transaction: AbortedTransaction) -> Offset:
    return transaction.first_offset

"""Reads one partition's archived records: the segment, its batches, its aborted transactions.

    offset -> entry of the manifest -> chunks of the segment -> whole batches
                                    -> its transaction index

In a compacted log many segments in a row may have only the last batches of producers left, without
records. Reads skip them: librdkafka takes a row of empty responses for a batch that does not fit,
waits after each, and reports an error.

Between two awaits the archive may change: retention removes segments, a merge replaces many objects
by one. A read that meets this (of records, of transaction indexes, lookups by time) retries and
finds either the new object or that its offset is out of range now. Each retry needs a change of the
very segment that was gone, so there are few; an object that is gone though the manifest still names
it is a loss. A replica's log asks for the newest manifest first, and for the first one at all: its
leader alone loads it at a start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from strandline.storage.errors import ObjectNotFound, OffsetOutOfRange, StorageError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import AbortedTransaction, Isolation, Offset, TopicPartition

if TYPE_CHECKING:
    from strandline.storage.remote.manifest.entries import SegmentEntry
    from strandline.storage.remote.reader.cold_reader import ColdRead
    from strandline.storage.tiering.log.remote_log import RemoteLog

T = TypeVar("T")


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
    """The log over both tiers, as far as cold reads need it."""

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
    end_offset = log.local.readable_end(isolation)

    async def read_once() -> tuple[SegmentEntry, Offset, ColdRead]:
        wanted = offset
        while True:
            entry = await _entry_for(log, remote, wanted)
            if not entry.record_count and entry.end_offset < log.local.start_offset:
                # Producers' last batches, without their records. The last one of the archive is
                # returned: nothing may follow it, and the reader has to reach the end.
                wanted = entry.end_offset
                continue
            reading = remote.read(entry, wanted, bytes_max=bytes_max, end_offset=end_offset)
            found = await of_segment(entry, reading)
            if found.buffers or not wanted < found.next_offset < log.local.start_offset:
                return entry, wanted, found
            # Compaction left nothing behind `wanted` in this segment. Each turn is a segment
            # further.
            wanted = found.next_offset

    entry, offset, found = await in_newest(log, remote, read_once)
    aborted: Sequence[AbortedTransaction] = ()
    if isolation is Isolation.READ_COMMITTED:
        aborted = await in_newest(
            log, remote, lambda: _aborted_from(log, remote, entry, offset, found.next_offset)
        )
    return RemoteRead(
        buffers=found.buffers,
        size_bytes=found.size_bytes,
        next_offset=found.next_offset,
        aborted=aborted,
    )


class _GoneError(Exception):
    """An object of `entry` is missing."""

    def __init__(self, entry: SegmentEntry, error: ObjectNotFound) -> None:
        super().__init__(str(error))
        self.entry = entry
        self.error = error


async def of_segment(entry: SegmentEntry, answer: Awaitable[T]) -> T:
    """Awaits a read of an object of `entry`, inside a search of `in_newest`."""
    try:
        return await answer
    except ObjectNotFound as error:
        raise _GoneError(entry, error) from error


async def in_newest(log: ReadLog, remote: RemoteLog, search: Callable[[], Awaitable[T]]) -> T:
    """Runs the search; repeats it if an object was removed or replaced meanwhile.

    Raises ObjectNotFound for an object that the newest manifest names and that is missing. Errors
    that do not pass by themselves are counted and logged: readers are stuck at that offset.
    """
    try:
        if not remote.known:
            await remote.refresh()
        while True:
            searched = remote.manifest
            try:
                return await search()
            except _GoneError as gone:
                if not await _is_released(log, remote, gone.entry):
                    raise gone.error from None
            except ObjectNotFound as error:
                # A page, or an offset that no segment has.
                await remote.refresh()
                newest = remote.manifest
                if newest is searched or newest is None or newest.names_page(error.key):
                    raise
    except StorageError as error:
        remote.reader.note_unreadable(error)
        raise


async def _is_released(log: ReadLog, remote: RemoteLog, entry: SegmentEntry) -> bool:
    """Returns whether no read is directed to `entry` any more."""
    await remote.refresh()
    offset = max(entry.base_offset, log.log_start_offset)
    return offset >= entry.end_offset or await remote.find_entry(offset) not in (None, entry)


async def _entry_for(log: ReadLog, remote: RemoteLog, offset: Offset) -> SegmentEntry:
    if offset < log.log_start_offset:
        raise log.out_of_range(offset)
    entry = await remote.find_entry(offset)
    if entry is None:
        # The log adopts a log start a little later than the manifest that has it.
        if offset < max(log.log_start_offset, remote.log_start_offset):
            raise log.out_of_range(offset)
        # Not "out of range": that would make consumers skip what may only be misplaced.
        raise ObjectNotFound(str(log.topic_partition), "read", f"{offset} not archived")
    return entry


async def _aborted_from(
    log: ReadLog,
    remote: RemoteLog,
    entry: SegmentEntry,
    start_offset: Offset,
    end_offset: Offset,
) -> Sequence[AbortedTransaction]:
    """Aborted transactions that touch [start_offset, end_offset), which begins in `entry`.

    Each segment's index has all that touch it, wherever their markers lie. Raises
    OffsetOutOfRange if the index was removed meanwhile: then nothing says what was aborted.
    """
    if not entry.has_transactions and end_offset <= entry.end_offset:
        # The common case: no manifest page needs to be read.
        return []
    entry = await _entry_for(log, remote, start_offset)
    aborted: set[AbortedTransaction] = set()
    async for read in remote.entries_from(entry.base_offset):
        if read.base_offset >= end_offset:
            break
        aborted.update(
            await of_segment(
                read, remote.reader.aborted_transactions(read, start_offset, end_offset)
            )
        )
    return sorted(aborted, key=lambda transaction: transaction.first_offset)

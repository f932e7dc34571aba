"""One partition over both tiers: one sequence of offsets, two places.

    log start            local start       remote end  last stable  high watermark  end
        |                     |                |            |             |          |
        [ remote ][ remote ][ remote / local ][ local ][ local, active ............. ]
        |---- read_remote ---|------------------ read ----------------------|

Invariants: log start <= local start where the archive covers what lies between; the archive ends
at or above the local start; log start and remote end never go back.

Reads at or above the local start are synchronous and never touch the network. Only offsets below
it are cold (`cold_read.py`), and those wait in the reader's own threads.

The high watermark is the local log's, and ends what consumers read and deletions remove. The last
stable offset, at most as high, ends what is copied and what `read_committed` sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from strandline.storage.config.log_config import LogConfig
from strandline.storage.crash_points import DELETE_BEFORE_LOCAL, crash_point
from strandline.storage.errors import OffsetOutOfRange, ReadOnlyReplica, TierUnavailable
from strandline.storage.local.log.log import AppendInfo, AppendOrigin, LocalLog, LocalRead
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import (
    EpochStart,
    Isolation,
    Offset,
    TimestampMs,
    TimestampOffset,
    TopicId,
    TopicPartition,
)
from strandline.storage.records.batch.batch import HEADER_BYTES, read_header
from strandline.storage.records.batch.old_messages import is_old
from strandline.storage.tiering.log import cold_read, timestamp_lookup
from strandline.storage.tiering.log.cold_read import RemoteRead
from strandline.storage.tiering.log.segment_views import segment_views
from strandline.storage.tiering.policy import lifecycle
from strandline.storage.tiering.policy.lifecycle import PartitionVerdict, PartitionView

# A broker without a remote tier does not load its manifests (docs/decisions/0010).
if TYPE_CHECKING:
    from strandline.storage.tiering.log.remote_log import RemoteLog

# DeleteRecords up to the high watermark.
TO_HIGH_WATERMARK = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSizes:
    """Bytes per tier; what lies in both counts once in `total_bytes`."""

    local_bytes: int
    remote_bytes: int
    total_bytes: int


class UnifiedLog:
    """One partition's log over both tiers. Used on the event loop only."""

    __slots__ = (
        "_checkpointed_offset",
        "_executor",
        "is_log_start_noted",
        "local",
        "log_start_offset",
        "remote",
    )

    def __init__(
        self,
        local: LocalLog,
        *,
        log_start_offset: Offset | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`log_start_offset` is the checkpointed one; None if no checkpoint has this log.

        A log in one tier begins where its files do, or later: what was deleted just before a crash
        stays deleted. A tiered one may begin below its first file; without a checkpoint only the
        manifest knows where, and until it is loaded no offset is called out of range. `executor`
        runs lookups by time, which read and decompress; without one they run on the loop.
        """
        self.local = local
        self._executor = executor
        # Set by the manager while the partition is tiered.
        self.remote: RemoteLog | None = None
        # Whether a checkpoint on this disk has this log.
        self.is_log_start_noted = log_start_offset is not None
        # First offset of the log, in either tier.
        self.log_start_offset = log_start_offset or 0
        if not local.config.remote_storage_enable:
            self.log_start_offset = max(self.log_start_offset, local.start_offset)
        self._checkpointed_offset = self.log_start_offset
        local.leader_epochs.truncate_from_start(self.log_start_offset)
        self._tell_local()

    def replace_local(self, local: LocalLog) -> None:
        """Replaces the local log: over the same files, after the first one failed, or over their
        copy in another folder. What was altered while it was opened went to the one before.
        """
        assert local.topic_partition == self.local.topic_partition, (local, self.local)
        local.update_config(self.local.config)
        local.advance_high_watermark(min(self.local.high_watermark, local.end_offset))
        self.local = local
        self._tell_local()

    # --- extent ------------------------------------------------------------------------------

    @property
    def topic_partition(self) -> TopicPartition:
        return self.local.topic_partition

    @property
    def topic_id(self) -> TopicId:
        return self.local.topic_id

    @property
    def config(self) -> LogConfig:
        return self.local.config

    @property
    def is_tiered(self) -> bool:
        """Whether closed segments of this log are to be archived."""
        return self.remote is not None and self.local.config.remote_storage_enable

    @property
    def local_start_offset(self) -> Offset:
        """First offset that is read from this disk."""
        return max(self.local.start_offset, self.log_start_offset)

    @property
    def end_offset(self) -> Offset:
        return self.local.end_offset

    @property
    def high_watermark(self) -> Offset:
        return self.local.high_watermark

    @property
    def highest_remote_offset(self) -> Offset:
        """Last archived offset; -1 if nothing is archived."""
        end_offset = None if self.remote is None else self.remote.end_offset
        return -1 if end_offset is None else end_offset - 1

    @property
    def tier_sizes(self) -> TierSizes:
        remote_bytes = self.remote_bytes
        only_local_bytes = sum(segment.size_bytes for segment in self.only_local_segments())
        return TierSizes(
            local_bytes=self.local.size_bytes,
            remote_bytes=remote_bytes,
            total_bytes=remote_bytes + only_local_bytes,
        )

    @property
    def remote_bytes(self) -> int:
        """Bytes of the archived segments, as far as the manifest is known."""
        manifest = None if self.remote is None else self.remote.manifest
        return 0 if manifest is None else manifest.size_bytes

    def only_local_segments(self) -> list[LogSegment]:
        """Segments that the archive does not have (yet), the active one included."""
        archived_end = self.highest_remote_offset + 1
        return [s for s in self.local.segments if s.is_active or s.end_offset > archived_end]

    @property
    def earliest_pending_upload(self) -> Offset:
        """First offset that is not archived (ListOffsets -6).

        -1 if the log is not tiered, or the archive's extent is not known yet (KIP-1023).
        """
        if not self.is_tiered:
            return -1
        if self.highest_remote_offset < 0 and self.local_start_offset > self.log_start_offset:
            return -1
        return max(self.highest_remote_offset + 1, self.log_start_offset)

    # --- writing -----------------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        records_checked: bool = False,
    ) -> AppendInfo:
        """Appends to the local tier; see LocalLog.append.

        Raises TierUnavailable for an empty log in a folder that the start had to make, while its
        archive is not known: with its disk lost, it would give offsets a second time. Raises
        ReadOnlyReplica for the log of a read-only replica, and ArchiveLost for a producer's
        records, if the broker refuses those without its archive.
        """
        remote = self.remote
        if remote is not None and remote.life.refuses_appends:
            remote.life.refuse(origin)
        if not self.may_append:
            raise self._unknown_extent("append")
        return self.local.append(
            records, leader_epoch=leader_epoch, origin=origin, records_checked=records_checked
        )

    def append_as_follower(self, records: memoryview, *, leader_epoch: int) -> AppendInfo | None:
        """Appends what the leader answered; see LocalLog.append_as_follower.

        The leader's log may begin within a batch, which it sends whole: an empty log begins there.
        """
        local = self.local
        if not local.size_bytes and len(records) >= HEADER_BYTES and not is_old(records):
            header = read_header(records)
            if header.base_offset < local.end_offset <= header.last_offset:
                local.reset_to(header.base_offset)
                self._tell_local()
        return local.append_as_follower(records, leader_epoch=leader_epoch)

    def start_over_at(self, offset: Offset, *, log_start_offset: Offset) -> None:
        """Empties the local log of a follower; what lies before `offset` is archived, if at all."""
        self.local.reset_to(offset)
        self.log_start_offset = self._checkpointed_offset = log_start_offset
        self._tell_local()

    @property
    def may_append(self) -> bool:
        """Whether the log takes records: not while records lost from this disk may return."""
        remote = self.remote
        return remote is None or (remote.life.may_append and not self.has_unknown_extent)

    @property
    def has_unknown_extent(self) -> bool:
        """Whether the extent of the log is not known yet.

        The local log is empty after a lost disk, while the archive may be long. Reporting it as
        empty would make a client take the records it has read for lost, and start over.
        """
        remote = self.remote
        if remote is None or not remote.life.is_past_unknown:
            return False
        return self.local.end_offset == self.local.start_offset

    def _unknown_extent(self, operation: str) -> TierUnavailable:
        return TierUnavailable(
            str(self.topic_partition), operation, "empty local log, archive not known yet"
        )

    # --- reading -----------------------------------------------------------------------------

    def read(
        self,
        offset: Offset,
        *,
        bytes_max: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        at_least_one_batch: bool = True,
    ) -> LocalRead | None:
        """Whole batches from the local tier; None if `offset` is cold: ask `read_remote`.

        No batch at or behind the end of what the isolation may read: without an error, as in Kafka.
        Raises OffsetOutOfRange outside [log start, end], TierUnavailable while these are unknown.
        """
        local = self.local
        if self.has_unknown_extent:
            raise self._unknown_extent("read")
        if offset < self.log_start_offset:
            raise self.out_of_range(offset)
        if offset < local.start_offset:
            return None
        return local.read(
            offset,
            bytes_max=bytes_max,
            end_offset=local.readable_end(isolation),
            at_least_one_batch=at_least_one_batch,
        )

    async def read_remote(
        self, offset: Offset, *, bytes_max: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> RemoteRead:
        """Whole batches from the archive; cancelling it does not cancel the download.

        Prefetched records return without waiting: the coroutine then ends at its first step.
        Returns no batch only where compaction left none up to the local start: then `next_offset`
        is there, and the local tier has the following records.

        Raises OffsetOutOfRange below the log start, TierError if the archive cannot be read now or
        is damaged (404, 403, timeout and bad checksum stay apart).
        """
        remote = self._remote_for(offset)
        return await cold_read.read(self, remote, offset, bytes_max=bytes_max, isolation=isolation)

    def _remote_for(self, offset: Offset) -> RemoteLog:
        if offset < self.log_start_offset:
            raise self.out_of_range(offset)
        if self.remote is None:
            # Archived by a broker with a remote tier, served by one without. "Out of range" would
            # make consumers skip records that are only out of reach.
            raise TierUnavailable(
                str(self.topic_partition), "read", "archived, but there is no remote tier"
            )
        return self.remote

    def out_of_range(self, offset: Offset) -> OffsetOutOfRange:
        """Returns the OffsetOutOfRange for an offset outside this log, to be raised."""
        return OffsetOutOfRange(
            f"{self.topic_partition}: offset {offset} is outside "
            f"[{self.log_start_offset}, {self.local.end_offset}]"
        )

    # --- looking up --------------------------------------------------------------------------

    async def find_timestamp(self, timestamp_ms: TimestampMs) -> TimestampOffset | None:
        """The first record, in order of offsets, at or after that time; None if there is none.

        Raises TierError if it may be archived and the archive cannot be read now.
        """
        if self.local.start_offset > self.log_start_offset:
            remote = self._remote_for(self.log_start_offset)
            archived = await timestamp_lookup.find_timestamp(self, remote, timestamp_ms)
            if archived is not None:
                return archived
        lookup = partial(
            self.local.find_timestamp, timestamp_ms, start_offset=self.local_start_offset
        )
        return await self._run(lookup)

    async def max_timestamp(self) -> TimestampOffset | None:
        """Returns the first record with the highest timestamp of the whole log (ListOffsets -3).

        Raises TierError if it is archived and the archive cannot be read now.
        """
        local = await self._run(
            partial(self.local.max_timestamp, start_offset=self.local_start_offset)
        )
        if self.remote is None or self.local.start_offset <= self.log_start_offset:
            return local
        higher_than_ms = -1 if local is None else local.timestamp_ms
        archived = await timestamp_lookup.max_timestamp(
            self, self.remote, higher_than_ms=higher_than_ms
        )
        return archived or local

    async def _run(self, lookup: Callable[[], TimestampOffset | None]) -> TimestampOffset | None:
        if self._executor is None:
            return lookup()
        return await asyncio.get_running_loop().run_in_executor(self._executor, lookup)

    # --- deletion ----------------------------------------------------------------------------

    def delete_records(self, before_offset: Offset) -> Offset:
        """Moves the log start up to `before_offset` (-1: the high watermark); returns it.

        It is in memory only: the caller writes the checkpoint before it answers. Raises
        OffsetOutOfRange above the high watermark, ReadOnlyReplica on a read-only replica.
        """
        if self.remote is not None and self.remote.life.is_followed:
            raise ReadOnlyReplica
        if before_offset == TO_HIGH_WATERMARK:
            before_offset = self.high_watermark
        if not 0 <= before_offset <= self.high_watermark:
            raise self.out_of_range(before_offset)
        return self.move_log_start(before_offset)

    def move_log_start(self, offset: Offset) -> Offset:
        """Moves the log start to at least `offset`; returns it."""
        assert offset <= self.high_watermark, (offset, self)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.local.leader_epochs.truncate_from_start(offset)
        self._tell_local()
        return self.log_start_offset

    def note_checkpointed(self, log_start_offset: Offset) -> None:
        """Records that the log start checkpoint on this disk durably has `log_start_offset`."""
        self._checkpointed_offset = max(self._checkpointed_offset, log_start_offset)
        self.is_log_start_noted = True

    def adopt_remote_log_start(self) -> None:
        """Called when the manifest was loaded: the log start becomes the higher of both."""
        assert self.remote is not None
        manifest = self.remote.manifest
        if manifest is not None:
            # What was deleted there was below the high watermark; this disk's may be older.
            self.local.advance_high_watermark(manifest.log_start_offset)
            self.move_log_start(manifest.log_start_offset)
        elif not self.is_log_start_noted:
            self.move_log_start(self.local.start_offset)

    def _tell_local(self) -> None:
        # The local log answers producers with it; on its own it knows only where its files begin.
        self.local.log_start_offset = self.log_start_offset
        self.local.archived_below = self._archived_below

    @property
    def durable_log_start_offset(self) -> Offset:
        """The log start that survives a crash."""
        remote_offset = 0 if self.remote is None else self.remote.log_start_offset
        return max(self._checkpointed_offset, remote_offset)

    def view(self) -> PartitionView:
        """Returns the input of `lifecycle`'s decisions."""
        config, remote = self.local.config, self.remote
        lag_ms, lag_bytes = config.effective_copy_lag_ms, config.effective_copy_lag_bytes
        may_wait = lag_ms != 0 and lag_bytes != 0
        return PartitionView(
            segments=segment_views(self.local.segments, with_times=may_wait),
            log_start_offset=self.log_start_offset,
            durable_log_start_offset=self.durable_log_start_offset,
            is_log_start_noted=self.is_log_start_noted,
            last_stable_offset=self.local.last_stable_offset,
            remote_end_offset=None if remote is None else remote.end_offset,
            tiering_enabled=self.is_tiered,
            copy_disabled=config.remote_log_copy_disable,
            manifest_known=remote is not None and remote.life.is_settled,
            fenced=remote is not None and remote.life.is_fenced,
            cleaned_offset=(self.local.cleaned_offset or 0) if config.is_compacted else None,
            has_archived_past=self._has_archived_past(),
            now_ms=self.local.clock.now_ms(),
            copy_lag_ms=lag_ms,
            copy_lag_bytes=lag_bytes,
        )

    def _has_archived_past(self) -> bool:
        """Whether this log ended as the archive does, where the archive ends: records of one offset
        and one leader epoch are one record, and so are all before them.
        """
        remote = self.remote
        if remote is None or remote.end_offset is None:
            return True
        return self.local.leader_epochs.epoch_for(remote.end_offset - 1) == remote.last_epoch

    def _archived_below(self) -> Offset | None:
        """Archived end, above which only this disk has records; None while unknown."""
        if self.remote is None:
            return 0
        return (self.remote.end_offset or 0) if self.remote.known else None

    def judge(self) -> PartitionVerdict:
        """Returns the state of every local segment."""
        return lifecycle.judge(self.view())

    def free_segments(self, end_offset: Offset) -> list[LogSegment]:
        """Removes local segments that end at or below `end_offset`, if they are not the only copy.

        Returns the removed segments. Checks `lifecycle` again, whatever the caller decided.
        """
        freed = self._freeable(end_offset)
        if freed:
            crash_point(DELETE_BEFORE_LOCAL)
            self.local.delete_segments(freed)
            self._tell_local()
        return freed

    def frees_archived(self, end_offset: Offset) -> bool:
        """Whether `free_segments` would remove one that the log has in the archive alone then."""
        freeable = self._freeable(end_offset)
        return bool(freeable) and freeable[-1].end_offset > self.durable_log_start_offset

    def _freeable(self, end_offset: Offset) -> list[LogSegment]:
        freeable_end = self.judge().freeable_end_offset
        if freeable_end is None:
            return []
        limit = min(end_offset, freeable_end, self.high_watermark)
        return [s for s in self.local.segments if not s.is_active and s.end_offset <= limit]

    def drop_archived(self, end_offset: Offset) -> None:
        """Removes all local records below `end_offset`, for a replica's log: they are read from the
        archive, whose owner frees nothing here.
        """
        local = self.local
        if local.active_segment.size_bytes and local.end_offset <= end_offset:
            local.roll()
        dropped = [s for s in local.segments if not s.is_active and s.end_offset <= end_offset]
        if dropped:
            local.delete_segments(dropped)
            self._tell_local()

    def restart_at(
        self,
        offset: Offset,
        *,
        producer_snapshot: bytes | None,
        leader_epochs: Sequence[EpochStart],
    ) -> None:
        """Empties the local tier and goes on at `offset`: all before it is archived or deleted."""
        assert offset >= self.highest_remote_offset + 1, (offset, self)
        assert offset > self.local.end_offset, (offset, self)
        self.local.reset_to(
            offset, producer_snapshot=producer_snapshot, leader_epochs=leader_epochs
        )
        self._tell_local()

    def __repr__(self) -> str:
        return (
            f"<UnifiedLog {self.topic_partition} start={self.log_start_offset} "
            f"local={self.local.start_offset} remote_end={self.highest_remote_offset + 1} "
            f"high_watermark={self.high_watermark} end={self.local.end_offset}>"
        )

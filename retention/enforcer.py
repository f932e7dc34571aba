"""Enforces the retention policy on every log of this broker.

One round:

    1 roll     an active segment that has outlived its limits
    2 move     the log start past expired records (in memory; the archive is notified)
    3 write    the log start checkpoint, if a log start moved or an archive was created
    4 free     local segments: archived ones by local.retention.*, all below the log start
    5 unlink   files whose delay is over; the time used for the decisions is noted

An archived segment may span more time than a segment of the topic does, and retention allows a
merge: it was merged by an older release, or before retention.ms was lowered. Then 2 looks for the
first record that stays, eight times in its retention at most, and moves the log start to it, inside
the segment.

3 comes before 4: a local segment that was never archived may only be deleted once its log start
  cannot come back after a crash. And without a checkpoint a start cannot know that there was an
  archive: it would take a missing one (emptied, or a wrong bucket) for one that was never created,
  and let the log begin where the local files do. Tiering deletes the objects in the bucket, in its
  own order. Step 4 asks `lifecycle` again for every segment, so a wrong verdict here frees nothing.

For a tiered log the limits of the whole log apply to archived records only: while the store is
unavailable, no unarchived record is lost, however old it is. Nor is an archived segment freed then:
before 4 the store is asked whether it still has the archive, for what somebody emptied, or deleted,
may be on this disk alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.retention.jump_guard import JumpGuard
from strandline.retention.policy import (
    DropReason,
    RetentionLimits,
    RetentionUnit,
    RetentionVerdict,
    judge,
)
from strandline.storage.clock import Clock
from strandline.storage.concurrency.turns import Turn, in_turns
from strandline.storage.config.log_config import UNLIMITED, LogConfig
from strandline.storage.errors import StorageError, TierUnavailable
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import Offset, TimestampMs, TopicPartition
from strandline.storage.tiering.log.segment_views import newest_ms
from strandline.storage.tiering.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from strandline.storage.remote.manifest.entries import PageRef

log = logging.getLogger(__name__)

NO_LIMITS = RetentionLimits(retention_ms=UNLIMITED, retention_bytes=UNLIMITED)


class RetentionEnforcer:
    """Runs retention over all logs, round by round. Used on the event loop only."""

    def __init__(
        self,
        logs: Callable[[], Iterable[UnifiedLog]],
        *,
        write_log_starts: Callable[[], Awaitable[Collection[Path]]],
        purge_deleted: Callable[[float], Awaitable[object]],
        wake_tiering: Callable[[TopicPartition], None],
        clock: Clock,
        guard: JumpGuard,
        note_time: Callable[[TimestampMs], Awaitable[object]],
        interval_ms: int,
    ) -> None:
        """`logs` returns the served logs. `write_log_starts` returns once the log starts of all of
        them are durable, but for those in the log folders that it names. `purge_deleted` unlinks
        what is due by monotonic time, and `note_time` stores the believed time of `guard`.
        """
        self._logs = logs
        self._write_log_starts = write_log_starts
        self._purge_deleted = purge_deleted
        self._wake_tiering = wake_tiering
        self._clock = clock
        self._interval_ms = interval_ms
        self._guard = guard
        self._note_time = note_time
        # Logs whose round failed, with the reason that was logged.
        self._failing: dict[TopicPartition, str] = {}
        # When the first archived segment was last searched for the first record that stays.
        self._searched_ms: dict[TopicPartition, TimestampMs] = {}

    async def run(self) -> None:
        """Runs a round every `interval_ms`, until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            await self.run_once()

    async def run_once(self) -> int:
        """Runs one round over all logs; returns the number of freed local segments.

        A log that fails is noted and does not stop the others.
        """
        now_ms = self._guard.now_ms()
        freed_count = 0
        failed: set[TopicPartition] = set()
        turn = Turn()
        async for unified_log in in_turns(tuple(self._logs()), turn):
            try:
                self._roll_if_outlived(unified_log, now_ms)  # 1
                await self._drop_old_units(unified_log, now_ms)  # 2
                await self._pass_old_records(unified_log, now_ms)
            except StorageError as error:
                self._note_failure(unified_log, error)
                failed.add(unified_log.topic_partition)
        failed |= await self._checkpoint()  # 3
        async for unified_log in in_turns(tuple(self._logs()), turn):
            try:
                freed_count += await self._free(unified_log, now_ms)  # 4
            except StorageError as error:
                self._note_failure(unified_log, error)
                failed.add(unified_log.topic_partition)
        await self._unlink()  # 5
        self._failing = {tp: why for tp, why in self._failing.items() if tp in failed}
        served = {unified_log.topic_partition for unified_log in self._logs()}
        self._searched_ms = {tp: ms for tp, ms in self._searched_ms.items() if tp in served}
        return freed_count

    # --- 1 roll ------------------------------------------------------------------------------

    def _roll_if_outlived(self, unified_log: UnifiedLog, now_ms: TimestampMs) -> None:
        if unified_log.local.roll_if_expired(self._clock.now_ms()):
            return
        if unified_log.is_tiered and not all(
            s.is_active for s in unified_log.only_local_segments()
        ):
            # Closed segments wait for their copies. One more now makes small objects, and while the
            # store is unavailable one in each round.
            return
        active = [LocalUnit(unified_log.local.active_segment)]
        verdicts = [
            judge(active, limits, now_ms=now_ms, log_start_offset=0)
            for limits in (_total_limits(unified_log), _local_limits(unified_log))
        ]
        if any(verdict.roll_active for verdict in verdicts):
            unified_log.local.roll()

    # --- 2 move ------------------------------------------------------------------------------

    async def _drop_old_units(self, unified_log: UnifiedLog, now_ms: TimestampMs) -> None:
        if not unified_log.may_append or _is_followed(unified_log):
            # The archive reaches beyond the local log, and the log start would, too; or the leader
            # decides what the archive keeps.
            return
        config = unified_log.config
        verdict = await self._judge_total(unified_log, now_ms)
        if verdict.end_offset is not None:
            self._move_log_start(unified_log, verdict.end_offset, verdict.reasons[-1], config)

    async def _pass_old_records(self, unified_log: UnifiedLog, now_ms: TimestampMs) -> None:
        """Moves the log start past expired records of the archived segment that it lies in."""
        config, remote, gate = unified_log.config, unified_log.remote, _gate(unified_log)
        span_ms = config.archived_span_ms_max
        if remote is None or remote.manifest is None or span_ms is None:
            return
        if not _is_gated_by_archive(unified_log):
            return
        if not unified_log.may_append or not config.archive_is_readable:
            return
        if _is_followed(unified_log):
            return
        searched_ms = self._searched_ms.get(unified_log.topic_partition)
        if searched_ms is not None and 0 <= now_ms - searched_ms < span_ms:
            return
        cutoff_ms = now_ms - config.retention_ms
        entry = await remote.find_entry(unified_log.log_start_offset)
        # What one segment spans by itself is as in Kafka: it may hold old records that came lately.
        late_ms = span_ms + config.segment_age_ms_max
        if entry is None or not 0 <= entry.oldest_ms < cutoff_ms - late_ms:
            return
        if now_ms - entry.uploaded_ms < late_ms:
            return
        self._searched_ms[unified_log.topic_partition] = now_ms
        first_kept = await unified_log.find_timestamp(cutoff_ms + 1)
        if first_kept is not None:
            # Not past the segment: the next one may be of records without a time, and young.
            end_offset = min(first_kept.offset, entry.end_offset, gate)
            self._move_log_start(unified_log, end_offset, DropReason.AGE, config)

    def _move_log_start(
        self, unified_log: UnifiedLog, offset: Offset, reason: DropReason, config: LogConfig
    ) -> None:
        """Moves the log start, unless `config` was altered while the store was asked.

        The next round decides by the new limits.
        """
        if offset <= unified_log.log_start_offset or unified_log.config is not config:
            return
        unified_log.move_log_start(offset)
        self._wake_tiering(unified_log.topic_partition)
        log.info(
            "retention moved the log start",
            extra={
                "fields": {
                    "partition": str(unified_log.topic_partition),
                    "log_start_offset": offset,
                    "reason": reason.value,
                }
            },
        )

    async def _judge_total(self, unified_log: UnifiedLog, now_ms: TimestampMs) -> RetentionVerdict:
        """Returns the verdict over both tiers; reads only the sealed page at the border."""
        decide = partial(
            judge,
            limits=_total_limits(unified_log),
            now_ms=now_ms,
            log_start_offset=unified_log.log_start_offset,
            gate_offset=_gate(unified_log),
        )
        only_local = [LocalUnit(segment) for segment in unified_log.only_local_segments()]
        remote = unified_log.remote
        manifest = None if remote is None else remote.manifest
        if remote is None or manifest is None:
            return decide(only_local)
        entries = [RetentionUnit.archived(entry) for entry in manifest.segments]
        pages = [_page_unit(page) for page in manifest.pages]
        verdict = decide([*pages, *entries, *only_local])
        if verdict.drop_count >= len(pages):
            return verdict
        border = await remote.page_entries(manifest.pages[verdict.drop_count])
        units = pages[: verdict.drop_count] + [RetentionUnit.archived(entry) for entry in border]
        return decide([*units, *pages[verdict.drop_count + 1 :], *entries, *only_local])

    # --- 3 write -----------------------------------------------------------------------------

    async def _checkpoint(self) -> set[TopicPartition]:
        """Makes pending log starts durable; returns the logs for which that failed."""
        log_starts = [
            (unified_log, unified_log.log_start_offset)
            for unified_log in self._logs()
            if unified_log.log_start_offset > unified_log.durable_log_start_offset
            or (unified_log.highest_remote_offset >= 0 and not unified_log.is_log_start_noted)
        ]
        if not log_starts:
            return set()
        try:
            failed_folders = await self._write_log_starts()
        except StorageError as error:
            for unified_log, _ in log_starts:
                self._note_failure(unified_log, error)
            return {unified_log.topic_partition for unified_log, _ in log_starts}
        failed: set[TopicPartition] = set()
        for unified_log, log_start_offset in log_starts:
            if unified_log.local.directory.parent in failed_folders:
                failed.add(unified_log.topic_partition)
            else:
                unified_log.note_checkpointed(log_start_offset)
        return failed

    # --- 4 free ------------------------------------------------------------------------------

    async def _free(self, unified_log: UnifiedLog, now_ms: TimestampMs) -> int:
        end_offset = _judge_local(unified_log, now_ms).end_offset
        if end_offset is None:
            return 0
        remote = unified_log.remote
        if remote is not None and _needs_archive(unified_log, end_offset):
            config = unified_log.config
            try:
                await remote.confirm()
            except TierUnavailable:
                end_offset = unified_log.durable_log_start_offset
            if unified_log.config is not config:
                # The next round decides by the new limits.
                return 0
        freed = unified_log.free_segments(end_offset)
        if freed:
            log.info(
                "local segments freed",
                extra={
                    "fields": {
                        "partition": str(unified_log.topic_partition),
                        "segments": len(freed),
                        "local_start_offset": unified_log.local_start_offset,
                    }
                },
            )
        return len(freed)

    # --- 5 unlink ----------------------------------------------------------------------------

    async def _unlink(self) -> None:
        try:
            # First: the time is written to the same disk, which may be full.
            await self._purge_deleted(self._clock.monotonic_s())
            await self._note_time(self._guard.now_ms())
        except StorageError as error:
            log.warning("files not unlinked", extra={"fields": {"reason": str(error)}})

    def _note_failure(self, unified_log: UnifiedLog, error: StorageError) -> None:
        """Logs, once per change, why a log's retention fails."""
        topic_partition, reason = unified_log.topic_partition, type(error).__name__
        if self._failing.get(topic_partition) != reason:
            self._failing[topic_partition] = reason
            log.warning(
                "retention does not succeed, will be tried again",
                extra={"fields": {"partition": str(topic_partition), "reason": str(error)}},
            )

    def __repr__(self) -> str:
        return f"<RetentionEnforcer {self._guard!r} failing={sorted(self._failing)}>"


# --- inputs of the policy ----------------------------------------------------------------------


def _total_limits(unified_log: UnifiedLog) -> RetentionLimits:
    if "delete" not in unified_log.config.cleanup_policy:
        return NO_LIMITS
    return RetentionLimits.total(unified_log.config)


def _local_limits(unified_log: UnifiedLog) -> RetentionLimits:
    """Limits of the local files; without tiering the log start alone limits them."""
    if not unified_log.is_tiered:
        return NO_LIMITS
    return RetentionLimits.local(unified_log.config)


def _judge_local(unified_log: UnifiedLog, now_ms: TimestampMs) -> RetentionVerdict:
    return judge(
        [LocalUnit(segment) for segment in unified_log.local.segments],
        _local_limits(unified_log),
        now_ms=now_ms,
        log_start_offset=unified_log.log_start_offset,
    )


def _needs_archive(unified_log: UnifiedLog, end_offset: Offset) -> bool:
    """Whether local files up to there go because the archive has them, or would if it has.

    Where another broker writes the archive it may have more than is known here.
    """
    if unified_log.frees_archived(end_offset):
        return True
    is_unknown = end_offset > unified_log.highest_remote_offset + 1
    return is_unknown and unified_log.is_tiered and _is_followed(unified_log)


def _is_gated_by_archive(unified_log: UnifiedLog) -> bool:
    return unified_log.is_tiered and not unified_log.config.remote_log_copy_disable


def _gate(unified_log: UnifiedLog) -> Offset:
    """Returns the offset up to which the limits of the whole log apply."""
    high_watermark = unified_log.high_watermark
    if not _is_gated_by_archive(unified_log):
        return high_watermark
    remote = unified_log.remote
    assert remote is not None
    if not remote.life.may_free or remote.end_offset is None:
        return unified_log.log_start_offset
    return min(remote.end_offset, high_watermark)


@dataclass(frozen=True, slots=True)
class LocalUnit:
    """A local segment as a unit of the policy; it is opened only when its times are needed."""

    segment: LogSegment

    @property
    def end_offset(self) -> Offset:
        return self.segment.end_offset

    @property
    def size_bytes(self) -> int:
        return self.segment.size_bytes

    @property
    def newest_ms(self) -> TimestampMs:
        return newest_ms(self.segment)

    @property
    def is_active(self) -> bool:
        return self.segment.is_active

    @property
    def written_ms(self) -> TimestampMs:
        return self.segment.created_ms if self.segment.is_active else 0


def _page_unit(page: PageRef) -> RetentionUnit:
    """Returns a whole page; one without timestamps never expires by age, but its entries may."""
    return RetentionUnit(
        end_offset=page.end_offset,
        size_bytes=page.size_bytes,
        newest_ms=page.max_timestamp_ms if page.max_timestamp_ms >= 0 else 2**63 - 1,
    )


def _is_followed(unified_log: UnifiedLog) -> bool:
    """Whether another broker leads its archive, and moves its log start."""
    return unified_log.remote is not None and unified_log.remote.life.is_followed

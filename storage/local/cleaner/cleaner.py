"""The log cleaner: compacts the dirtiest log, then the next one, while the broker serves requests.

    worker      pick the dirtiest log ── plan (plan.py) ── nothing due: wait backoff.ms
                   │
    child          └─> index keys, copy group by group          (cleaning.py, process.py)
                          │ a group is on disk
    worker + loop         └─> swap it in, next group             (swap)
                                 │ the last one
                                 └─> checkpoint: clean up to here

There are log.cleaner.threads workers with a child each; a log has one worker at a time. Reads and
appends continue: files are replaced, never changed. Before a worker swaps a group in, it checks the
log again: if retention removed one of the segments, or the log was removed, the round ends and a
later round does the rest.

A log with damaged records, or whose cleaning crashes the child repeatedly, is uncleanable until the
next start; the cleaner continues with the others. After a disk error, or a single crash, which may
be a lack of memory, the log is retried later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from strandline.storage import files
from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock
from strandline.storage.concurrency.alterations import Alterations
from strandline.storage.concurrency.tasks import side_by_side
from strandline.storage.config.definition import BOOLEAN, DOUBLE, INT, LONG, MIB, key
from strandline.storage.crash_points import (
    CLEAN_AFTER_CHECKPOINT,
    CLEAN_BEFORE_CHECKPOINT,
    crash_point,
)
from strandline.storage.errors import (
    DiskError,
    InvalidConfig,
    OutOfResources,
    StrandlineError,
)
from strandline.storage.local.cleaner.facts import (
    horizon_end_offset,
    is_in_reach,
    log_facts,
    producer_tails,
    rewritable,
    segment_facts,
)
from strandline.storage.local.cleaner.messages import (
    CleanedGroup,
    CleanerFigures,
    CleaningRequest,
    CleaningStatistics,
)
from strandline.storage.local.cleaner.plan import CleaningPlan, plan_cleaning
from strandline.storage.local.cleaner.process import CleanerProcess
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.segment import swap
from strandline.storage.local.segment.cleaned_segment import remove_cleaned
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.model import TimestampMs, TopicId, TopicIdPartition, TopicPartition
from strandline.storage.system.child_process import ChildFailed

log = logging.getLogger(__name__)

# Waits before a log is retried: the first one after a disk error, as a full disk stays full for a
# while, and the next one after each crash of the child.
RETRIES = Backoff(60.0, 480.0)

# After so many crashes with such pauses, a lack of memory is not the reason.
CHILD_DEATHS_MAX = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """Resources for compaction of local logs; sizes and the rate are for all threads together."""

    is_enabled: bool = key(
        "log.cleaner.enable",
        BOOLEAN,
        True,
        "Compact the topics with cleanup.policy=compact, __consumer_offsets among them. Without it"
        " they only grow.",
    )
    threads: int = key(
        "log.cleaner.threads",
        INT,
        1,
        "Logs compacted at the same time, each in a process of its own.",
        minimum=0,
        maximum=1000,
    )
    io_bytes_per_s: float = key(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        "1.7976931348623157E308",
        "Bytes per second that all compaction together may read and write.",
        minimum=1,
        dynamic=True,
    )
    dedupe_buffer_bytes: int = key(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        128 * MIB,
        "Memory for keys during compaction over all threads, in bytes: 24 for each key. Further"
        " passes compact what does not fit. At least 1 MiB for each thread.",
        minimum=MIB,
        dynamic=True,
    )
    io_buffer_bytes: int = key(
        "log.cleaner.io.buffer.size",
        INT,
        512 * 1024,
        "Memory to read and write with during compaction over all threads, in bytes; it grows for"
        " larger batches.",
        minimum=0,
        dynamic=True,
    )
    load_factor: float = key(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        "0.9",
        "How full the memory for keys may become, 0 to 1; the fuller, the slower a look-up.",
        minimum=0.01,
        maximum=0.99,
        dynamic=True,
    )
    backoff_ms: int = key(
        "log.cleaner.backoff.ms",
        LONG,
        15_000,
        "Ms until the next check for a log to compact, if there was none.",
        minimum=0,
        dynamic=True,
    )

    def check(self) -> None:
        """Raises InvalidConfig if keys contradict each other."""
        if self.dedupe_buffer_bytes < self.threads * MIB:
            raise InvalidConfig(
                f"log.cleaner.dedupe.buffer.size={self.dedupe_buffer_bytes}: expected at least"
                f" 1 MiB for each of the {self.threads} threads of log.cleaner.threads"
            )


class CleanedOffsets(Protocol):
    """The cleaner-offset checkpoint of all logs; LogDirs keeps it."""

    def cleaned_offset(self, opened: LocalLog) -> int | None: ...

    def write_cleaned_offset(self, opened: LocalLog, offset: int) -> None: ...


class _RoundEnded(Exception):
    """The log changed during the cleaning, or was removed; not an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A log with records to compact."""

    log: LocalLog
    plan: CleaningPlan


class LogCleaner:
    """The worker pool that compacts logs in child processes. Used on the event loop only."""

    def __init__(
        self,
        logs: Callable[[], Iterable[LocalLog]],
        *,
        offsets: CleanedOffsets,
        executor: Executor,
        clock: Clock,
        settings: Callable[[], CleanerConfig],
        believed_ms: Callable[[], TimestampMs] | None = None,
        make_process: Callable[[Clock], CleanerProcess] = CleanerProcess,
        alterations: Alterations | None = None,
    ) -> None:
        """`logs` returns the logs that are served now. `executor` has a thread for each worker.

        `settings` is read again for every cleaning, and its rate during one; the number of threads
        only now. `alterations` end a sleep when it is altered. `believed_ms` is the time that lags
        and tombstones are compared with; None: the clock's, with its jumps.
        """
        self._logs = logs
        self._offsets = offsets
        self._executor = executor
        self._clock = clock
        self._believed_ms = believed_ms or clock.now_ms
        self._settings = settings
        self._alterations = alterations or Alterations()
        self.figures = CleanerFigures(last_look_ms=clock.now_ms())
        self._processes = [make_process(clock) for _ in range(settings().threads)]
        self._busy: dict[TopicPartition, CleanerProcess] = {}
        # How many callers asked to pause the cleaning of a log.
        self._paused: dict[TopicPartition, int] = {}
        # Logs whose cleaning was aborted because a caller asked for a pause.
        self._abandoned: set[TopicPartition] = set()
        self._uncleanable: dict[TopicPartition, TopicId] = {}
        # By the monotonic clock. This and the next are not keyed by the name of the log alone: a
        # topic that is re-created under the same name starts without failures.
        self._retry_at_s: dict[TopicIdPartition, float] = {}
        # How often in a row the child crashed on the log, or could not be started for it.
        self._child_deaths: dict[TopicIdPartition, int] = {}

    # --- running -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Cleans logs that are due until it is cancelled."""
        await side_by_side(*(self._work(process) for process in self._processes))

    async def _work(self, process: CleanerProcess) -> None:
        while True:
            if not await self._clean_dirtiest(process):
                await self._in(process.end_if_idle)
                await self._alterations.sleep(lambda: self._settings().backoff_ms / 1000)

    async def run_once(self) -> int:
        """Cleans until no log is due; returns how many it cleaned. For tests and tools."""
        cleaned_count = 0
        while await self._clean_dirtiest(self._processes[0]):
            cleaned_count += 1
        return cleaned_count

    def close(self) -> None:
        """Ends the children; the next start removes their unfinished files."""
        for process in self._processes:
            process.close()

    def end(self) -> None:
        """Waits for the children after `close`; blocks."""
        for process in self._processes:
            process.stop()

    def uncleanable(self) -> frozenset[TopicPartition]:
        """Logs that are not compacted again until the next start."""
        return frozenset(self._uncleanable)

    @contextmanager
    def paused(self, topic_partition: TopicPartition) -> Iterator[None]:
        """Inside the block the log is not cleaned; a running cleaning is aborted."""
        self._paused[topic_partition] = self._paused.get(topic_partition, 0) + 1
        process = self._busy.get(topic_partition)
        if process is not None:
            self._abandoned.add(topic_partition)
            process.abandon()
        try:
            yield
        finally:
            self._paused[topic_partition] -= 1
            if not self._paused[topic_partition]:
                del self._paused[topic_partition]

    # --- choosing ----------------------------------------------------------------------------

    def _dirtiest(self, now_ms: int) -> _Candidate | None:
        """Returns the log to clean next; Kafka's grabFilthiestCompactedLog."""
        served: dict[TopicPartition, TopicId] = {}
        candidates: list[_Candidate] = []
        dirty_ratio_max = 0.0
        uncleanable_bytes = 0
        for opened in self._logs():
            served[opened.topic_partition] = opened.topic_id
            if not opened.config.is_compacted or not is_in_reach(opened):
                continue
            try:
                plan = self._plan(opened, now_ms)
            except StrandlineError as error:
                self._mark_uncleanable(opened, error)
                continue
            if opened.topic_partition in self._uncleanable:
                uncleanable_bytes += plan.dirty_bytes
                continue
            dirty_ratio_max = max(dirty_ratio_max, plan.dirty_ratio)
            if self._may_clean(opened) and plan.is_due(opened.config):
                candidates.append(_Candidate(log=opened, plan=plan))
        self._uncleanable = {
            key: topic_id
            for key, topic_id in self._uncleanable.items()
            if served.get(key) == topic_id
        }
        for known in self._child_deaths.keys() | self._retry_at_s.keys():
            if served.get(known.topic_partition) != known.topic_id:
                self._child_deaths.pop(known, None)
                self._retry_at_s.pop(known, None)
        figures = self.figures
        figures.last_look_ms = self._clock.now_ms()
        figures.dirty_ratio_max = dirty_ratio_max
        figures.uncleanable_partitions = len(self._uncleanable)
        figures.uncleanable_bytes = uncleanable_bytes
        figures.delay_ms_max = max((candidate.plan.delay_ms for candidate in candidates), default=0)
        return max(candidates, key=lambda candidate: candidate.plan.dirty_ratio, default=None)

    def _may_clean(self, opened: LocalLog) -> bool:
        key = opened.topic_partition
        return (
            key not in self._busy
            and key not in self._paused
            and self._retry_at_s.get(_identity(opened), 0.0) <= self._clock.monotonic_s()
        )

    def _plan(self, opened: LocalLog, now_ms: int) -> CleaningPlan:
        cleaned_offset = self._offsets.cleaned_offset(opened)
        return plan_cleaning(log_facts(opened), cleaned_offset=cleaned_offset, now_ms=now_ms)

    def _mark_uncleanable(self, opened: LocalLog, error: Exception) -> None:
        if self._uncleanable.get(opened.topic_partition) != opened.topic_id:
            self._uncleanable[opened.topic_partition] = opened.topic_id
            _warn(
                "log cannot be compacted, left alone until the next start",
                opened.topic_partition,
                error,
            )

    def _note_failure(self, opened: LocalLog, error: Exception) -> None:
        """Decides whether the log is tried again."""
        key = _identity(opened)
        match error:
            case _RoundEnded():
                return
            case DiskError():
                failures = 1
            # A fault of the machine: the child died, or no thread or no memory was left.
            case ChildFailed() | OutOfResources() | RuntimeError() | MemoryError():
                failures = self._child_deaths[key] = self._child_deaths.get(key, 0) + 1
            case _:
                failures = CHILD_DEATHS_MAX
        if failures >= CHILD_DEATHS_MAX:
            self._mark_uncleanable(opened, error)
            return
        self._retry_at_s[key] = self._clock.monotonic_s() + RETRIES.wait_s(failures)
        _warn("log not compacted, will be tried again", opened.topic_partition, error)

    # --- cleaning ----------------------------------------------------------------------------

    async def _clean_dirtiest(self, process: CleanerProcess) -> bool:
        """Cleans one log; False if none is due."""
        candidate = self._dirtiest(self._believed_ms())
        if candidate is None:
            return False
        opened = candidate.log
        key = opened.topic_partition
        self._busy[key] = process
        try:
            await self._clean(process, candidate)
            self._child_deaths.pop(_identity(opened), None)
        except Exception as error:  # any error: the other logs go on
            await self._stop(process, opened)
            if self._is_wanted(opened) and key not in self._abandoned:
                self._note_failure(opened, error)
        except BaseException:
            process.abandon()
            raise
        finally:
            del self._busy[key]
            self._abandoned.discard(key)
        return True

    async def _stop(self, process: CleanerProcess, opened: LocalLog) -> None:
        """Ends the child and removes the files it wrote, as far as possible."""
        await self._in(process.stop)
        try:
            await self._in(partial(swap.clear_unfinished, opened.directory))
        except DiskError as error:
            _warn("files of a compaction not removed", opened.topic_partition, error)

    async def _clean(self, process: CleanerProcess, candidate: _Candidate) -> None:
        opened, plan = candidate.log, candidate.plan
        if plan.resets_checkpoint or self._offsets.cleaned_offset(opened) is None:
            # Recovery then accepts gaps between offsets, even if cleanup.policy changes.
            await self._checkpoint(opened, plan.first_dirty_offset)
        started_s = self._clock.monotonic_s()
        segments = [s for s in rewritable(opened) if s.end_offset <= plan.first_uncleanable_offset]
        request = self._request(opened, segments, plan)
        start_offset = opened.start_offset
        try:
            answer = await self._clean_groups(process, opened, request)
        except DiskError as error:
            if opened.start_offset != start_offset:
                # A file that is missing was removed by retention, or by a new start of the log.
                raise _RoundEnded from error
            raise
        self._check_wanted(opened)
        crash_point(CLEAN_BEFORE_CHECKPOINT)
        await self._checkpoint(opened, answer.next_dirty_offset)  # 8
        crash_point(CLEAN_AFTER_CHECKPOINT)
        elapsed_s = self._clock.monotonic_s() - started_s
        self.figures.note_cleaning(answer, elapsed_s=elapsed_s)
        _report(opened, plan, answer, elapsed_s)

    async def _clean_groups(
        self, process: CleanerProcess, opened: LocalLog, request: CleaningRequest
    ) -> CleaningStatistics:
        await self._in(partial(process.begin, request))
        while True:
            answer = await self._in(partial(process.next, io_bytes_per_s=self._io_bytes_per_s))
            if isinstance(answer, CleaningStatistics):
                return answer
            assert isinstance(answer, CleanedGroup), answer
            await self._swap(opened, answer)
            await self._in(process.proceed)

    def _request(
        self, opened: LocalLog, segments: list[LogSegment], plan: CleaningPlan
    ) -> CleaningRequest:
        settings, threads = self._settings(), len(self._processes)
        start_offset = segments[0].base_offset
        aborted = opened.aborted_transactions(start_offset, plan.first_uncleanable_offset)
        return CleaningRequest(
            directory=opened.directory,
            config=opened.config,
            segments=tuple(map(segment_facts, segments)),
            first_dirty_offset=plan.first_dirty_offset,
            first_uncleanable_offset=plan.first_uncleanable_offset,
            horizon_end_offset=horizon_end_offset(opened, start_offset),
            keeps_segments=opened.config.remote_storage_enable,
            producers=tuple(producer_tails(opened)),
            aborted=tuple(aborted),
            now_ms=self._believed_ms(),
            key_bytes_max=settings.dedupe_buffer_bytes // threads,
            load_factor=settings.load_factor,
            # One buffer is read into, one is written from.
            io_bytes=settings.io_buffer_bytes // threads // 2,
            io_bytes_per_s=self._io_bytes_per_s(),
        )

    def _io_bytes_per_s(self) -> float:
        """The share of one cleaning in the rate that is allowed now; thread-safe."""
        return self._settings().io_bytes_per_s / len(self._processes)

    async def _swap(self, opened: LocalLog, group: CleanedGroup) -> None:
        """Steps 2 to 7 of swap.py. Raises _RoundEnded, StorageError."""
        if group.facts is None:
            return
        base_offset = group.facts.base_offset
        if not self._is_unchanged(opened, group):
            await self._in(partial(remove_cleaned, opened.directory, base_offset))
            raise _RoundEnded
        try:
            file = await self._in(partial(swap.commit_swap, opened.directory, group.facts))  # 2 3
        except DiskError:
            self._check_wanted(opened)
            raise
        # Checked again: the loop ran other tasks while the names were made durable.
        if not self._is_unchanged(opened, group):
            await self._in(partial(swap.withdraw, opened.directory, base_offset))
            raise _RoundEnded
        opened.replace_segments(_sources(opened, group), file, group.facts)  # 4 5 6
        await self._in(partial(files.sync_directory, opened.directory))  # 7

    def _is_unchanged(self, opened: LocalLog, group: CleanedGroup) -> bool:
        """Returns whether the log still has the source segments as the child read them."""
        if not self._is_wanted(opened):
            return False
        present = {s.base_offset: s for s in rewritable(opened)}
        for source in group.sources:
            segment = present.get(source.base_offset)
            if segment is None or segment.end_offset != source.end_offset:
                return False
            if segment.size_bytes != source.size_bytes:
                return False
        return True

    def _is_wanted(self, opened: LocalLog) -> bool:
        """Returns whether the log is still served and compacted, and no caller has paused it."""
        return (
            opened.config.is_compacted
            and opened.topic_partition not in self._paused
            and any(served is opened for served in self._logs())
        )

    def _check_wanted(self, opened: LocalLog) -> None:
        if not self._is_wanted(opened):
            raise _RoundEnded

    async def _checkpoint(self, opened: LocalLog, offset: int) -> None:
        await self._in(partial(self._offsets.write_cleaned_offset, opened, offset))

    async def _in(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def __repr__(self) -> str:
        return f"<LogCleaner busy={sorted(self._busy)} uncleanable={sorted(self._uncleanable)}>"


def _identity(opened: LocalLog) -> TopicIdPartition:
    key = opened.topic_partition
    return TopicIdPartition(key.topic, opened.topic_id, key.partition)


def _sources(opened: LocalLog, group: CleanedGroup) -> list[LogSegment]:
    wanted = {source.base_offset for source in group.sources}
    return [segment for segment in opened.segments if segment.base_offset in wanted]


def _warn(event: str, key: TopicPartition, error: Exception) -> None:
    log.warning(
        event,
        extra={
            "fields": {"partition": str(key), "reason": str(error), "kind": type(error).__name__}
        },
    )


def _report(
    opened: LocalLog, plan: CleaningPlan, done: CleaningStatistics, elapsed_s: float
) -> None:
    log.info(
        "log compacted",
        extra={
            "fields": {
                "partition": str(opened.topic_partition),
                "first_dirty_offset": plan.first_dirty_offset,
                "next_dirty_offset": done.next_dirty_offset,
                "bytes_read": done.bytes_read,
                "bytes_written": done.bytes_written,
                "records_read": done.records_read,
                "records_kept": done.records_kept,
                "keys": done.key_count,
                "elapsed_s": round(elapsed_s, 3),
            }
        },
    )
    if done.keyless_records or done.unreadable_batches:
        log.warning(
            "log has records that cannot be compacted",
            extra={
                "fields": {
                    "partition": str(opened.topic_partition),
                    "keyless_records_dropped": done.keyless_records,
                    "unreadable_batches_kept": done.unreadable_batches,
                }
            },
        )

"""Cold reads of a fetch: reads archived partitions in parallel, within a bounded wait.

prefetched                  answered from memory, without a task
else                        read within remote.fetch.max.wait.ms; a late read is answered
                            empty, and its download goes on for the next fetch
larger than the budget left answered empty, except the first batch of an answer
the store is unavailable    answered empty, after the full wait; KAFKA_STORAGE_ERROR once the
                            reader has asked in vain for some seconds (`unanswered.py`)
held back for live traffic  finished reads do not wait for late ones: at the lowest pace, a
                            partition's next download may be seconds away
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.fetch.partition_answers import (
    error_answer,
    records_answer,
    with_aborted,
)
from strandline.broker.handlers.fetch.plan import FetchPass, FetchPlan
from strandline.broker.handlers.fetch.sessions import WantedPartition
from strandline.broker.handlers.fetch.unanswered import LATE_S, UNAVAILABLE_S, UnansweredReads
from strandline.broker.protocol.messages.fetch import FetchResponsePartition
from strandline.broker.telemetry.requests import RemoteWaits
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import eager_start
from strandline.storage.errors import (
    RecordsRejected,
    StorageError,
    TierUnavailable,
)
from strandline.storage.model import Isolation, Offset
from strandline.storage.quiet_log import QuietLog
from strandline.storage.tiering.log.cold_read import RemoteRead
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.policy.quota import QuotaExceeded

log = logging.getLogger(__name__)

# A store may be unavailable for days, and every partition that is read logs its line.
FAILURE_TOLD_AGAIN_S = 600.0
# Too short for a client to notice, and enough for reads that are about to finish.
HELD_WAIT_MS = 20

_Outcome: TypeAlias = RemoteRead | RecordsRejected | StorageError
# The position in the answer, the partition, and the running read.
_Reading: TypeAlias = tuple[int, Partition, asyncio.Future[_Outcome]]
ReadPartition: TypeAlias = Callable[
    [FetchPlan, WantedPartition, Partition, FetchPass], FetchResponsePartition
]


class ColdFetches:
    """Reader of the partitions that a pass marked as remote."""

    def __init__(
        self,
        read_partition: ReadPartition,
        *,
        wait_ms_max: Callable[[], int],
        bytes_max: Callable[[], int | None],
        waits: RemoteWaits,
        clock: Clock,
    ) -> None:
        """`read_partition` reads a partition's local disk; `waits` counts the waiting fetches.

        `wait_ms_max` is read again for each fetch: it may be altered. So is `bytes_max`, the limit
        for archived bytes in one answer; None is no limit.
        """
        self._read_partition = read_partition
        self._wait_ms_max = wait_ms_max
        self._bytes_max = bytes_max
        self._waits = waits
        self._clock = clock
        self._unanswered = UnansweredReads()
        self._quiet_log = QuietLog(log, clock, quiet_s=FAILURE_TOLD_AGAIN_S)

    def read(self, plan: FetchPlan, found: FetchPass) -> Awaitable[None] | None:
        """Reads the cold partitions in parallel, within the byte budget that is left.

        Answers prefetched ones at once. Returns None if that was all; else an awaitable for the
        others.
        """
        share = self._share(plan, found)
        coming: list[_Reading] = []
        for position in found.remote:
            wanted, partition, _ = found.answers[position]
            assert partition is not None, wanted
            bytes_max = min(wanted.partition_bytes_max, share)
            reading = eager_start(
                _outcome(partition.log, wanted.fetch_offset, bytes_max, plan.isolation)
            )
            if reading.done() and isinstance(read := reading.result(), RemoteRead):
                self._accept(plan, found, position, partition, read)
            else:
                coming.append((position, partition, reading))
        found.remote.clear()
        return self._wait(plan, found, coming) if coming else None

    async def _wait(self, plan: FetchPlan, found: FetchPass, coming: Sequence[_Reading]) -> None:
        wait_ms = self._wait_ms_max()
        is_held = bool(found.total_bytes) and self._bytes_max() is not None
        if is_held:
            wait_ms = min(wait_ms, HELD_WAIT_MS)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        readings = [reading for *_, reading in coming]
        self._waits.waiting += 1
        try:
            done, late = await asyncio.wait(readings, timeout=wait_ms / 1000)
        finally:
            self._waits.waiting -= 1
            for reading in readings:
                reading.cancel()  # if it is late, or the caller is gone; its download continues
        if late and not is_held:
            self._waits.expired += 1
        is_unavailable = False
        for position, partition, reading in coming:
            if reading not in done:
                # What makes way for live traffic is late on purpose.
                if self._bytes_max() is None and self._asked_s(found, position) >= LATE_S:
                    error = TierUnavailable(str(partition.topic_partition), "read", "no answer")
                    self._refuse(found, position, partition, error)
                continue
            outcome = reading.result()
            if isinstance(outcome, RemoteRead):
                self._accept(plan, found, position, partition, outcome)
            else:
                self._refuse(found, position, partition, outcome)
                is_unavailable |= isinstance(outcome, TierUnavailable)
        if is_unavailable:
            # Empty, after the full wait: an error now would only make the client spin.
            ends_s = began_s + min(plan.wait_ms_max, wait_ms) / 1000
            await asyncio.sleep(ends_s - loop.time())

    def _refuse(
        self,
        found: FetchPass,
        position: int,
        partition: Partition,
        error: RecordsRejected | StorageError,
    ) -> None:
        """Answers a failed read with an error, or empty while the store is briefly unavailable."""
        wanted = found.answers[position][0]
        if isinstance(error, StorageError):
            partition.traffic.remote_fetch_errors += 1
            where = partition.topic_partition
            # Once per interval and kind of reason: consumers retry constantly.
            self._quiet_log.say(
                logging.WARNING,
                "cold read failed",
                (where, type(error).__name__),
                {"partition": str(where), "offset": wanted.fetch_offset, "error": str(error)},
            )
        is_brief = isinstance(error, QuotaExceeded) or (
            isinstance(error, TierUnavailable) and self._asked_s(found, position) < UNAVAILABLE_S
        )
        if not is_brief:
            answer = error_answer(wanted.partition, error.kafka_code, partition)
            found.answers[position] = (wanted, partition, answer)

    def _asked_s(self, found: FetchPass, position: int) -> float:
        """Returns for how long the reader has asked for this offset in vain."""
        wanted, partition, _ = found.answers[position]
        assert partition is not None, wanted
        key = partition.topic_partition, wanted.fetch_offset
        return self._unanswered.unanswered(key, self._clock.monotonic_s())

    def _share(self, plan: FetchPlan, found: FetchPass) -> int:
        """Returns the byte budget of each cold partition."""
        held_bytes_max = self._bytes_max()
        bytes_max = plan.bytes_max
        if held_bytes_max is not None:
            bytes_max = min(bytes_max, held_bytes_max)
        return max((bytes_max - found.total_bytes) // len(found.remote), 1)

    def _accept(
        self,
        plan: FetchPlan,
        found: FetchPass,
        position: int,
        partition: Partition,
        read: RemoteRead,
    ) -> None:
        wanted = found.answers[position][0]
        self._unanswered.answered((partition.topic_partition, wanted.fetch_offset))
        if not read.buffers and read.next_offset > wanted.fetch_offset:
            # Compaction removed all archived records behind the offset: the rest is local.
            behind = replace(wanted, fetch_offset=read.next_offset)
            answer = self._read_partition(plan, behind, partition, FetchPass())
            found.total_bytes += answer.records_bytes
            found.answers[position] = (wanted, partition, answer)
            return
        if found.total_bytes and found.total_bytes + read.size_bytes > plan.bytes_max:
            # A batch may exceed a partition's share. As from disk, only the first one is sent in
            # any case; the next fetch finds this one in memory.
            return
        partition.traffic.remote_bytes_out += read.size_bytes
        found.total_bytes += read.size_bytes
        found.cold_bytes += read.size_bytes
        answer = records_answer(
            wanted.partition, partition, read.buffers, read.size_bytes, plan.isolation
        )
        if read.aborted:
            answer = with_aborted(answer, read.aborted)
        found.answers[position] = (wanted, partition, answer)


async def _outcome(
    log: UnifiedLog, offset: Offset, bytes_max: int, isolation: Isolation
) -> _Outcome:
    try:
        return await log.read_remote(offset, bytes_max=bytes_max, isolation=isolation)
    except (RecordsRejected, StorageError) as error:
        # Its frames reference the future that holds it: a cycle that would keep the fetched data.
        error.__traceback__ = None
        return error

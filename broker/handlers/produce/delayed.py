"""Answers to Produce with acks=all that wait for followers (Kafka's DelayedProduce).

    appended ──► each partition tells when its high watermark is there ──► the last one: answered
             ──► the request's timeout: REQUEST_TIMED_OUT for those that were not told

A waiting request is an entry in the deque of each partition and in one queue of times: it has no
task and no timer. Its answer is built in a later turn of the loop, not inside a follower's fetch.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.broker.cluster.in_sync.leading import Leading
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.protocol.messages.produce import ProduceResponsePartition
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import Offset


@dataclass(frozen=True, slots=True)
class PendingReplication:
    """An append whose answer waits for followers, and the position of that answer."""

    partition: Partition
    answers: list[ProduceResponsePartition]
    position: int
    # The lead under which it was appended.
    leading: Leading
    end_offset: Offset

    def outcome(self) -> ErrorCode | None:
        """Returns the code of the answer; None while it is to be waited for."""
        present = self.partition.leading
        if present is self.leading:
            return self.leading.wait(self.end_offset)
        if present is None and self.partition.is_leader:
            # There are no followers any more.
            return ErrorCode.NONE
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def fail(self, code: ErrorCode) -> None:
        self.answers[self.position] = self.answers[self.position].replaced(error_code=code)


class DelayedProduce:
    """One waiting request; used on the event loop only."""

    __slots__ = ("_finish", "_loop", "_missing", "_times", "_waits", "timeout_ms")

    def __init__(
        self,
        waits: Sequence[PendingReplication],
        times: DelayedTimes,
        timeout_ms: int,
        finish: Callable[[], None],
    ) -> None:
        """`finish` is called once, in a later turn of the loop, unless `cancel` is."""
        self._loop = asyncio.get_running_loop()
        self._waits = waits
        self._times = times
        self._finish: Callable[[], None] | None = finish
        self._missing: set[int] = set()
        self.timeout_ms = max(timeout_ms, 0)
        for index, wait in enumerate(waits):
            code = wait.outcome()
            if code is None:
                self._missing.add(index)
                wait.leading.waits.add(wait.end_offset, self, index)
            elif code is not ErrorCode.NONE:
                wait.fail(code)
        if self._missing:
            times.add(self)
        else:
            self._loop.call_soon(self._end)

    @property
    def is_over(self) -> bool:
        return self._finish is None or not self._missing

    def acknowledged(self, index: int, code: ErrorCode) -> None:
        if self._finish is None or index not in self._missing:
            return
        self._missing.discard(index)
        if code is not ErrorCode.NONE:
            self._waits[index].fail(code)
        if not self._missing:
            self._loop.call_soon(self._end)

    def expire(self) -> None:
        """Its time is over."""
        for index in self._missing:
            self._waits[index].fail(ErrorCode.REQUEST_TIMED_OUT)
        self._missing.clear()
        self._end()

    def cancel(self) -> None:
        """The client has gone."""
        self._finish = None
        self._missing.clear()
        self._times.discard(self)

    def _end(self) -> None:
        finish = self._finish
        if finish is not None:
            self.cancel()
            finish()


class DelayedTimes:
    """The times of all waiting requests: those of one timeout are due in the order they came."""

    def __init__(self) -> None:
        self._queues: dict[int, OrderedDict[DelayedProduce, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def add(self, delayed: DelayedProduce) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delayed.timeout_ms / 1000
        self._queues.setdefault(delayed.timeout_ms, OrderedDict())[delayed] = due_s
        if self._timer is None or due_s < self._timer.when():
            self._set_timer(due_s)

    def discard(self, delayed: DelayedProduce) -> None:
        queue = self._queues.get(delayed.timeout_ms)
        if queue is not None:
            queue.pop(delayed, None)
            if not queue:
                del self._queues[delayed.timeout_ms]

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        next_s = float("inf")
        for queue in tuple(self._queues.values()):
            while queue:
                delayed, due_s = next(iter(queue.items()))
                if due_s > now_s:
                    next_s = min(next_s, due_s)
                    break
                delayed.expire()
        if self._queues and self._timer is None:
            self._set_timer(next_s)

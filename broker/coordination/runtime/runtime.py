"""Runs a coordinator: its requests, and its time, over the slots that it has.

    read       find the slot, look at its shard                      wait, answer
    write      find the slot, decide, append, replay: one turn       wait, answer
    run        let time pass, load what is not loaded, sleep until woken

Finding refuses what is not served here (`slots.py`). The wait is for all that was written before,
also by others (`journal.py`), and refusals wait too: they tell of the state as well. So do Kafka's
CoordinatorRuntime and its operations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from strandline.broker.coordination.model.classic_messages import CoordinatorFault, Instant
from strandline.broker.coordination.runtime.slots import S, Slot, Slots
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import wait_within

T = TypeVar("T")

# Longest pause between two looks at the time: at logs to be read again, and at what failed.
POLL_S = 1.0


class CoordinatorRuntime(Generic[S]):
    """Runs the requests and the time of one coordinator. Used on the event loop only."""

    def __init__(self, slots: Slots[S], clock: Clock) -> None:
        self.slots = slots
        self._clock = clock
        # Lets `run` look at the time again.
        self.wake = slots.found.set

    def now(self) -> Instant:
        return Instant(self._clock.now_ms(), int(self._clock.monotonic_s() * 1000))

    async def read(self, name: str, look: Callable[[S], T]) -> T:
        """Answers from the state of an id, empty without the topic. Raises CoordinatorFault."""
        slot = self.slots.of(name)
        if slot is None:
            return look(self.slots.new_shard())
        try:
            return look(slot.shard)
        finally:
            await slot.journal.settled()

    async def read_all(self, look: Callable[[Iterable[S]], T]) -> T:
        """Answers from the state of all ids. Raises CoordinatorFault while any is loaded."""
        slots = self.slots.loaded()
        found = look([slot.shard for slot in slots])
        for slot in slots:
            await slot.journal.settled()
        return found

    async def write(
        self,
        name: str,
        act: Callable[[Slot[S]], T],
        *,
        absent: ErrorCode | None = None,
        must_flush: bool = False,
    ) -> T:
        """Carries out a request that may change the state of an id. Raises CoordinatorFault.

        Without the topic it is created, or `absent` is the answer. With `must_flush` the answer
        waits for this device, whatever `flush.messages` says.
        """
        slot = await self.slots.made_for(name) if absent is None else self.slots.of(name)
        if slot is None:
            raise CoordinatorFault(absent or ErrorCode.COORDINATOR_NOT_AVAILABLE)
        try:
            return act(slot)
        finally:
            await slot.journal.settled(must_flush=must_flush)

    async def run(
        self, on_loaded: Callable[[Slot[S]], None], pass_time: Callable[[], Awaitable[float]]
    ) -> None:
        """Loads what this broker leads, and lets time pass; never returns.

        `on_loaded` may serve a slot from then on. `pass_time` does what is due, and returns the
        seconds until more may be.
        """
        while True:
            self.slots.found.clear()
            idle_s = await pass_time()
            slot = self.slots.next_to_load()
            if slot is None:
                await wait_within(self.slots.found, max(0.0, min(idle_s, POLL_S)))
            else:
                await self.slots.load(slot, self.now, on_loaded)

"""The claim of an archive: one question at a time, and no answer is lost."""

from __future__ import annotations

import uuid

from strandline.broker.server.upkeep.claim import ArchiveClaim
from strandline.storage.remote.keys import CLUSTER_KEY
from tests.sim.loop import run
from tests.sim.pools import JobTime, TimedPool
from tests.support.memory_store import MemoryStore

WAIT_S = 5.0


def ask_twice(store: MemoryStore, answer_s: float) -> list[bool]:
    """What two attempts of `WAIT_S` learn from a store that takes so long."""

    async def attempts() -> list[bool]:
        worker = TimedPool(1, "manifests", lambda _: JobTime(seconds=answer_s))
        claim = ArchiveClaim(store, worker, cluster_id=str(uuid.UUID(int=1)))
        return [await claim.attempt(wait_s=WAIT_S) for _ in range(2)]

    return run(attempts)


def test_a_late_answer_is_taken_by_the_next_attempt() -> None:
    store = MemoryStore()
    assert ask_twice(store, WAIT_S + 1) == [False, True]
    assert store.count_requests("put", CLUSTER_KEY) == 1


def test_an_answer_in_the_turn_in_which_the_time_ends_is_taken() -> None:
    """It would be lost otherwise: neither this attempt nor the next one would have it."""
    store = MemoryStore()
    assert ask_twice(store, WAIT_S)[0]

"""A writer and a reader of the change list over one store, with a manual clock."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from strandline.storage.remote.keys import CHANGES_KEY
from strandline.storage.remote.manifest import change_list
from strandline.storage.remote.manifest.change_list import ChangeList
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.tiering.changes.change_reader import ChangeReader
from strandline.storage.tiering.changes.change_writer import ChangeWriter
from strandline.storage.tiering.policy.retry import RetryPolicy
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.unit.storage.tiering.harness import TOPIC_ID

INTERVAL_MS = 5_000
FULL_MS = 600_000
KEY = (TOPIC_ID, 0)


def manifest(revision: int, *, partition: int = 0, generation: str = "") -> Manifest:
    return Manifest(
        topic="flights",
        topic_id=TOPIC_ID,
        partition=partition,
        revision=revision,
        generation=generation,
    )


class World:
    """A store, a broker that writes the list, and a replica that reads it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.thread = ThreadPoolExecutor(1)
        self.is_ours = True
        self.writer = self.new_writer()
        self.reader = ChangeReader(self.store, clock=self.clock, full_interval_ms=FULL_MS)

    def new_writer(
        self, *, interval_ms: int = INTERVAL_MS, changes_max: int = 4, key: str = CHANGES_KEY
    ) -> ChangeWriter:
        """As the next start of the broker has it."""
        return ChangeWriter(
            self.store,
            executor=self.thread,
            clock=self.clock,
            retry=RetryPolicy(backoff_ms=500, jitter=0),
            may_write=lambda: self.is_ours,
            interval_ms=interval_ms,
            changes_max=changes_max,
            key=key,
        )

    def write(self, *, after_ms: int = INTERVAL_MS) -> None:
        self.clock.advance_ms(after_ms)
        asyncio.run(self.writer.step())

    @property
    def written(self) -> ChangeList:
        return change_list.load(self.store).changes

    @property
    def put_count(self) -> int:
        return self.store.count_requests("put")

    def follow(self) -> None:
        """What the writer has is written, and read."""
        self.write()
        self.reader.poll()

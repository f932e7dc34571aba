"""Writes the broker's list of manifest changes for replicas (change_list.py).

    1 a manifest is committed, or the mirror has an entry of the metadata log
    2 the change is noted, in memory
    3 some seconds later at most: the list is put over the one that lay there

A crash between 1 and 3 leaves a list without the change, and so does a stop while the store is
unreachable; any other stop writes a last list. The next start writes one of another incarnation at
once, and replicas then poll everything; without a next start they do so at their full interval. The
list is never ahead of 1: a replica that reads of a change finds it.

No step waits for 3. It has a thread of its own, pending changes are bounded, and a list that cannot
be written is retried with backoff without marking the store as down: a failed list must not stop
copies.

Only the archive's owner writes, conditionally on the list that this process wrote or found there: a
delayed PUT that was given up cannot overwrite a newer list.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from strandline.storage.clock import Clock
from strandline.storage.errors import ObjectNotFound, OutOfResources, StorageError
from strandline.storage.model import TopicId
from strandline.storage.remote.keys import CHANGES_KEY, new_unique
from strandline.storage.remote.manifest.change_list import CHANGES_MAX, ChangeList, ManifestChange
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectStore,
    PutCondition,
)
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState

# How often pending changes are checked; costs no request.
CHECK_S = 0.5


class ChangeWriter:
    """Writes the list of manifest changes. Used on the event loop only."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        executor: Executor,
        clock: Clock,
        retry: RetryPolicy,
        may_write: Callable[[], bool],
        interval_ms: int,
        key: str = CHANGES_KEY,
        changes_max: int = CHANGES_MAX,
    ) -> None:
        """`may_write` says whether the archive is this broker's. `interval_ms` is the minimum time
        between two lists; negative: none is written. `key` is the name of the list.
        """
        self._key = key
        self._store = store
        self._executor = executor
        self._clock = clock
        self._may_write = may_write
        self._interval_ms = interval_ms
        self._changes_max = changes_max
        self._state = RetryState("list", "changes", policy=retry, clock=clock)
        self._incarnation = new_unique()
        self._changes: OrderedDict[tuple[TopicId, int], ManifestChange] = OrderedDict()
        self._sequence = self._complete_after = 0
        self._metadata_version = 0
        # The first list announces a new incarnation, even without changes.
        self._written_sequence = -1
        self._next_s = clock.monotonic_s()
        # Etag of the list in the bucket; None if it must be looked up.
        self._etag: str | None = None

    @property
    def failing(self) -> tuple[RetryState, ...]:
        """The writing of the list if it fails now."""
        return self._state.failing

    def note(self, manifest: Manifest) -> None:
        """Records that the bucket has this manifest."""
        self._sequence += 1
        key = manifest.topic_id, manifest.partition
        self._changes[key] = ManifestChange(
            topic_id=manifest.topic_id,
            partition=manifest.partition,
            sequence=self._sequence,
            order=manifest.order,
        )
        self._changes.move_to_end(key)
        if len(self._changes) > self._changes_max:
            _, dropped = self._changes.popitem(last=False)
            self._complete_after = dropped.sequence

    def note_metadata(self, version: int) -> None:
        """Records that the mirror has the metadata log up to this entry; -1: unknown."""
        if version > self._metadata_version:
            self._sequence += 1
            self._metadata_version = version

    def doubt(self) -> None:
        """A manifest may have changed to an unknown state: replicas are to poll everything."""
        self._sequence += 1
        self._changes.clear()
        self._complete_after = self._sequence

    async def run(self) -> None:
        """Writes pending changes until it is cancelled; returns at once if lists are disabled."""
        while self._interval_ms >= 0:
            await asyncio.sleep(CHECK_S)
            await self.step()

    async def step(self, *, is_last: bool = False) -> None:
        """Writes the list if there are changes and the interval is over, or it is the last one."""
        now_s = self._clock.monotonic_s()
        is_time = is_last or (now_s >= self._next_s and self._state.may_try)
        is_news = self._interval_ms >= 0 and self._sequence != self._written_sequence
        if not (is_news and is_time and self._may_write()):
            return
        news = ChangeList(
            incarnation=self._incarnation,
            sequence=self._sequence,
            complete_after=self._complete_after,
            metadata_version=self._metadata_version,
            changes=tuple(self._changes.values()),
        )
        etag, self._etag = self._etag, None
        try:
            self._etag = await asyncio.get_running_loop().run_in_executor(
                self._executor, partial(_put, self._store, self._key, news, etag)
            )
        except StorageError as error:
            self._state.failed(error)
            return
        except MemoryError:
            self._state.failed(OutOfResources("no memory for it"))
            return
        self._state.succeeded()
        self._written_sequence = news.sequence
        self._next_s = now_s + self._interval_ms / 1000

    def __repr__(self) -> str:
        return (
            f"<ChangeWriter sequence={self._sequence} written={self._written_sequence}"
            f" {self._state!r}>"
        )


def _put(store: ObjectStore, key: str, news: ChangeList, etag: str | None) -> str:
    """Writes the list and returns its etag; blocks. Raises StorageError."""
    condition: PutCondition = IfAbsent()
    with contextlib.suppress(ObjectNotFound):
        condition = IfMatches(etag or store.head(key).etag)
    return store.put(key, news.encode(), condition=condition).etag  # 3

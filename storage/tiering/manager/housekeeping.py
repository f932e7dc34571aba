"""Background work of the archive: aborts dead uploads, deletes orphans, ends idle child processes.

    every 24 h                   multipart uploads older than two copy timeouts are aborted
    every orphan.interval        old enough objects that no manifest names are deleted
    every step                   child processes that were idle for a while are ended

Work in the bucket needs a reachable store and an archive that is this broker's. A failure is logged
and retried at the next interval: nothing depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from strandline.storage.clock import Clock
from strandline.storage.errors import StorageError
from strandline.storage.remote.keys import TOPICS_PREFIX
from strandline.storage.tiering.audit.orphans import delete_safe_orphans
from strandline.storage.tiering.partition.config import TieringConfig
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads
from strandline.storage.tiering.policy.store_health import StoreHealth

log = logging.getLogger(__name__)

# Parts of uploads that died with a process cost money until they are aborted.
ABORT_UPLOADS_INTERVAL_S = 24 * 3600.0


class Housekeeping:
    """Runs background work when it is due. Used on the event loop only."""

    def __init__(
        self,
        threads: MetadataThreads,
        config: TieringConfig,
        *,
        clock: Clock,
        health: StoreHealth,
        may_write: Callable[[], bool],
        end_idle: Callable[[], None],
    ) -> None:
        """`may_write` says whether the archive is this broker's. `end_idle` ends idle child
        processes; it blocks.
        """
        self._threads = threads
        self._config = config
        self._clock = clock
        self._health = health
        self._may_write = may_write
        self._end_idle = end_idle
        self._abort_uploads_s = 0.0
        # Not at the start, which has enough work.
        self._orphans_s = clock.monotonic_s() + config.orphan_interval_ms / 1000

    async def step(self) -> None:
        """Runs the work that is due."""
        await self._abort_old_uploads()
        await self._delete_orphans()
        await self._threads.run(self._end_idle)

    @property
    def _may_change_bucket(self) -> bool:
        return self._health.is_up and self._may_write()

    async def _abort_old_uploads(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._abort_uploads_s or not self._may_change_bucket:
            return
        self._abort_uploads_s = now_s + ABORT_UPLOADS_INTERVAL_S
        older_than_ms = 2 * self._config.copy_timeout_ms
        call = partial(
            self._threads.store.abort_uploads, TOPICS_PREFIX, older_than_ms=older_than_ms
        )
        await self._run(
            call, "uploads", done="old uploads aborted", failed="old uploads not aborted"
        )

    async def _delete_orphans(self) -> None:
        """Deletes the objects of dead uploads, in folders whose manifest can be read."""
        now_s = self._clock.monotonic_s()
        if now_s < self._orphans_s or not self._may_change_bucket:
            return
        self._orphans_s = now_s + self._config.orphan_interval_ms / 1000
        # An upload may be committed until its deadline, and read until its grace time is over.
        grace_ms = max(
            self._config.orphan_grace_ms,
            2 * self._config.copy_timeout_ms + self._config.delete_grace_ms,
        )
        call = partial(
            delete_safe_orphans,
            self._threads.store,
            clock=self._clock,
            grace_ms=grace_ms,
        )
        await self._run(call, "objects", done="orphans deleted", failed="orphans not deleted")

    async def _run(self, call: Callable[[], int], unit: str, *, done: str, failed: str) -> None:
        try:
            count = await self._threads.run(call)
        except StorageError as error:
            log.info(failed, extra={"fields": {"reason": str(error)}})
            return
        if count:
            log.info(done, extra={"fields": {unit: count}})

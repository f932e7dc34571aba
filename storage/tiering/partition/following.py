"""The steps of a partition whose archive another broker writes: of Lead.FOLLOWING.

    1 read the newest manifest    2 restart the log behind it, with the parts of the open segment
    3 drop the local records that archived segments have by now    4 take over the log start

The log is what the archive has, so there is nothing to claim, to set aside, to commit or to
announce. Of the states of `archive_state.py` it knows UNKNOWN, IN_DOUBT, RESTARTING and OWNED.
"""

from __future__ import annotations

from functools import partial

from strandline.storage.local.log_dirs import missing_folder_mark
from strandline.storage.remote.keys import manifest_key
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.tiering.changes.change_reader import Expectation
from strandline.storage.tiering.log.remote_log import RemoteLog
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.partition.local_restart import restart_behind
from strandline.storage.tiering.policy.archive_state import ArchiveState
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads


class FollowingSteps:
    """Keeps one log as its archive is. Used on the event loop, under the partition's lock."""

    def __init__(
        self, unified_log: UnifiedLog, remote: RemoteLog, *, threads: MetadataThreads
    ) -> None:
        self._log = unified_log
        self._remote = remote
        self._threads = threads
        # The announced change that it waits for.
        self.expectation = Expectation()
        if unified_log.end_offset == 0:
            # It knows nothing of the origin's log before it has read the manifest.
            remote.life.is_past_unknown = True

    async def step(self) -> None:
        """Takes over the newest manifest. Raises StorageError; the next step starts over."""
        asked, before = self.expectation.asked, self._remote.manifest
        if not await self._has_newest():
            await self._take_over()
        self.expectation.found(asked, before, self._remote.manifest)

    async def _has_newest(self) -> bool:
        held, store = self._remote.stored, self._threads.store
        # After a failed restart behind the archive, the same manifest is taken over again.
        if held is None or not self._remote.life.may_append:
            return False
        key = manifest_key(self._remote.partition)
        return (await self._threads.run(partial(store.head, key))).etag == held.etag

    async def _take_over(self) -> None:
        log, remote, life = self._log, self._remote, self._remote.life
        call = partial(manifest_store.load, self._threads.store, remote.partition)
        stored = await self._threads.run(call)  # 1
        remote.refuse_regress(stored)
        life.doubt()
        remote.adopt(stored)
        if stored is not None:
            life.move(ArchiveState.RESTARTING)
            await restart_behind(log, remote, stored.manifest, threads=self._threads)  # 2
        if not life.is_detached():
            if stored is not None and not stored.manifest.is_empty:
                log.drop_archived(stored.manifest.end_offset)  # 3
            log.adopt_remote_log_start()  # 4
        if life.is_past_unknown:
            await self._threads.run(partial(missing_folder_mark.forget, log.local.directory))
        life.move(ArchiveState.OWNED)

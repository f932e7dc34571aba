"""A replica of a partition whose archive its leader writes: what it learns of that archive.

    newest    the manifest, so that local segments that the archive has may be freed here, too
    restart   the log of a follower that ends before its leader's local log begins, behind the
              archive: with the leader epochs and producers that the archive has there

The leader frees only what is archived, so its local log reaches back to the archive's end. Only
records below a high watermark are archived, so a restart drops none that others may lack. Follows
Kafka's TierStateMachine, with the end of the archive in place of the leader's local start
(KIP-1023).
"""

from __future__ import annotations

from functools import partial

from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.tiering.log.remote_log import RemoteLog
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.partition.local_restart import begin_anew
from strandline.storage.tiering.policy.archive_state import ArchiveState
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads


async def take_newest(remote: RemoteLog, *, threads: MetadataThreads) -> None:
    """Takes over the newest manifest. Raises StorageError."""
    stored = await threads.run(partial(manifest_store.load, threads.store, remote.partition))
    life = remote.life
    if life.is_detached():
        return
    remote.refuse_regress(stored)
    if stored is None:
        return
    remote.adopt(stored)
    if life.state is ArchiveState.UNKNOWN:
        life.move(ArchiveState.OWNED)


async def restart_replica(
    unified_log: UnifiedLog, remote: RemoteLog, *, threads: MetadataThreads
) -> None:
    """Restarts a log that ends below the archive behind it; another one stays as it is.

    Raises StorageError.
    """
    await take_newest(remote, threads=threads)
    manifest = remote.manifest
    if manifest is None or remote.life.is_detached():
        return
    await begin_anew(unified_log, remote, manifest, threads=threads)
    if not remote.life.is_detached():
        unified_log.adopt_remote_log_start()

"""Loads, claims and commits the manifest of one partition.

`archive_state.py` has the states of a partition's archive; this module makes the transitions.

Every commit is a compare-and-swap. If its outcome is unknown, the manifest is read again before
any other work; its content tells whether the commit succeeded.

A disk without records that the bucket lacks claims the manifest under its own leader epoch. A disk
that ends below the archive restarts behind it (`local_restart.py`); without other replicas, it
re-appends its diverged records there (`lone_disk/`). While the owner of the archive is unknown,
neither happens: the manifest is only read, and a disk that ends below the archive takes no records.
Nor does a replica that was elected uncleanly, before it has read the manifest.

The steps of the partition (copy, merge, compact, expire) decide what is committed;
`PartitionTiering` calls them one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from strandline.storage.crash_points import (
    DELETE_AFTER_LOG_START,
    GIVE_BACK_AFTER_RESTART,
    crash_point,
)
from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    StoreFull,
    TierError,
)
from strandline.storage.local.log import diverged_records
from strandline.storage.local.log_dirs import missing_folder_mark
from strandline.storage.model import Epoch, TopicIdPartition
from strandline.storage.remote.keys import manifest_key
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.manifest import Manifest, new_generation
from strandline.storage.remote.manifest.store import StoredManifest
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.changes.change_writer import ChangeWriter
from strandline.storage.tiering.log.remote_log import RemoteLog
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.partition.local_restart import restart_behind
from strandline.storage.tiering.partition.lone_disk.divergence import bucket_end, own_start
from strandline.storage.tiering.partition.lone_disk.lone_disk import LoneDisk
from strandline.storage.tiering.partition.older_manifest import compare_folder
from strandline.storage.tiering.partition.topic_registration import TopicRegistration
from strandline.storage.tiering.policy.archive_state import ArchiveState
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads
from strandline.storage.tiering.policy.store_health import StoreHealth

log = logging.getLogger(__name__)


class ManifestChanged(TierError):
    """The store has another manifest than the held one."""


class ManifestOwner:
    """Loads and commits one partition's manifest. Used on the event loop, under its lock."""

    def __init__(
        self,
        unified_log: UnifiedLog,
        remote: RemoteLog,
        *,
        topic: TopicRegistration,
        past_generation: str,
        threads: MetadataThreads,
        health: StoreHealth,
        changes: ChangeWriter,
        on_restarted: Callable[[], None],
        is_lone: bool = True,
    ) -> None:
        """`past_generation` is that of the partition's earlier archive; empty: unknown. `changes`
        announces commits to replicas. `on_restarted` is called when the log was restarted behind
        the archive, before it takes appends. `is_lone`: the partition has no other replica.
        """
        self.log = unified_log
        self.remote = remote
        self.life = remote.life
        self.topic = topic
        self.clock = unified_log.local.clock
        self.threads = threads
        self._health = health
        self._changes = changes
        self._on_restarted = on_restarted
        self._past_generation = past_generation
        self._lone_disk: LoneDisk | None = None
        self._note_replicas(is_lone=is_lone)
        # The folder of the log was missing at a start.
        self.life.is_past_unknown = missing_folder_mark.is_marked(unified_log.local.directory)
        if is_lone and diverged_records.is_any(unified_log.local.directory):
            # After a crash the log takes no appends until they are back.
            self.life.move(ArchiveState.SETTING_ASIDE)
        elif remote.known and not self.life.is_past_unknown:
            self.life.move(ArchiveState.OWNED)

    def _note_replicas(self, *, is_lone: bool) -> None:
        lone_disk = LoneDisk(self.log, threads=self.threads, life=self.life)
        self._lone_disk = lone_disk if is_lone else None

    def lead(self, leader_epoch: Epoch, *, is_lone: bool = True) -> None:
        """Owns the manifest under this epoch from now on, unless it has a higher one."""
        self._note_replicas(is_lone=is_lone)
        self.life.leader_epoch = leader_epoch
        if not self.life.is_followed:
            self.life.doubt()

    def recover(self) -> None:
        """Takes no records before the manifest is known: this leader was elected although it may
        lack records (an unclean election), and the archive may have them.

        Else it would give their offsets to others, and what is archived would be of another past.
        A lone disk sets such records aside, and never waits for its store.
        """
        if not self.is_lone:
            self.life.doubt()
            self._block()

    @property
    def is_lone(self) -> bool:
        """Whether the partition has no other replica."""
        return self._lone_disk is not None

    @property
    def generation(self) -> str:
        """The generation of its archive; while there is none, of the earlier one."""
        manifest = self.remote.manifest
        return self._past_generation if manifest is None else manifest.generation

    @property
    def may_change(self) -> bool:
        """Whether a commit is permitted and the store is reachable."""
        return self.life.may_commit and self._health.is_up

    # --- loading -----------------------------------------------------------------------------

    async def load_if_needed(self) -> None:
        """Reads the manifest if it is unknown or in doubt, and claims it or only reads by it.

        Diverged records of a lone disk are set aside before the claim and re-appended after it:
        steps 1 to 7 of `lone_disk/divergence.py`. When the extent of the archive is known, the mark
        of a missing folder is removed.

        Raises StorageError; every adopted manifest is durable.
        """
        if not self.life.must_load:
            return
        stored = await self._read()
        await self._refuse_older(stored)
        if stored is not None and self._must_hold_off(stored):
            return
        await self._set_own_aside(stored)
        self._adopt(await self._claim(stored))
        await self._restart_local_if_behind()
        if not self.life.is_detached():
            self.log.adopt_remote_log_start()
        if self.life.is_past_unknown:
            await self.threads.run(partial(missing_folder_mark.forget, self.log.local.directory))
        self._end_load()

    async def _read(self) -> StoredManifest | None:
        held, life = self.remote.stored, self.life
        is_unclaimed = life.state is ArchiveState.READ_ONLY and life.lead is Lead.CONFIRMED
        if held is not None and is_unclaimed and self._must_claim(held.manifest):
            # The claim tells whether it is still the newest, once. This saves a read for every idle
            # partition at a start.
            life.move(ArchiveState.UNKNOWN)
            return held
        stored = await self.threads.run(
            partial(self._loader(), self.threads.store, self.remote.partition)
        )
        self.remote.refuse_regress(stored)
        if (
            held is not None
            and stored is not None
            and stored.manifest.generation != held.manifest.generation
        ):
            key = manifest_key(self.remote.partition)
            raise CorruptFile(f"{key}: another archive was begun in place of this broker's")
        return stored

    async def _refuse_older(self, stored: StoredManifest | None) -> None:
        """Refuses an older manifest than the newest: this disk would restart at the wrong offset.

        The log takes no appends until the newest is in the bucket. Raises CorruptFile.
        """
        if stored is None or not self._is_behind(stored.manifest):
            return
        try:
            await self.threads.run(partial(compare_folder, self.threads.store, stored.manifest))
        except CorruptFile:
            self._block()
            raise

    def _must_hold_off(self, stored: StoredManifest) -> bool:
        """Returns whether this disk may not claim this manifest, or restart behind it.

        It may be another broker's, or the store takes no writes. The manifest is then read, as far
        as that is safe, and the next load tries again.
        """
        lead = self.life.lead
        if lead is Lead.CONFIRMED and self._health.takes_writes:
            return False
        if self._must_claim(stored.manifest) or self._is_behind(stored.manifest):
            self._only_read(stored)
            return True
        if lead is Lead.UNKNOWN and self._has_own_past(stored.manifest):
            self._block()
            return True
        return False

    async def find_held(self, held: StoredManifest) -> None:
        """Returns if the store has `held`.

        Raises ManifestChanged for another one, which may be that of a commit under way, and the
        store's errors.
        """
        key = manifest_key(self.remote.partition)
        found = await self.threads.run(partial(self.threads.store.head, key))
        if found.etag != held.etag:
            raise ManifestChanged(key, "find", "it is not the one that was read or written last")

    def _block(self) -> None:
        if not self.life.has_set_aside:
            self.life.move(ArchiveState.BLOCKED)

    async def _set_own_aside(self, stored: StoredManifest | None) -> None:
        if self.life.is_fenced:
            return
        manifest = None if stored is None else stored.manifest
        if self.life.has_set_aside or (manifest is not None and self._has_own_past(manifest)):
            if self._lone_disk is None:
                self._block()
                raise CorruptFile(
                    f"{manifest_key(self.remote.partition)}: the archive has other records than"
                    " this replica, which was elected without those of the leader before it"
                )
            self.life.move(ArchiveState.SETTING_ASIDE)
            await self._lone_disk.take_away_own(manifest)

    async def _claim(self, stored: StoredManifest | None) -> StoredManifest | None:
        """Claims the manifest under this broker's epoch if it must; returns the current one."""
        if stored is None or not self._must_claim(stored.manifest):
            return stored
        claimed = stored.manifest.with_leader_epoch(self.life.leader_epoch)
        try:
            return await self.threads.run(
                partial(manifest_store.commit, self.threads.store, stored, claimed)
            )
        except (AccessDenied, StoreFull):
            # Without permission to write, the archive can still be read.
            self._only_read(stored)
            raise

    def _has_own_past(self, manifest: Manifest) -> bool:
        """Returns whether this disk has records under offsets of other archived records."""
        return own_start(self.log.local, manifest) is not None

    def _is_behind(self, manifest: Manifest) -> bool:
        return self.log.local.end_offset < bucket_end(manifest)

    def _only_read(self, stored: StoredManifest) -> None:
        """Reads by a manifest that may be another broker's; this disk has no records beyond it.

        A disk that ends below the archive serves no records of it and takes no appends until the
        owner is known. A disk that has all of it is read and appended to, as if the store were
        unreachable (docs/decisions, 15), unless the archive turned out to be another broker's.
        """
        is_behind = self._is_behind(stored.manifest)
        if is_behind or self.life.lead is Lead.LOST:
            self._block()
        elif not self.life.has_set_aside:
            self.life.move(ArchiveState.READ_ONLY)
        if not is_behind and not self.life.is_detached():
            self.remote.adopt(stored)
            self.log.adopt_remote_log_start()

    def _loader(self) -> Callable[[ObjectStore, TopicIdPartition], StoredManifest | None]:
        """A 404 alone is no proof of a missing manifest, unless this disk has the whole log."""
        local = self.log.local
        is_all_here = local.start_offset == 0 and local.end_offset > 0
        is_believed = self.remote.known or is_all_here
        return manifest_store.load if is_believed else manifest_store.load_or_refuse

    def _must_claim(self, manifest: Manifest) -> bool:
        """Returns whether this disk has no records that the bucket lacks: it may have lost some.

        Then it assigns offsets again, and a late commit of the earlier broker would bury the new
        records. After the claim such a commit fails.
        """
        if self.life.is_claimed or self.life.is_detached():
            return False
        is_all_there = self.log.local.end_offset <= bucket_end(manifest)
        return is_all_there and manifest.leader_epoch < self.life.leader_epoch

    def _end_load(self) -> None:
        """The manifest is this broker's, unless it was written under a higher epoch."""
        manifest = self.remote.manifest
        if manifest is None or manifest.leader_epoch <= self.life.leader_epoch:
            self.life.move(ArchiveState.OWNED)
            return
        self.life.move(ArchiveState.FENCED)
        log.warning(
            "another broker owns the archive of the partition, copying stops",
            extra={
                "fields": {
                    "partition": str(self.log.topic_partition),
                    "leader_epoch": self.life.leader_epoch,
                    "manifest_leader_epoch": manifest.leader_epoch,
                }
            },
        )

    # --- committing --------------------------------------------------------------------------

    async def commit(self, new: Manifest) -> None:
        """Writes `new` under this broker's epoch and adopts it.

        After a failure the manifest is read again. Raises ValueError if a higher epoch owns it.
        """
        new = new.with_leader_epoch(self.life.leader_epoch)
        self.life.move(ArchiveState.IN_DOUBT)
        stored = await self.threads.run(
            partial(
                manifest_store.commit,
                self.threads.store,
                self.remote.stored,
                new,
                now_ms=self.clock.now_ms(),
            )
        )
        self._adopt(stored)
        self.life.move(ArchiveState.OWNED)

    def _adopt(self, stored: StoredManifest | None) -> None:
        """Adopts the manifest in the bucket, and announces it to replicas."""
        self.remote.adopt(stored)
        if stored is not None:
            self._changes.note(stored.manifest)

    async def claim(self) -> None:
        """Writes this broker's epoch into the manifest at once: a commit of an earlier leader that
        is late fails from then on. It may delete by a configuration that was altered since.
        """
        manifest = self.remote.manifest
        if manifest is not None and manifest.leader_epoch < self.life.leader_epoch:
            await self.commit(manifest)

    async def move_log_start(self) -> None:
        """Moves the log start in a claimed manifest to that of the log, before any copy.

        So the archive may continue behind records that were deleted before they were copied, and
        no record is deleted that a restarted broker would still serve.
        """
        manifest = self.remote.manifest
        if manifest is None or manifest.leader_epoch != self.life.leader_epoch:
            return
        if self.log.log_start_offset > manifest.log_start_offset:
            await self.commit(manifest.with_log_start(self.log.log_start_offset))
            crash_point(DELETE_AFTER_LOG_START)

    async def ensure_manifest(self) -> None:
        """Writes topic.json and the manifest if they are missing, before any other object.

        So an object without a manifest proves that the manifest was lost. And the only commit that
        could succeed after a purge, because it expects no manifest, names no object.
        """
        await self.topic.ensure()
        if self.remote.manifest is None and not self.life.is_detached():
            await self.commit(self.manifest())

    def manifest(self) -> Manifest:
        """Returns the committed manifest, or a new empty one."""
        partition = self.remote.partition
        return self.remote.manifest or Manifest(
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            generation=new_generation(self.clock.now_ms(), after=self._past_generation),
        ).with_log_start(self.log.log_start_offset)

    # --- the disk behind the archive ---------------------------------------------------------

    async def _restart_local_if_behind(self) -> None:
        """Restarts a log that ends below the archive behind it.

        Otherwise it would assign archived offsets to new records.
        """
        manifest = self.remote.manifest
        if self.life.is_detached() or (manifest is None and self.life.may_append):
            return
        # After a failure the next step retries, and until then the log takes no appends.
        if not self.life.has_set_aside:
            self.life.move(ArchiveState.RESTARTING)
        if manifest is not None:
            await self._restart_behind(manifest)
            if self._lone_disk is not None:
                await self._lone_disk.end_as_archived(manifest)
        if self._lone_disk is not None and self.life.has_set_aside:
            self.life.move(ArchiveState.RE_APPENDING)
            crash_point(GIVE_BACK_AFTER_RESTART)
            await self._lone_disk.re_append()

    async def _restart_behind(self, manifest: Manifest) -> None:
        """Restarts the log behind the archive, and tells who has to know, also after a failure."""
        local, end_offset = self.log.local, self.log.end_offset
        try:
            await restart_behind(self.log, self.remote, manifest, threads=self.threads)
        finally:
            if self.log.end_offset > end_offset:
                local.note_archived_records()
                self._on_restarted()

    def __repr__(self) -> str:
        return f"<ManifestOwner {self.remote!r} {self.life!r}>"

"""The loops that keep the archive up to date beside its segments, and its last writes at a stop.

    after the claim   mirror    the metadata log, after each change; if the mirror continues with
                                entries of another broker, that broker owns the archive, and we stop
                                writing
                      groups    the groups' offsets, every strandline.remote.groups.upload.ms
                      tiering   segments and manifests
                      look      every strandline.remote.check.interval.ms: cluster.json and the
                                objects of the metadata and the groups, if deleted, are written
                                again

    stop      1 read the groups' latest commits         2 close the logs and mark the stop clean
                                                          crash point stop.after-mark
              3 the mirror    4 the groups' offsets       crash point stop.after-groups
              5 the list of changes

After a kill the next start makes up for the missing steps: it continues the mirror and the list,
and reads the groups again from their own log. 1 sends no request to the store; 3 to 5 share a
deadline of STOP_S, and the next start also completes the writes that miss it. 4 needs 3, because a
restore takes the topic from the mirror. 5 comes last, because it records the mirror's position.

Nothing is written before the claim (`claim.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

from strandline.broker.cluster.metadata.image import NO_LEADER
from strandline.broker.cluster.metadata.metadata_log import MetadataLogStatistics
from strandline.broker.cluster.metadata.mirror import MirrorTaken
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.archive.state_archive import LedLog, StateArchive
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.broker.server.upkeep.claim import ArchiveClaim, WrongArchive
from strandline.broker.server.workers import MANIFEST_THREADS, MANIFEST_THREADS_AT_START, Workers
from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import side_by_side
from strandline.storage.crash_points import STOP_AFTER_GROUPS, STOP_AFTER_MARK, crash_point
from strandline.storage.errors import (
    RecordsRejected,
    StorageError,
    TierUnavailable,
)
from strandline.storage.remote.keys import GROUPS_PREFIX, TRANSACTIONS_PREFIX
from strandline.storage.remote.manifest.verification import Verification, load_verifications
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.log.exposure import Exposure
from strandline.storage.tiering.manager.manager import TieringManager
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.retry import RetryPolicy, RetryState

log = logging.getLogger(__name__)

# How long a start waits for the claim before it continues without.
CLAIM_WAIT_S = 5.0
CLAIM_RETRIES = Backoff(0.5, 5.0)
# How long a stop waits for its last writes to the store, and for the commits that it reads before.
STOP_S = 3.0
STOP_READ_S = 1.0
# Costs no request while nothing has changed; entries that are not mirrored are lost with the disk.
MIRROR_CHECK_S = 0.5


class Mirror(Protocol):
    """The mirror of the metadata in the bucket: of a lone broker's log, or of a cluster's images.

    Its methods block, and raise StorageError.
    """

    def claim_mirror(self) -> object:
        """As `mirror_once`, with as few requests as tell whose mirror it is."""

    def mirror_once(self) -> object:
        """Brings it up to date."""

    def repair_mirror(self) -> object:
        """Writes again what was deleted."""

    def statistics(self) -> MetadataLogStatistics:
        """How far it is; does not block."""


async def start_tiering(tiering: TieringManager, metadata: Mirror, workers: Workers) -> None:
    """Loads the partitions' manifests, and claims the archive at the same time.

    Until then a partition that is behind its archive accepts no records and would seem to be empty,
    and a partition without local records is not safe from a late commit of its last broker.
    """
    workers.manifests.resize(MANIFEST_THREADS_AT_START)
    try:
        if tiering.lead is not Lead.UNKNOWN:
            await tiering.start()
            return
        await side_by_side(tiering.start(), _claim_soon(tiering, metadata, workers))
        if tiering.may_write() and tiering.is_waiting:
            await tiering.start()
    finally:
        workers.manifests.resize(MANIFEST_THREADS)


async def _claim_soon(tiering: TieringManager, metadata: Mirror, workers: Workers) -> None:
    """Waits CLAIM_WAIT_S for the claim; the loop retries it and logs the reason."""
    with contextlib.suppress(TimeoutError, StorageError):
        async with asyncio.timeout(CLAIM_WAIT_S):
            await _mirror_and_confirm(metadata.claim_mirror, tiering, workers)


async def _mirror_and_confirm(
    mirror: Callable[[], object], tiering: TieringManager, workers: Workers
) -> None:
    """Mirrors changes of the metadata; `tiering` learns the owner of the archive from the result.

    Raises StorageError.
    """
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(workers.manifests, mirror)
    except MirrorTaken as error:
        tiering.lose(str(error))
        raise
    except TierUnavailable:
        raise
    except StorageError:
        # Access denied, or damage: no sign of another broker.
        tiering.confirm()
        raise
    tiering.confirm()


class ArchiveUpkeep:
    """The loops that write this broker's state to its archive."""

    def __init__(
        self,
        claim: ArchiveClaim,
        store: ObjectStore,
        *,
        tiering: TieringManager,
        metadata: Mirror,
        replicas: ReplicaManager,
        workers: Workers,
        clock: Clock,
        groups_interval_ms: int,
        check_interval_ms: int,
        is_caretaker: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_caretaker` tells whether this broker repairs cluster.json and the metadata."""
        self._claim = claim
        self._store = store
        # The last checks of the whole archive, by depth; None while they are not known.
        self.verifications: Mapping[str, Verification] | None = None
        self._tiering = tiering
        self._metadata = metadata
        self._is_caretaker = is_caretaker
        self._workers = workers
        self._groups_interval_ms = groups_interval_ms
        self._check_interval_ms = check_interval_ms
        state = partial(RetryState, policy=RetryPolicy(), clock=clock)
        self._mirroring, self._looking = state("mirror", "metadata"), state("look", "archive")
        self._groups, self._transactions = (
            StateArchive(
                store,
                partial(_led_logs, replicas, topic),
                last_logs=partial(_last_logs, replicas, topic),
                executor=workers.manifests,
                clock=clock,
                interval_ms=groups_interval_ms,
                topic=topic,
                prefix=prefix,
            )
            for topic, prefix in (
                (OFFSETS_TOPIC, GROUPS_PREFIX),
                (TRANSACTION_TOPIC, TRANSACTIONS_PREFIX),
            )
        )

    async def mirror_forever(self) -> None:
        """Mirrors each change of the metadata to the bucket.

        Until the owner of the archive is known, it only claims: partitions may wait for that, and
        the first `mirror_once` reads the whole mirror, with a request for each entry.
        """
        mirroring = self._mirroring
        while True:
            # A broker that lost the archive must not claim it again if the metadata are deleted.
            is_lost = self._tiering.lead is Lead.LOST
            if self._claim.is_ours and mirroring.may_try and not is_lost:
                metadata = self._metadata
                is_urgent = self._tiering.lead is Lead.UNKNOWN
                mirror = metadata.claim_mirror if is_urgent else metadata.mirror_once
                try:
                    await _mirror_and_confirm(mirror, self._tiering, self._workers)
                except StorageError as error:
                    mirroring.failed(error)
                else:
                    mirroring.succeeded()
                    self._note_mirror()
            await asyncio.sleep(MIRROR_CHECK_S)

    async def archive_groups_forever(self) -> None:
        """Keeps the groups' offsets and the transactional ids in the bucket up to date."""
        while True:
            await asyncio.sleep(self._groups_interval_ms / 1000)
            if self._claim.is_ours and self._is_mirrored:
                await self._groups.run_once()
                await self._transactions.run_once()

    async def check_forever(self) -> None:
        """Rewrites deleted objects outside the topics' folders."""
        looking = self._looking
        while True:
            await self._look_up_verifications()
            await asyncio.sleep(self._check_interval_ms / 1000)
            if not self._may_write:
                continue
            try:
                if self._is_caretaker():
                    await self._claim.check()
                    await _mirror_and_confirm(
                        self._metadata.repair_mirror, self._tiering, self._workers
                    )
                    self._note_mirror()
                await self._groups.check()
                await self._transactions.check()
            except WrongArchive as error:
                self._tiering.lose(str(error))
            except StorageError as error:
                looking.failed(error)
            else:
                looking.succeeded()

    async def _look_up_verifications(self) -> None:
        """Learns when the archive was last verified; what is known stays while the store fails."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(StorageError):
            self.verifications = await loop.run_in_executor(
                self._workers.manifests, load_verifications, self._store
            )

    def state_exposures(self) -> Mapping[str, Iterable[Exposure | None]]:
        """What only this machine has of the groups' offsets and of the transactional ids."""
        return {
            OFFSETS_TOPIC: self._groups.exposures(),
            TRANSACTION_TOPIC: self._transactions.exposures(),
        }

    def failing(self) -> list[RetryState]:
        """The uploads and checks that fail now."""
        alone = (*self._mirroring.failing, *self._looking.failing)
        return [*self._groups.failing, *self._transactions.failing, *alone]

    def deleted_counts(self) -> Mapping[str, int]:
        """Counts of deleted objects outside the topics' folders, by kind."""
        return {
            "cluster": self._claim.deleted_count,
            "metadata": self._metadata.statistics().mirror_deleted_count,
            "groups": self._groups.deleted_count,
            "transactions": self._transactions.deleted_count,
        }

    @property
    def _is_mirrored(self) -> bool:
        """Whether the mirror is complete, so that the groups may be written.

        A restore takes their topic from the mirror, which must precede the topic's contents. A
        mirror with another history shows that a second broker uses the archive.
        """
        return self._metadata.statistics().mirror_lag <= 0

    def _note_mirror(self) -> None:
        self._tiering.changes.note_metadata(self._metadata.statistics().mirror_version)

    async def read_rest(self) -> None:
        """Step 1 of a stop, after the last append and the end of the loops."""
        if not self._may_write:
            return
        try:
            async with asyncio.timeout(STOP_READ_S):
                await self._groups.read_rest()  # 1
                await self._transactions.read_rest()
        except (TimeoutError, StorageError, RecordsRejected) as error:
            _note_unwritten(error)

    async def write_rest(self) -> None:
        """Steps 3 to 5 of a stop: writes the final state, for replicas and restores."""
        if not self._may_write:
            return
        crash_point(STOP_AFTER_MARK)
        try:
            async with asyncio.timeout(STOP_S):
                await _mirror_and_confirm(
                    self._metadata.mirror_once, self._tiering, self._workers
                )  # 3
                self._note_mirror()
                if self._is_mirrored:
                    await self._groups.write_rest()  # 4
                    await self._transactions.write_rest()
                crash_point(STOP_AFTER_GROUPS)
                await self._tiering.write_last_changes()  # 5
        except (TimeoutError, StorageError) as error:
            _note_unwritten(error)

    @property
    def _may_write(self) -> bool:
        tiering = self._tiering
        return self._claim.is_ours and tiering.may_write() and tiering.health.is_up

    async def tier_forever(self) -> None:
        """Runs the tiering once the archive is known to be ours."""
        if not self._claim.is_ours:
            await self._claim_until(lambda: self._claim.is_ours)
            await start_tiering(self._tiering, self._metadata, self._workers)
        await side_by_side(self._tiering.run(), self._claim_until(lambda: self._claim.is_complete))

    async def _claim_until(self, is_enough: Callable[[], bool]) -> None:
        """Retries the claim. Raises WrongArchive, InvalidConfig."""
        attempts = 1
        while not is_enough():
            await asyncio.sleep(CLAIM_RETRIES.wait_s(attempts))
            attempts += 1
            await self._claim.attempt()
            self._claim.report_to(self._tiering)


def _note_unwritten(error: Exception) -> None:
    """Logs an incomplete stop: replicas and restores lag behind until the next start."""
    log.warning(
        "not all metadata was uploaded before the stop",
        extra={"fields": {"error": str(error) or "no answer in time"}},
    )


def _led_logs(replicas: ReplicaManager, topic: str) -> Iterator[LedLog]:
    return (
        LedLog(partition.log, partition.leader_epoch)
        for partition in replicas.led()
        if partition.topic_partition.topic == topic
    )


def _last_logs(replicas: ReplicaManager, topic: str) -> Iterator[LedLog]:
    """Those that this broker led until its stop too, as long as nobody else does."""
    return (
        LedLog(partition.log, partition.leader_epoch)
        for partition in replicas.partitions()
        if partition.topic_partition.topic == topic
        and (partition.is_leader or partition.leader_id == NO_LEADER)
    )

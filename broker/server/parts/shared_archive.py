"""The part of one of several brokers in the archive of all.

It archives the partitions that it leads, each under its leader epoch, as the others do theirs. What
is done once for the whole archive is done by one of them (`broker/cluster/archive/caretaker.py`).

A broker without an archive does not load this module (docs/decisions/0010).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from strandline.broker.cluster.archive.caretaker import (
    ARCHIVE_FEATURE,
    ARCHIVE_LEVELS,
    caretaker_of,
)
from strandline.broker.cluster.archive.cluster_mirror import ClusterMirror
from strandline.broker.cluster.metadata.features import TRANSACTION_VERSION
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.cluster.replicas.tiers import SharedTiers
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.coordination.archive.takeover import taken_over
from strandline.broker.coordination.transactions.transaction import TransactionVersion
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.archive import RemoteTier
from strandline.broker.server.parts.archiving import ArchiveParts, archive_mark
from strandline.broker.server.parts.coordinators import CoordinatorParts
from strandline.broker.server.parts.membership import MembershipParts
from strandline.broker.server.parts.metadata import MetadataParts
from strandline.broker.server.parts.part import in_worker
from strandline.broker.server.parts.storage import StorageParts
from strandline.broker.server.upkeep.archive_upkeep import CLAIM_WAIT_S, start_tiering
from strandline.broker.server.upkeep.caretaking import Caretaking
from strandline.broker.server.upkeep.claim import ArchiveClaim
from strandline.storage.local.log.log import LocalLog
from strandline.storage.remote.object_store.interface import ObjectStore

log = logging.getLogger(__name__)

# Kafka's broker.session.timeout.ms: the controllers name another caretaker after that time.
HEARD_S_MAX: Final = 9.0


class SharedArchive:
    """The remote tier of one of several brokers, with the mirror that it may have to keep.

    It is made in the order of a start: claimed before the broker registers, opened when there are
    metadata, and its part is made when there are partitions.
    """

    # What a broker with an archive registers beside the features of others.
    features: Final[Mapping[str, range]] = {ARCHIVE_FEATURE: ARCHIVE_LEVELS}

    def __init__(
        self, environment: Environment, storage: StorageParts, opened: ExitStack, store: ObjectStore
    ) -> None:
        self._environment = environment
        self._storage = storage
        self._opened = opened
        self._store = store
        self._claim = ArchiveClaim(
            store,
            environment.workers.manifests,
            cluster_id=storage.log_dirs.cluster_id,
            mark=archive_mark(storage, store),
        )

    @classmethod
    async def claimed(
        cls,
        environment: Environment,
        config: BrokerConfig,
        storage: StorageParts,
        opened: ExitStack,
    ) -> SharedArchive:
        """Claims the archive for the cluster of the log folders.

        Raises WrongArchive, InvalidConfig.
        """
        store = environment.open_store(config, environment.clock)
        opened.callback(store.close)
        archive = cls(environment, storage, opened, store)
        await archive._claim.attempt(wait_s=CLAIM_WAIT_S)
        return archive

    def open(self, membership: MembershipParts, metadata: MetadataParts) -> OpenArchive:
        """Opens the remote tier of a broker that is registered."""
        clock, view, node_id = self._environment.clock, membership.view, membership.node_id

        def is_caretaker() -> bool:
            # A process that was stopped has not heard who it is by now.
            is_heard = clock.monotonic_s() - membership.caught_up_s() < HEARD_S_MAX
            return is_heard and caretaker_of(view.image) == node_id

        mirror = ClusterMirror(
            self._store,
            cluster_id=self._storage.log_dirs.cluster_id,
            image=lambda: view.image,
            is_caretaker=is_caretaker,
            clock=clock,
        )
        restarted = RestartedLogs()
        tier = RemoteTier.open(
            self._environment,
            self._storage,
            metadata,
            self._opened,
            store=self._store,
            tiering=metadata.running.static.tiering,
            node_id=node_id,
            is_caretaker=is_caretaker,
            on_topic_purged=mirror.finish_purge,
            on_restarted=restarted.note,
        )
        return OpenArchive(
            environment=self._environment,
            claim=self._claim,
            tier=tier,
            mirror=mirror,
            restarted=restarted,
            is_caretaker=is_caretaker,
            tiers=SharedTiers(
                tier.manager,
                self._storage.log_dirs.log_start_offsets,
                lookups=self._environment.workers.lookups,
                fill_log=partial(_fill, self._environment, self._store, view),
            ),
        )


async def _fill(
    environment: Environment, store: ObjectStore, view: MetadataView, local: LocalLog
) -> None:
    """Writes what the bucket has of a coordinator's partition into its empty log."""
    version = TransactionVersion(view.image.finalized_level(TRANSACTION_VERSION))
    fill = partial(taken_over, store, local, version, environment.clock.now_ms())
    if await in_worker(environment.workers.manifests, fill):
        log.warning(
            "a coordinator's partition is taken over from the bucket",
            extra={"fields": {"partition": str(local.topic_partition)}},
        )


class RestartedLogs:
    """Tells the transaction coordinator that a log restarted behind its archive, once there is one.

    Before, no log is attached that could.
    """

    def __init__(self) -> None:
        self.coordinators: CoordinatorParts | None = None

    def note(self) -> None:
        if self.coordinators is not None:
            self.coordinators.transactions.note_restarted_log()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenArchive:
    """The archive of a broker that is registered."""

    environment: Environment
    claim: ArchiveClaim
    tier: RemoteTier
    mirror: ClusterMirror
    restarted: RestartedLogs
    is_caretaker: Callable[[], bool]
    tiers: SharedTiers

    async def begin(
        self, metadata: MetadataParts, replicas: ReplicaManager, coordinators: CoordinatorParts
    ) -> ArchiveParts:
        """Reads the manifests of what this broker leads, as far as the store answers; returns the
        part that keeps the archive up to date.
        """
        self.restarted.coordinators = coordinators
        manager = self.tier.manager
        part = ArchiveParts.make(
            self.environment,
            metadata.running.static,
            self.mirror,
            replicas,
            claim=self.claim,
            tier=self.tier,
            is_caretaker=self.is_caretaker,
            loops={"caretaking": Caretaking(manager, self.mirror, self.is_caretaker).run},
        )
        self.claim.report_to(manager)
        if self.claim.is_ours:
            await start_tiering(manager, self.mirror, self.environment.workers)
        return part

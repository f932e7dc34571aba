"""The part of a broker in its archive: what it writes there, segments and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.archive import RemoteTier
from strandline.broker.server.parts.part import Loops, Part
from strandline.broker.server.parts.storage import StorageParts
from strandline.broker.server.upkeep.archive_upkeep import ArchiveUpkeep, Mirror
from strandline.broker.server.upkeep.claim import ArchiveClaim
from strandline.broker.server.upkeep.folder_marks import ArchiveMark
from strandline.broker.telemetry.sources import ArchiveSources
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.tiering.policy.retry import RetryState


def archive_mark(storage: StorageParts, store: ObjectStore) -> ArchiveMark | None:
    """Returns this disk's mark of the archive; None for a bucket, which cannot be unmounted."""
    if not isinstance(store, LocalDirectoryStore):
        return None
    return ArchiveMark(storage.first_folder, store.url, check_present=storage.check_first_folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveParts(Part):
    """What this broker writes into its archive, beside segments too."""

    claim: ArchiveClaim
    tier: RemoteTier
    upkeep: ArchiveUpkeep

    @classmethod
    def make(
        cls,
        environment: Environment,
        config: BrokerConfig,
        metadata: Mirror,
        replicas: ReplicaManager,
        *,
        claim: ArchiveClaim,
        tier: RemoteTier,
        is_caretaker: Callable[[], bool] = lambda: True,
        loops: Loops | None = None,
    ) -> ArchiveParts:
        """`metadata` is what mirrors them; `is_caretaker` tells whether that is this broker's.

        `loops` run beside those of a lone broker.
        """
        upkeep = ArchiveUpkeep(
            claim,
            tier.store,
            tiering=tier.manager,
            metadata=metadata,
            replicas=replicas,
            workers=environment.workers,
            clock=environment.clock,
            groups_interval_ms=config.archive.groups_interval_ms,
            check_interval_ms=config.archive.check_interval_ms,
            is_caretaker=is_caretaker,
        )
        return cls(
            claim=claim,
            tier=tier,
            upkeep=upkeep,
            loops={
                **(loops or {}),
                "metadata mirror": upkeep.mirror_forever,
                "tiering": upkeep.tier_forever,
                "store watch": tier.manager.watch_store,
                "groups archive": upkeep.archive_groups_forever,
                "archive look": upkeep.check_forever,
            },
        )

    def sources(self, metadata: Mirror) -> ArchiveSources:
        """What the metrics page reads of it."""
        return replace(
            self.tier.sources(),
            failing=self._failing,
            mirror_lag=lambda: metadata.statistics().mirror_lag,
            state_exposures=self.upkeep.state_exposures,
            verifications=lambda: self.upkeep.verifications,
            deleted_counts=self.upkeep.deleted_counts,
            conditions=lambda: self.claim.conditions,
        )

    def _failing(self) -> Iterator[RetryState]:
        yield from self.tier.manager.failing
        yield from self.upkeep.failing()

    async def end(self) -> None:
        await self.upkeep.read_rest()

    async def close(self) -> None:
        await self.upkeep.write_rest()

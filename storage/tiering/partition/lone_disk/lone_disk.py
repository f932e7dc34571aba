"""A log without other replicas that lost a part of itself, or went on without its archive.

    records under archived offsets    set aside, appended again behind the archive   divergence.py
    markers of archived transactions  written again as its readers saw them        lost_markers.py

No replica with others may do either: it has what its leader has, and lacks nothing that was
acknowledged. So this room is entered by `ManifestOwner` alone, for a partition with one replica.
"""

from __future__ import annotations

from functools import partial

from strandline.storage.errors import StorageError, TierUnavailable
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.partition.lone_disk.divergence import re_append, take_away_own
from strandline.storage.tiering.partition.lone_disk.lost_markers import (
    end_open_transaction,
    is_committed,
)
from strandline.storage.tiering.policy.archive_state import ArchiveLife
from strandline.storage.tiering.policy.leadership import Lead
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads


class LoneDisk:
    """The steps of one log. Used on the event loop, under the partition's lock."""

    def __init__(
        self, unified_log: UnifiedLog, *, threads: MetadataThreads, life: ArchiveLife
    ) -> None:
        self._log = unified_log
        self._threads = threads
        self._life = life

    async def take_away_own(self, manifest: Manifest | None) -> None:
        """Steps 1 and 2 of `divergence.py`. Raises StorageError."""
        await take_away_own(self._log, manifest, threads=self._threads, life=self._life)

    async def re_append(self) -> None:
        """Steps 4 to 7 of `divergence.py`. Raises StorageError."""
        await re_append(self._log, threads=self._threads, life=self._life)

    async def end_as_archived(self, manifest: Manifest) -> None:
        """Writes the lost markers of transactions that began in archived segments.

        Readers of the archive have seen their outcomes. An archive that may be another broker's
        tells nothing: it may have other records at these offsets. Raises TierUnavailable.
        """
        life = self._life
        is_ours = life.lead is Lead.CONFIRMED and manifest.leader_epoch <= life.leader_epoch
        if not is_ours:
            return
        for opened in self._log.local.producers.open_entries():
            if opened.transaction_first_offset >= manifest.end_offset:
                return
            call = partial(
                is_committed,
                self._threads.store,
                manifest,
                opened.producer_id,
                opened.transaction_first_offset,
            )
            try:
                outcome = await self._threads.run(call)
            except TierUnavailable:
                raise
            except StorageError:
                # It would fail again. The log has to take appends, and the coordinator decides.
                continue
            if life.is_detached():
                return
            if outcome is None:
                continue
            end_open_transaction(
                self._log.local,
                opened,
                MarkerType.COMMIT if outcome else MarkerType.ABORT,
                leader_epoch=life.leader_epoch,
            )

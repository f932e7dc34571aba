"""Removal of topics from the archive, and partitions that wait for the end of a removal.

    tiered ── detached ──> leaving ── purge ──> purged once ── second purge ──> gone
                                        |             |
    tiered again:                       '── waiting ──'──> tiered, as something new

A topic leaves when it is deleted, or not tiered any more; what was begun for its partitions comes
to its end first.

An upload of a process that was killed, or one that was given up, may still be on its way when the
topic is purged: a proxy or the store has it, and goes on. Its objects would lie in a folder without
topic.json, where nobody takes them for safe to delete. So a topic counts as gone when its folder
was emptied a second time, after the time that an upload may take. Until then the metadata log asks
for the purge again at each start.

A DELETE may be on its way as well, if one was given up, or sent by a process that was killed. Most
names are used once, and a manifest's is not: it would take the manifest of a topic that was tiered
again meanwhile. So such a topic waits for the same time, and keeps its tombstone meanwhile: a start
finds it, and waits anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

from strandline.storage.clock import Clock
from strandline.storage.errors import TierUnavailable
from strandline.storage.model import Epoch, TopicId, TopicPartition
from strandline.storage.remote.manifest.topic_info import TopicInfo
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.manager.partition_tiering import PartitionTiering
from strandline.storage.tiering.manager.topic_purge import TopicPurge
from strandline.storage.tiering.partition.config import TieringConfig


@dataclass(slots=True)
class WaitingPartition:
    """A partition that is tiered again once no late write of its earlier archive can arrive."""

    log: UnifiedLog
    info: TopicInfo
    leader_epoch: Epoch


class TopicRemovals:
    """The topic removals of a broker. Used on the event loop only."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        executor: Executor,
        clock: Clock,
        config: TieringConfig,
        on_away: Callable[[TierUnavailable], None],
    ) -> None:
        """`executor` deletes; `on_away` is told of a store that does not answer a purge."""
        self._store = store
        self._on_away = on_away
        self._executor = executor
        self._clock = clock
        self._config = config
        self._purges: dict[TopicId, TopicPurge] = {}
        # Topics that were purged once, and when they are purged again.
        self._purged_once: dict[TopicId, tuple[float, TopicInfo]] = {}
        # Of these, those of which a DELETE may still come.
        self._in_doubt: set[TopicId] = set()
        # Partitions that are tiered again while their earlier archive is still being deleted.
        self._waiting: dict[TopicId, list[WaitingPartition]] = {}
        # Topics that are not tiered any more; what the bucket has of them goes.
        self.disabled: frozenset[TopicId] = frozenset()
        # Detached partitions whose last step may still run.
        self._leaving: dict[TopicId, list[PartitionTiering]] = {}
        # Of the archives that disabled topics had; by the number of the partition.
        self._generations: dict[TopicId, dict[int, str]] = {}

    def __len__(self) -> int:
        return len(self._purges)

    def __iter__(self) -> Iterator[TopicId]:
        """The topics that are purged now."""
        return iter(self._purges)

    def purge_of(self, topic_id: TopicId) -> TopicPurge | None:
        """What empties its folder now."""
        return self._purges.get(topic_id)

    # --- partitions that leave, and that come back -------------------------------------------

    def add(self, partition: PartitionTiering) -> None:
        """A partition was detached; its topic may be purged, or tiered again."""
        topic_id, number = partition.log.topic_id, partition.log.topic_partition.partition
        self._generations.setdefault(topic_id, {})[number] = partition.generation
        self._leaving.setdefault(topic_id, []).append(partition)

    def past_generation(self, topic_id: TopicId, number: int) -> str:
        """That of the archive which the partition had before; empty if it had none."""
        return self._generations.get(topic_id, {}).get(number, "")

    def hold_up(self, unified_log: UnifiedLog, info: TopicInfo, leader_epoch: Epoch) -> bool:
        """Whether a partition that is to be tiered waits until nothing of its past can come."""
        if info.topic_id not in self._purges and info.topic_id not in self._in_doubt:
            # What its manifests will not name is found as an orphan.
            self._purged_once.pop(info.topic_id, None)
            return False
        waiting = self._waiting.setdefault(info.topic_id, [])
        if all(known.log is not unified_log for known in waiting):
            waiting.append(WaitingPartition(unified_log, info, leader_epoch))
        return True

    def wait(self, topic_id: TopicId, partitions: Iterable[PartitionTiering]) -> None:
        """These were tiered already when a purge of an earlier run was found."""
        again = [WaitingPartition(p.log, p.topic.info, p.leader_epoch) for p in partitions]
        if again:
            self._waiting[topic_id] = again

    def stop_waiting(self, topic_id: TopicId) -> None:
        """The topic is not to be tiered any more."""
        self._waiting.pop(topic_id, None)

    def lead(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """A partition that waits has another leader epoch by now."""
        for waiting in (one for some in self._waiting.values() for one in some):
            if waiting.log.topic_partition == topic_partition:
                waiting.leader_epoch = leader_epoch

    # --- purges ------------------------------------------------------------------------------

    def is_purged_once(self, topic_id: TopicId) -> bool:
        """Whether its folder is empty, and is looked at once more later."""
        return topic_id in self._purged_once

    def purge(self, info: TopicInfo, *, stays: bool, is_second: bool = False) -> None:
        """Begins to empty the folder of a topic, or goes on with it. `stays`: see TopicPurge."""
        if info.topic_id not in self._purges:
            self._purges[info.topic_id] = TopicPurge(
                info,
                leaving=self._leaving.pop(info.topic_id, ()),
                store=self._store,
                executor=self._executor,
                clock=self._clock,
                retry=self._config.retry,
                grace_ms=self._config.delete_grace_ms,
                on_away=self._on_away,
                is_second=is_second,
            )
        self._purges[info.topic_id].stays = stays

    def let_go(self) -> None:
        """Drops the partitions that no purge has to wait for any more."""
        for purge in self._purges.values():
            purge.let_go()

    def begin_second_purges(self) -> None:
        """Purges again what was purged long enough ago."""
        now_s = self._clock.monotonic_s()
        for topic_id, (due_s, info) in list(self._purged_once.items()):
            if now_s >= due_s:
                del self._purged_once[topic_id]
                self._in_doubt.discard(topic_id)
                self.purge(info, stays=True, is_second=True)

    def end(self, purge: TopicPurge) -> list[WaitingPartition]:
        """A purge is done; the partitions that nothing holds up any more."""
        topic_id = purge.info.topic_id
        del self._purges[topic_id]
        if purge.is_in_doubt or not purge.is_second:
            # Longer than an upload that was begun before the purge may take.
            wait_s = 2 * self._config.copy_timeout_ms / 1000
            self._purged_once[topic_id] = (self._clock.monotonic_s() + wait_s, purge.info)
        if purge.is_in_doubt:
            self._in_doubt.add(topic_id)
        return [] if topic_id in self._in_doubt else self._waiting.pop(topic_id, [])

    def forget(self, topic_id: TopicId) -> None:
        """The topic is deleted: no archive of it comes after this one."""
        self._generations.pop(topic_id, None)

    def __repr__(self) -> str:
        return f"<TopicRemovals purges={len(self._purges)} waiting={len(self._waiting)}>"

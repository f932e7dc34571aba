"""Removal of topics from the archive, and partitions that wait for the end of a removal.

    tiered ── detached ──> leaving ── purge ──> purged once ── second purge ──> gone
                                        |             |
    tiered again:                       '── waiting ──'──> tiered, with a new archive

A topic leaves when it is deleted or not tiered any more; running work on its partitions ends first.

An upload that timed out, or whose process was killed, may still arrive after the purge: a proxy or
the store may have buffered it. Its objects would be in a folder without topic.json, where the
search for orphans deletes nothing. So a topic counts as gone when its folder was emptied a second
time, after the longest time of an upload. Until then the metadata log asks for the purge again at
each start.

A DELETE that timed out, or whose process was killed, may arrive late as well. Most keys are used
only once, but a manifest's is not: the DELETE would remove the manifest of a topic that was tiered
again meanwhile. So such a topic waits for the same time, and keeps its tombstone: after a restart
it waits again. It need not wait for a DELETE that names the version, where the store looks at that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from strandline.storage.clock import Clock
from strandline.storage.errors import TierUnavailable
from strandline.storage.model import Epoch, TopicId, TopicPartition
from strandline.storage.remote.manifest.topic_info import TopicInfo
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.manager.partition_tiering import PartitionTiering
from strandline.storage.tiering.manager.topic_purge import TopicPurge
from strandline.storage.tiering.partition.config import TieringConfig
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads
from strandline.storage.tiering.policy.retry import RetryState


@dataclass(slots=True)
class WaitingPartition:
    """A partition that is tiered again once no late write of its earlier archive can arrive."""

    log: UnifiedLog
    info: TopicInfo
    leader_epoch: Epoch
    is_leader: bool = True
    is_lone: bool = True
    is_recovering: bool = False


class TopicRemovals:
    """The topic removals of a broker. Used on the event loop only."""

    def __init__(
        self,
        threads: MetadataThreads,
        *,
        clock: Clock,
        config: TieringConfig,
        on_away: Callable[[TierUnavailable], None],
        may_delete: Callable[[], bool] = lambda: True,
    ) -> None:
        """`threads` delete; `on_away` is called when the store does not answer a purge, and
        `may_delete` asked before each request, in their thread.
        """
        self._may_delete = may_delete
        self._threads = threads
        self._on_away = on_away
        self._clock = clock
        self._config = config
        self._purges: dict[TopicId, TopicPurge] = {}
        # Topics that were purged once, and the time of their second purge.
        self._purged_once: dict[TopicId, tuple[float, TopicInfo]] = {}
        # Of these, those for which an earlier DELETE may still arrive.
        self._in_doubt: set[TopicId] = set()
        # Partitions that are tiered again while their earlier archive is still being deleted.
        self._waiting: dict[TopicId, list[WaitingPartition]] = {}
        # Detached partitions whose last step may still run.
        self._leaving: dict[TopicId, list[PartitionTiering]] = {}
        # Generations of the archives of disabled topics, by partition number.
        self._generations: dict[TopicId, dict[int, str]] = {}

    def __len__(self) -> int:
        return len(self._purges)

    def __iter__(self) -> Iterator[TopicId]:
        """The topics whose purge is running."""
        return iter(self._purges)

    def purge_of(self, topic_id: TopicId) -> TopicPurge | None:
        """Returns the running purge of the topic, if any."""
        return self._purges.get(topic_id)

    # --- partitions that leave, and that come back -------------------------------------------

    def add(self, partition: PartitionTiering) -> None:
        """Takes a detached partition, whose topic may be purged or tiered again."""
        topic_id, number = partition.log.topic_id, partition.log.topic_partition.partition
        self._generations.setdefault(topic_id, {})[number] = partition.owner.generation
        # A partition leaves at each election.
        busy = [one for one in self._leaving.get(topic_id, ()) if not one.is_idle]
        self._leaving[topic_id] = [*busy, partition]

    def past_generation(self, topic_id: TopicId, number: int) -> str:
        """Returns the generation of the partition's earlier archive; empty if it had none."""
        return self._generations.get(topic_id, {}).get(number, "")

    def defer(self, wanted: WaitingPartition) -> bool:
        """Whether a partition waits to be tiered: late writes of its past archive may arrive."""
        topic_id = wanted.info.topic_id
        if topic_id not in self._purges and topic_id not in self._in_doubt:
            # A late upload of the earlier archive is deleted as an orphan.
            self._purged_once.pop(topic_id, None)
            return False
        waiting = self._waiting.setdefault(topic_id, [])
        if all(known.log is not wanted.log for known in waiting):
            waiting.append(wanted)
        return True

    def wait(self, topic_id: TopicId, partitions: Iterable[PartitionTiering]) -> None:
        """Lets partitions wait that were tiered before a purge of an earlier run was found."""
        again = [
            WaitingPartition(
                one.log,
                one.owner.topic.info,
                one.owner.life.leader_epoch,
                is_leader=one.is_led,
                is_lone=one.owner.is_lone,
            )
            for one in partitions
        ]
        if again:
            self._waiting[topic_id] = again

    def stop_waiting(self, topic_id: TopicId) -> None:
        """Drops the waiting partitions of a topic that is not to be tiered any more."""
        self._waiting.pop(topic_id, None)

    def elect(
        self, topic_partition: TopicPartition, leader_epoch: Epoch | None, *, is_leader: bool
    ) -> None:
        """Sets the lead of a waiting partition; None keeps the epoch."""
        for waiting in (one for some in self._waiting.values() for one in some):
            if waiting.log.topic_partition == topic_partition:
                waiting.is_leader = is_leader
                if leader_epoch is not None:
                    waiting.leader_epoch = leader_epoch

    # --- purges ------------------------------------------------------------------------------

    def is_purged_once(self, topic_id: TopicId) -> bool:
        """Returns whether its folder was emptied once, and a second purge will follow."""
        return topic_id in self._purged_once

    def purge(self, info: TopicInfo, *, stays: bool, is_second: bool = False) -> None:
        """Starts the purge of a topic unless one is running. `stays`: see TopicPurge."""
        if info.topic_id not in self._purges:
            self._purges[info.topic_id] = TopicPurge(
                info,
                leaving=self._leaving.pop(info.topic_id, ()),
                threads=self._threads,
                clock=self._clock,
                retry=self._config.retry,
                grace_ms=self._config.delete_grace_ms,
                on_away=self._on_away,
                may_delete=self._may_delete,
                is_second=is_second,
            )
        self._purges[info.topic_id].stays = stays

    @property
    def failing(self) -> list[RetryState]:
        """The purges that fail now."""
        return [state for purge in self._purges.values() for state in purge.failing]

    def release_idle(self) -> None:
        """Drops the partitions that no purge needs to wait for."""
        for purge in self._purges.values():
            purge.release_idle()

    def begin_second_purges(self) -> None:
        """Starts the second purges that are due."""
        now_s = self._clock.monotonic_s()
        for topic_id, (due_s, info) in list(self._purged_once.items()):
            if now_s >= due_s:
                del self._purged_once[topic_id]
                self._in_doubt.discard(topic_id)
                self.purge(info, stays=True, is_second=True)

    def end(self, purge: TopicPurge) -> list[WaitingPartition]:
        """Ends a finished purge; returns the partitions that can be tiered now."""
        topic_id = purge.info.topic_id
        del self._purges[topic_id]
        if purge.is_in_doubt or not purge.is_second:
            # Longer than the longest upload that began before the purge.
            wait_s = 2 * self._config.copy_timeout_ms / 1000
            self._purged_once[topic_id] = (self._clock.monotonic_s() + wait_s, purge.info)
        if purge.is_in_doubt:
            self._in_doubt.add(topic_id)
        return [] if topic_id in self._in_doubt else self._waiting.pop(topic_id, [])

    def keep(self, topic_id: TopicId) -> None:
        """Forgets a purge that has not begun, of a topic that is tiered again by now.

        Another broker that leads its partitions does not wait for a tombstone that is not there.
        """
        purge = self._purges.get(topic_id)
        if purge is not None and not purge.has_begun:
            del self._purges[topic_id]

    def give_up(self) -> None:
        """Leaves all purges to another broker, or to be found again."""
        self._purges.clear()
        self._purged_once.clear()
        self._in_doubt.clear()

    def forget(self, topic_id: TopicId) -> None:
        """Forgets a deleted topic, which gets no later archive."""
        self._generations.pop(topic_id, None)

    def __repr__(self) -> str:
        return f"<TopicRemovals purges={len(self._purges)} waiting={len(self._waiting)}>"

"""The fetchers of a broker: `num.replica.fetchers` for each broker that leads partitions of it.

metadata ──► follow / stop ──► the fetcher of the partition's leader ──► run, a task each
"""

from __future__ import annotations

import asyncio
from binascii import crc32
from collections.abc import Callable, Coroutine

from strandline.broker.cluster.in_sync.throttle import ReplicationThrottle
from strandline.broker.cluster.metadata.image import NO_LEADER, PartitionImage
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.replication.fetcher import Fetcher
from strandline.broker.replication.leader import LeaderEndpoint
from strandline.storage.clock import Clock
from strandline.storage.model import Epoch


class Fetchers:
    """All fetchers, as `Followers` of a ReplicaManager. Used on the event loop only."""

    def __init__(
        self,
        endpoint_of: Callable[[int], LeaderEndpoint],
        clock: Clock,
        *,
        fetcher_count: int,
        backoff_ms: int,
        throttle: ReplicationThrottle,
        spawn: Callable[[Coroutine[object, object, None]], object],
    ) -> None:
        """`endpoint_of` makes a connection to a broker; `spawn` runs a fetcher, or a restart."""
        self._endpoint_of = endpoint_of
        self._clock = clock
        self._fetcher_count = fetcher_count
        self._spawn = spawn
        self._throttle = throttle
        self._running: set[Fetcher] = set()
        self._backoff_ms = backoff_ms
        # By leader, and number among those of the leader.
        self._fetchers: dict[tuple[int, int], Fetcher] = {}
        # Who fetches a partition now, and under which epoch.
        self._following: dict[Partition, tuple[Fetcher, Epoch]] = {}
        self._is_new = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Fetchers {list(self._fetchers.values())}>"

    def follow(self, partition: Partition, image: PartitionImage) -> None:
        """Fetches from the leader that the metadata name; from nobody if there is none."""
        known = self._following.get(partition)
        if image.leader == NO_LEADER:
            self.stop(partition)
            return
        fetcher = self._fetcher(image.leader, partition)
        wanted = (fetcher, image.leader_epoch)
        if known == wanted:
            return
        self.stop(partition)
        self._following[partition] = wanted
        fetcher.add(partition, image.leader_epoch)

    def stop(self, partition: Partition) -> None:
        known = self._following.pop(partition, None)
        if known is not None:
            known[0].remove(partition)

    async def run(self) -> None:
        """Begins each fetcher, from its first partition on."""
        while True:
            self._is_new.clear()
            for fetcher in self._fetchers.values():
                if fetcher not in self._running:
                    self._running.add(fetcher)
                    self._spawn(fetcher.run())
            await self._is_new.wait()

    @property
    def failed_count(self) -> int:
        """Partitions that are not fetched until their metadata change."""
        return sum(fetcher.failed_count for fetcher in self._fetchers.values())

    def _fetcher(self, leader_id: int, partition: Partition) -> Fetcher:
        topic, index = partition.topic_partition
        number = (crc32(topic.encode()) + index) % self._fetcher_count
        fetcher = self._fetchers.get((leader_id, number))
        if fetcher is None:
            fetcher = self._fetchers[leader_id, number] = Fetcher(
                self._endpoint_of(leader_id),
                self._clock,
                backoff_ms=self._backoff_ms,
                throttle=self._throttle,
                spawn=self._spawn,
            )
            self._is_new.set()
        return fetcher

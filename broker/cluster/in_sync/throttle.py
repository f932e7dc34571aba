"""Throttles of replication (KIP-73; Kafka's ReplicationQuotaManager).

    topic property   which replicas a throttle covers here      broker property   bytes a second

    leader           a follower that is not in sync gets no records, while the rate is exceeded
    follower         it does not ask for records, while the rate is exceeded and it is not in sync

Replicas in sync pass, so a throttle takes nobody out of an in-sync set; their bytes count as well.
Without a throttled topic nothing is counted: callers look whether `topics` is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage, TopicImage
from strandline.storage.clock import Clock
from strandline.storage.model import TopicPartition
from strandline.storage.rates import WindowRate

LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
_ALL: Final = "*"


class ReplicationThrottle:
    """One side's throttle on this broker. Used on the event loop only."""

    def __init__(
        self,
        replicas_property: str,
        bytes_max: Callable[[], int],
        clock: Clock,
        *,
        node_id: int,
        window_count: int,
        window_ms: int,
    ) -> None:
        """`bytes_max` is the rate, bytes a second, which may be altered."""
        self._property = replicas_property
        self._bytes_max = bytes_max
        self._clock = clock
        self._node_id = node_id
        self._rate = WindowRate(count=window_count, length_ms=window_ms, counts_idle=False)
        # The partitions that are covered on this broker, by topic; None: all of it.
        self.topics: dict[str, frozenset[int] | None] = {}

    def __repr__(self) -> str:
        return f"<ReplicationThrottle {self._property} {self.topics}>"

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Takes over the topics' properties."""
        for topic in delta.topics.gone():
            self.topics.pop(topic.name, None)
        for topic in delta.topics.changed():
            self._cover(topic)

    def _cover(self, topic: TopicImage) -> None:
        replicas = [one.strip() for one in topic.properties.get(self._property, "").split(",")]
        covered = None if _ALL in replicas else _partitions_on(self._node_id, replicas)
        if covered is None or covered:
            self.topics[topic.name] = covered
        else:
            self.topics.pop(topic.name, None)

    def covers(self, key: TopicPartition) -> bool:
        """Whether the replica of that partition is throttled here."""
        if key.topic not in self.topics:
            return False
        partitions = self.topics[key.topic]
        return partitions is None or key.partition in partitions

    def record(self, size_bytes: int) -> None:
        """Counts bytes of a replica that is covered."""
        self._rate.record(size_bytes, self._now_ms())

    @property
    def is_exceeded(self) -> bool:
        return self.byte_rate > self._bytes_max()

    @property
    def byte_rate(self) -> float:
        """Bytes a second of the replicas that are covered."""
        return self._rate.per_second(self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)


def _partitions_on(node_id: int, replicas: Sequence[str]) -> frozenset[int]:
    """Of `partition:broker`; others may have come in before there was a check."""
    suffix = f":{node_id}"
    found = (one.removesuffix(suffix) for one in replicas if one.endswith(suffix))
    return frozenset(int(one) for one in found if one.isdecimal())

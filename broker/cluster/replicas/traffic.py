"""Traffic counters of topics, updated by the data path and read by an exporter.

One object is shared by all partitions of a topic. The counts of a deleted topic move into the
total; a new topic of the same name begins at zero, which Prometheus takes for a restart.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TopicTraffic:
    """Kafka's BrokerTopicMetrics of one topic."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    failed_produce: int = 0
    failed_fetch: int = 0
    remote_bytes_out: int = 0
    remote_fetches: int = 0
    remote_fetch_errors: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0

    def add(self, other: TopicTraffic) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

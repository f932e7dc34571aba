"""Finds late transactions: open in a partition long after any coordinator would have ended them.

As in Kafka (KIP-664), a transaction is late five minutes after `transaction.max.timeout.ms`. Kafka
takes its age from the time in its newest record, which the client chooses. Here the age counts from
when this broker first saw it open: a program that writes old records is never late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.storage.clock import Clock
from strandline.storage.local.formats.producer_state import ProducerEntry
from strandline.storage.model import Offset, TopicPartition

log = logging.getLogger(__name__)

CHECK_S = 60.0
# Kafka's ProducerStateManager.LATE_TRANSACTION_BUFFER_MS.
LATE_AFTER_MS = 5 * 60_000


class LateTransactions:
    """Watches the oldest open transaction of each partition."""

    def __init__(
        self, replicas: ReplicaManager, *, timeout_ms_max: Callable[[], int], clock: Clock
    ) -> None:
        """`timeout_ms_max` returns `transaction.max.timeout.ms`."""
        self._replicas = replicas
        self._timeout_ms_max = timeout_ms_max
        self._clock = clock
        # When each was first seen, by its partition and first offset.
        self._seen_s: dict[tuple[TopicPartition, Offset], float] = {}
        # Partitions whose oldest open transaction is late, as of the last look.
        self.partition_count = 0

    def open_s(self, partition: TopicPartition, first_offset: Offset) -> float:
        """Returns for how long this transaction has been seen open; 0 before the first look."""
        now_s = self._clock.monotonic_s()
        return now_s - self._seen_s.get((partition, first_offset), now_s)

    async def watch_forever(self) -> None:
        """Warns of late transactions, each time that it looks."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self._look()

    async def _look(self) -> None:
        now_s, limit_s = self._clock.monotonic_s(), (self._timeout_ms_max() + LATE_AFTER_MS) / 1000
        seen_s = {}
        late_count = 0
        for partition in self._replicas.partitions():
            oldest = partition.log.local.producers.oldest_open()
            if oldest is not None:
                key = partition.topic_partition, oldest.transaction_first_offset
                since_s = seen_s[key] = self._seen_s.get(key, now_s)
                if now_s - since_s > limit_s:
                    late_count += 1
                    _warn(partition, oldest)
            await asyncio.sleep(0)
        self._seen_s, self.partition_count = seen_s, late_count


def _warn(partition: Partition, producer: ProducerEntry) -> None:
    log.warning(
        "transaction hangs, nothing behind it is read by read_committed or archived;"
        " end it with kafka-transactions.sh abort",
        extra={
            "fields": {
                "partition": str(partition.topic_partition),
                "producer_id": producer.producer_id,
                "start_offset": producer.transaction_first_offset,
            }
        },
    )

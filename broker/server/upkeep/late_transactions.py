"""Finds late transactions: open in a partition long after any coordinator would have ended them.

As in Kafka (KIP-664), a transaction is late five minutes after `transaction.max.timeout.ms`. Kafka
takes its age from the time in its newest record, which the client chooses: a program that writes
old records would be late at once. Here the age counts from

    its begin             the coordinator has it open, or is ending it
    its newest record     it was open when this broker started, and no coordinator knows of it
    when it was seen      it began since, and no coordinator knows of it
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.transactions.transaction import Transaction
from strandline.storage.clock import Clock
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.local.formats.producer_state import ProducerEntry
from strandline.storage.model import Offset, TimestampMs, TopicPartition

log = logging.getLogger(__name__)

CHECK_S = 60.0
LOADING_CHECK_S = 1.0
# Kafka's ProducerStateManager.LATE_TRANSACTION_BUFFER_MS.
LATE_AFTER_MS = 5 * 60_000


class LateTransactions:
    """Watches the oldest open transaction of each partition."""

    def __init__(
        self,
        replicas: ReplicaManager,
        *,
        timeout_ms_max: Callable[[], int],
        coordinated: Callable[[], Mapping[int, Transaction] | None],
        clock: Clock,
    ) -> None:
        """`timeout_ms_max` returns `transaction.max.timeout.ms`.

        `coordinated` returns the transactions that the coordinator has not ended, by producer id;
        None while it loads them.
        """
        self._replicas = replicas
        self._timeout_ms_max = timeout_ms_max
        self._coordinated = coordinated
        self._clock = clock
        # Since when each is open, by its partition and first offset.
        self._since_s: dict[tuple[TopicPartition, Offset], float] = {}
        # Partitions whose oldest open transaction is late, as of the last look.
        self.partition_count = 0

    def open_s(self, partition: TopicPartition, first_offset: Offset) -> float:
        """Returns for how long this transaction is open; 0 before the first look that finds it."""
        now_s = self._clock.monotonic_s()
        return now_s - self._since_s.get((partition, first_offset), now_s)

    async def watch_forever(self) -> None:
        """Warns of late transactions, each time that it looks."""
        while True:
            coordinated = self._coordinated()
            if coordinated is not None:
                await self._check(coordinated)
            await asyncio.sleep(LOADING_CHECK_S if coordinated is None else CHECK_S)

    async def _check(self, coordinated: Mapping[int, Transaction]) -> None:
        now_s, limit_s = self._clock.monotonic_s(), (self._timeout_ms_max() + LATE_AFTER_MS) / 1000
        since_s = {}
        late_count = 0
        async for partition in in_turns(self._replicas.led()):
            oldest = partition.log.local.producers.oldest_open()
            if oldest is not None:
                key = partition.topic_partition, oldest.transaction_first_offset
                begin_ms = self._begin_ms(partition, oldest, coordinated)
                if begin_ms is not None:
                    since_s[key] = now_s - max(0, self._clock.now_ms() - begin_ms) / 1000
                else:
                    since_s[key] = self._since_s.get(key, now_s)
                if now_s - since_s[key] > limit_s:
                    late_count += 1
                    _warn(partition, oldest)
        self._since_s, self.partition_count = since_s, late_count

    def _begin_ms(
        self,
        partition: Partition,
        producer: ProducerEntry,
        coordinated: Mapping[int, Transaction],
    ) -> TimestampMs | None:
        """Returns None for a transaction that counts from when it was seen."""
        known = coordinated.get(producer.producer_id)
        if known is not None and partition.topic_partition in known.partitions:
            return known.started_ms
        if producer.transaction_first_offset < partition.log.local.opened_end_offset:
            return producer.last_timestamp_ms
        return None


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

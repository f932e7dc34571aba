"""Asks a coordinator on another broker about the first batches of a Produce request (KIP-890).

1 the log of each partition gives a guard, which a marker takes away
2 the coordinator is asked once, about all partitions
3 the request is handled as every other; with the guard still there, the answer still holds
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.handlers.produce.confirmed_partitions import (
    Confirmed,
    asked_batch,
    confirmation_of,
)
from strandline.storage.model import TopicPartition


class Unconfirmed:
    """The partitions of a request about which another broker has to be asked."""

    def __init__(
        self,
        node_id: int,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: list[Partition],
    ) -> None:
        self._node_id = node_id
        self._transactional_id = transactional_id
        self._producer = producer
        self._partitions = partitions

    @classmethod
    def of(
        cls,
        transactional_id: str,
        batches: Iterable[tuple[memoryview | None, Partition | LeaderRefusal]],
        coordinator: TransactionCoordinator,
    ) -> Unconfirmed | None:
        """None if nobody has to be asked, or the coordinator is here."""
        node_id = coordinator.elsewhere(transactional_id)
        if node_id is None:
            return None
        asked = [
            (batch, partition)
            for records, partition in batches
            if records is not None
            and isinstance(partition, Partition)
            and (batch := asked_batch(records, partition, coordinator)) is not None
        ]
        if not asked:
            return None
        # A request with batches of two producers was refused before.
        producer = ProducerIdentity(asked[0][0].producer_id, asked[0][0].epoch)
        return cls(node_id, transactional_id, producer, [partition for _, partition in asked])

    async def ask(
        self, coordinator: TransactionCoordinator, version: int
    ) -> Mapping[TopicPartition, Confirmed]:
        """Returns the answers, with what guards them; `version` is the Produce request's."""
        guards = {
            one.topic_partition: one.log.local.producers.begin_verification(*self._producer)
            for one in self._partitions
        }
        codes = await coordinator.confirm_elsewhere(
            self._node_id,
            self._transactional_id,
            self._producer,
            guards.keys(),
            confirmation_of(version),
        )
        return {where: Confirmed(codes[where], guard) for where, guard in guards.items()}

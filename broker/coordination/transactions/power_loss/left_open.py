"""Transactions that an unclean stop, or a lost disk, left open in the partitions of this broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.transactions.power_loss.lost_ends import OpenTransaction
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.local.log.log import LocalLog


class LeftOpen:
    """Looks for open transactions in the logs. Used on the event loop only."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def open_after_crash(self) -> Iterator[OpenTransaction]:
        """Iterates over the transactions that an unclean stop, or a lost disk, left open."""
        # Those of a lost coordinator are open everywhere, also after a clean stop.
        is_any = TRANSACTION_TOPIC in self._replicas.topics_with_loss
        for partition in self._replicas.led():
            local = partition.log.local
            if is_any or local.may_lack_markers:
                for opened in open_transactions(local):
                    if opened.first_offset < local.opened_end_offset:
                        yield opened

    def is_open(self, opened: OpenTransaction) -> bool:
        """Whether a transaction that was left open has not ended since.

        A request may have reached its coordinator before all of them were loaded.
        """
        where = opened.partition
        partition = self._replicas.partition(where.topic, where.partition)
        if partition is None:
            return True
        entry = partition.log.local.producers.entries.get(opened.producer.producer_id)
        return entry is not None and entry.transaction_first_offset == opened.first_offset

    async def producers_above(self, epochs: Mapping[int, int]) -> set[int]:
        """Returns the producers that have a greater epoch in a partition than `epochs` says."""
        found: set[int] = set()
        async for partition in in_turns(self._replicas.led()):
            entries = partition.log.local.producers.entries
            if entries:
                shared = entries.keys() & epochs.keys()
                found.update(one for one in shared if entries[one].epoch > epochs[one])
        return found


def open_transactions(local: LocalLog) -> Iterator[OpenTransaction]:
    """Iterates over the transactions that are open in a log."""
    for entry in local.producers.open_entries():
        first_offset = entry.transaction_first_offset
        yield OpenTransaction(
            partition=local.topic_partition,
            topic_id=local.topic_id,
            producer=ProducerIdentity(entry.producer_id, entry.epoch),
            first_offset=first_offset,
            leader_epoch=local.leader_epochs.epoch_for(first_offset),
            coordinator_epoch=max(entry.coordinator_epoch, 0),
        )

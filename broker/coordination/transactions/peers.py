"""The other brokers of a cluster, as the coordinators of transactions need them.

A coordinator sends markers to the leaders of the partitions; a leader asks the coordinator whether
a partition is part of a transaction (KIP-890). A lone broker has none of this.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Protocol

from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from strandline.broker.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.storage.model import TopicPartition


class TransactionPeers(Protocol):
    """Requests raise OSError (of which TimeoutError is one) or StrandlineError without answer."""

    def leader_of(self, partition: TopicPartition) -> NodeId | None:
        """Returns the other broker that leads a partition; None if it is this one, or nobody."""
        ...

    async def write_markers(
        self, node_id: NodeId, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse: ...

    async def add_partitions(
        self, node_id: NodeId, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse: ...

    def spawn(self, task: Coroutine[object, object, None]) -> object:
        """Runs a task until it ends, or the broker stops."""
        ...

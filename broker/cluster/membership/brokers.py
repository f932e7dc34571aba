"""The other brokers of the cluster, as the metadata have them, for requests between brokers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TypeVar

from strandline.broker.cluster.metadata.image import NO_LEADER
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.peers.address import Address
from strandline.broker.peers.errors import PeerUnreachable
from strandline.broker.peers.peer import Connect, Peer
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from strandline.broker.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.storage.clock import Clock
from strandline.storage.model import TopicId, TopicPartition

ResponseT = TypeVar("ResponseT", bound=Response)


class OtherBrokers:
    """Connections to other brokers by their ids; used on the event loop only."""

    def __init__(
        self,
        view: MetadataView,
        connect: Connect,
        clock: Clock,
        *,
        node_id: NodeId,
        listener: str,
        request_s_max: float,
        spawn: Callable[[Coroutine[object, object, None]], object],
    ) -> None:
        """`node_id` is this broker's; `listener` is the one by which brokers connect to each other.

        `spawn` runs what waits for answers.
        """
        self.spawn = spawn
        self._node_id = node_id
        self._view = view
        self._connect = connect
        self._clock = clock
        self.listener = listener
        self._request_s_max = request_s_max
        self._peers: dict[NodeId, Peer] = {}

    async def ask(self, node_id: NodeId, request: Request, answer: type[ResponseT]) -> ResponseT:
        """Returns the answer of a broker. Raises PeerError."""
        peer = self._peer(node_id)
        return await peer.call(request, answer, timeout_s=self._request_s_max)

    def leader_of(self, partition: TopicPartition) -> NodeId | None:
        """Returns the other broker that leads a partition; None if it is this one, or nobody."""
        found = self._view.image.partition(partition)
        if found is None or found.leader in (self._node_id, NO_LEADER):
            return None
        return found.leader

    def topic_id(self, name: str) -> TopicId | None:
        """Returns the id of a topic; None if there is none."""
        found = self._view.image.topics.get(name)
        return None if found is None else found.topic_id

    async def write_markers(
        self, node_id: NodeId, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        """Raises PeerError."""
        return await self.ask(node_id, request, WriteTxnMarkersResponse)

    async def add_partitions(
        self, node_id: NodeId, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        """Raises PeerError."""
        return await self.ask(node_id, request, AddPartitionsToTxnResponse)

    def own_peer(self, node_id: NodeId) -> Peer:
        """Returns a connection to a broker that its caller alone uses, and closes.

        Raises PeerUnreachable.
        """
        return Peer(self.address(node_id), self._connect, self._clock)

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    def _peer(self, node_id: NodeId) -> Peer:
        address = self.address(node_id)
        known = self._peers.get(node_id)
        if known is None or known.address != address:
            if known is not None:
                known.close()
            known = self._peers[node_id] = Peer(address, self._connect, self._clock)
        return known

    def address(self, node_id: NodeId) -> Address:
        """Returns where a broker listens for others. Raises PeerUnreachable."""
        broker = self._view.image.brokers.get(node_id)
        for one in () if broker is None else broker.end_points:
            if one.name == self.listener:
                return Address(one.host, one.port)
        raise PeerUnreachable(f"broker {node_id} has no listener {self.listener}")

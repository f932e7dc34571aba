"""Sends markers to the brokers that lead the partitions (Kafka's TransactionMarkerChannelManager).

    send    a marker joins the queue of a broker
    drain   one request at a time to each broker, with what has queued until then, until its queue
            is empty; so many small transactions share a request without a pause to wait for them

Each marker is answered once. Whoever asked tries it again, with the leader of then: nothing here
waits for a leader, and a queue has a partition of a transaction once at most.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import NamedTuple

from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.coordination.transactions.markers import EndMarker
from strandline.broker.coordination.transactions.peers import TransactionPeers
from strandline.broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import StrandlineError
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.marker import MarkerType

log = logging.getLogger(__name__)

# In one request: 20 us each for the broker that writes them.
MARKERS_PER_REQUEST_MAX = 500


class SentMarker(NamedTuple):
    """The end of a transaction in one partition."""

    transactional_id: str
    marker: EndMarker
    partition: TopicPartition


# What the partition's leader said of a marker; NETWORK_EXCEPTION if it could not be asked.
Answered = Callable[[SentMarker, ErrorCode], None]


class MarkerChannel:
    """The markers on their way to other brokers. Used on the event loop only."""

    def __init__(self, brokers: TransactionPeers, answered: Answered) -> None:
        """`answered` is called once for each marker that was sent."""
        self._brokers = brokers
        self._answered = answered
        # Of the brokers that are sent something now.
        self._queues: dict[NodeId, deque[SentMarker]] = {}

    def __repr__(self) -> str:
        return f"<MarkerChannel {sum(map(len, self._queues.values()))} to {len(self._queues)}>"

    def send(self, sent: SentMarker) -> bool:
        """Sends a marker to its partition's leader; returns False if no other broker leads it."""
        node_id = self._brokers.leader_of(sent.partition)
        if node_id is None:
            return False
        queue = self._queues.get(node_id)
        if queue is not None:
            queue.append(sent)
            return True
        self._queues[node_id] = deque([sent])
        self._brokers.spawn(self._drain(node_id))
        return True

    async def _drain(self, node_id: NodeId) -> None:
        queue = self._queues[node_id]
        try:
            while queue:
                await self._send_some(node_id, _taken_from(queue))
        finally:
            del self._queues[node_id]

    async def _send_some(self, node_id: NodeId, batch: list[SentMarker]) -> None:
        try:
            response = await self._brokers.write_markers(node_id, _request_of(batch))
        except (OSError, StrandlineError) as error:
            log.debug("no answer to markers from broker %d: %s", node_id, error)
            codes, otherwise = {}, ErrorCode.NETWORK_EXCEPTION
        else:
            # An answer that lacks a marker says nothing of it.
            codes, otherwise = _codes_in(response), ErrorCode.UNKNOWN_SERVER_ERROR
        for sent in batch:
            key = sent.marker.producer.producer_id, sent.partition
            self._answered(sent, codes.get(key, otherwise))


def _taken_from(queue: deque[SentMarker]) -> list[SentMarker]:
    """Takes a request's worth of markers. An answer names producers alone, so it is one of each."""
    marker_of: dict[int, EndMarker] = {}
    taken: list[SentMarker] = []
    while queue and len(taken) < MARKERS_PER_REQUEST_MAX:
        marker = queue[0].marker
        if marker_of.setdefault(marker.producer.producer_id, marker) != marker:
            break
        taken.append(queue.popleft())
    return taken


def _request_of(batch: Iterable[SentMarker]) -> WriteTxnMarkersRequest:
    partitions_of: dict[EndMarker, list[TopicPartition]] = {}
    for sent in batch:
        partitions_of.setdefault(sent.marker, []).append(sent.partition)
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=marker.producer.producer_id,
                producer_epoch=marker.producer.epoch,
                transaction_result=marker.end is MarkerType.COMMIT,
                topics=[
                    WritableTxnMarkerTopic(
                        name=topic, partition_indexes=[one.partition for one in group]
                    )
                    for topic, group in groupby(sorted(partitions), key=lambda one: one.topic)
                ],
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.version,
            )
            for marker, partitions in partitions_of.items()
        ]
    )


def _codes_in(response: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], ErrorCode]:
    return {
        (marker.producer_id, TopicPartition(topic.name, one.partition_index)): ErrorCode.known(
            one.error_code
        )
        for marker in response.markers
        for topic in marker.topics
        for one in topic.partitions
    }

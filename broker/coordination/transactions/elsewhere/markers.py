"""The markers of transactions coordinated here, for the partitions of all brokers.

A partition of this broker gets its marker at once; one that another broker leads by WriteTxnMarkers
(Kafka's TransactionMarkerChannelManager). The coordinator tries each marker until it is written, so
a leader that moves or dies meanwhile is only asked again, or the next one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from strandline.broker.cluster.membership.brokers import OtherBrokers
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.coordination.transactions.elsewhere.asked import AskedElsewhere
from strandline.broker.coordination.transactions.markers import (
    EndMarker,
    LocalMarkers,
    Markers,
)
from strandline.broker.coordination.transactions.transaction import LogEnd
from strandline.broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.marker import MarkerType

# Answers that the coordinator acts on; with any other one the marker is sent again.
_KNOWN: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)


class _Wanted(NamedTuple):
    """A marker for a partition."""

    marker: EndMarker
    where: TopicPartition


class ClusterMarkers(Markers):
    """Writes markers here, and has others write theirs. Used on the event loop only."""

    def __init__(
        self,
        local: LocalMarkers,
        brokers: OtherBrokers,
        view: MetadataView,
        clock: Clock,
        *,
        node_id: NodeId,
        wake: Callable[[], None],
    ) -> None:
        """`wake` lets the coordinator try again what waits."""
        self._local = local
        self._brokers = brokers
        self._view = view
        self._node_id = node_id
        self._asked = AskedElsewhere(self._send, clock, on_answers=wake)

    def log_ends(self, partitions: Iterable[TopicPartition]) -> tuple[LogEnd, ...]:
        """As LocalMarkers; ends of logs elsewhere are not known."""
        return self._local.log_ends(partitions)

    def write(self, marker: EndMarker, where: TopicPartition) -> ErrorCode:
        """As LocalMarkers; OPERATION_NOT_ATTEMPTED while a marker is on its way."""
        led = self._view.image.partition(where)
        if led is None or led.leader in (-1, self._node_id):
            return self._local.write(marker, where)
        answer = self._asked.take(led.leader, _Wanted(marker, where))
        return ErrorCode.OPERATION_NOT_ATTEMPTED if answer is None else answer

    def close(self) -> None:
        self._asked.close()

    async def _send(
        self, node_id: NodeId, wanted: Sequence[_Wanted]
    ) -> Mapping[_Wanted, ErrorCode]:
        by_marker: dict[EndMarker, dict[str, list[int]]] = {}
        for marker, where in wanted:
            by_marker.setdefault(marker, {}).setdefault(where.topic, []).append(where.partition)
        answer = await self._brokers.ask(
            node_id,
            WriteTxnMarkersRequest(
                markers=[_writable(marker, topics) for marker, topics in by_marker.items()]
            ),
            WriteTxnMarkersResponse,
        )
        found: dict[tuple[int, str, int], ErrorCode] = {
            (result.producer_id, topic.name, one.partition_index): ErrorCode(one.error_code)
            for result in answer.markers
            for topic in result.topics
            for one in topic.partitions
        }
        codes = {
            one: found.get((one.marker.producer.producer_id, *one.where), ErrorCode.NONE)
            for one in wanted
            if (one.marker.producer.producer_id, *one.where) in found
        }
        return {one: code for one, code in codes.items() if code in _KNOWN}


def _writable(marker: EndMarker, topics: Mapping[str, Sequence[int]]) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=marker.producer.producer_id,
        producer_epoch=marker.producer.epoch,
        transaction_result=marker.end is MarkerType.COMMIT,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=int(marker.version),
    )

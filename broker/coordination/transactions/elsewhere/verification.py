"""Confirms a partition of this broker with a coordinator elsewhere.

As Kafka's AddPartitionsToTxnManager:

    Produce ──► confirm: not known yet ──► AddPartitionsToTxn, 4 and up, to the coordinator
            ◄── NOT_ENOUGH_REPLICAS, which every producer tries again
    Produce ──► confirm: the answer, which counts once

Between the answer and the batch a marker may end the transaction here: then the answer counts no
more (Kafka's VerificationGuard), or records would stay open behind their transaction's end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from strandline.broker.cluster.membership.brokers import OtherBrokers
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.coordination.runtime.slots import coordinating_partition
from strandline.broker.coordination.transactions.elsewhere.asked import AskedElsewhere
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.coordination.transactions.verification import Confirm, Confirmation
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.model import TopicPartition


class _Asked(NamedTuple):
    """A partition of a producer's transaction; added to it, or only looked for."""

    transactional_id: str
    producer: ProducerIdentity
    partition: TopicPartition
    adds: bool


class ClusterVerification:
    """Confirms partitions with the coordinators of all brokers. Used on the event loop only."""

    def __init__(
        self,
        local: Confirm,
        brokers: OtherBrokers,
        view: MetadataView,
        clock: Clock,
        *,
        node_id: NodeId,
        verifies: Callable[[], bool],
    ) -> None:
        """`verifies`: whether transaction.partition.verification.enable is on."""
        self._local = local
        self._brokers = brokers
        self._view = view
        self._node_id = node_id
        self._verifies = verifies
        self._asked = AskedElsewhere(self._ask, clock)

    def confirm(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partition: TopicPartition,
        confirmation: Confirmation,
        together: Set[TopicPartition] = frozenset(),
    ) -> ErrorCode:
        """As PartitionVerification; COORDINATOR_NOT_AVAILABLE while another broker is asked."""
        coordinator = self._coordinator(transactional_id)
        if coordinator in (None, self._node_id):
            return self._local(transactional_id, producer, partition, confirmation, together)
        adds = confirmation is Confirmation.ADD
        if not adds and not self._verifies():
            return ErrorCode.NONE
        if coordinator is None or coordinator < 0:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        wanted = _Asked(transactional_id, producer, partition, adds)
        code = self._asked.take(coordinator, wanted)
        if code is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if code is ErrorCode.TRANSACTION_ABORTABLE and confirmation is Confirmation.LOOK:
            return ErrorCode.INVALID_TXN_STATE
        return code

    def ended(self, producer_id: int, partition: TopicPartition) -> None:
        """A marker came: what was confirmed before says nothing of the next transaction."""
        self._asked.forget(
            lambda one: one.producer.producer_id == producer_id and one.partition == partition
        )

    def close(self) -> None:
        self._asked.close()

    def _coordinator(self, transactional_id: str) -> NodeId | None:
        topic = self._view.image.topics.get(TRANSACTION_TOPIC)
        if topic is None:
            return None
        index = coordinating_partition(transactional_id, topic.partition_count)
        return topic.partitions[index].leader

    async def _ask(self, node_id: NodeId, wanted: Sequence[_Asked]) -> Mapping[_Asked, ErrorCode]:
        grouped: dict[tuple[str, ProducerIdentity, bool], dict[str, list[int]]] = {}
        # Answers do not name the producer: of two with one id the other one asks again.
        first = {one.transactional_id: one[:2] + one[3:] for one in reversed(wanted)}
        wanted = [one for one in wanted if one[:2] + one[3:] == first[one.transactional_id]]
        for one in wanted:
            topics = grouped.setdefault((one.transactional_id, one.producer, one.adds), {})
            topics.setdefault(one.partition.topic, []).append(one.partition.partition)
        answer = await self._brokers.ask(
            node_id,
            AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id=transactional_id,
                        producer_id=producer.producer_id,
                        producer_epoch=producer.epoch,
                        verify_only=not adds,
                        topics=[
                            AddPartitionsToTxnTopic(name=name, partitions=indexes)
                            for name, indexes in topics.items()
                        ],
                    )
                    for (transactional_id, producer, adds), topics in grouped.items()
                ]
            ),
            AddPartitionsToTxnResponse,
        )
        found = {
            (result.transactional_id, topic.name, one.partition_index): ErrorCode(
                one.partition_error_code
            )
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for one in topic.results_by_partition
        }
        return {
            one: code
            for one in wanted
            if (code := found.get((one.transactional_id, *one.partition))) is not None
        }

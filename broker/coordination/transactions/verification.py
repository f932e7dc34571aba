"""Which partitions a producer writes to in its transaction, asked before it does (KIP-890).

add        partitions become part of the transaction, which begins with the first of them
confirm    whether a batch may be appended to one of them: asked for the first batch alone,
           without a wait, so that no marker comes between the answer and the append
elsewhere  the same of a coordinator on another broker (Kafka's AddPartitionsToTxnManager): a
           marker may come meanwhile, so the log guards what is appended after the answer
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from enum import Enum, auto
from itertools import groupby

from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.transactions import transaction as rules
from strandline.broker.coordination.transactions.config import TransactionConfig
from strandline.broker.coordination.transactions.peers import TransactionPeers
from strandline.broker.coordination.transactions.power_loss.repair import PowerLossRepair
from strandline.broker.coordination.transactions.states import TransactionSlot, TransactionStates
from strandline.broker.coordination.transactions.transaction import (
    ProducerIdentity,
    TransactionVersion,
)
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.errors import StrandlineError
from strandline.storage.model import TopicPartition

log = logging.getLogger(__name__)


class Confirmation(Enum):
    """What a client expects of a partition that it writes to in a transaction (KIP-890)."""

    LOOK = auto()  # must be part of it; older clients know INVALID_TXN_STATE alone
    LOOK_ABORTABLE = auto()  # must be part of it; the client aborts the transaction otherwise
    ADD = auto()  # becomes part of it with the write: transaction version 2


class PartitionVerification:
    """Adds and confirms partitions of transactions. Used on the event loop only."""

    def __init__(
        self,
        states: TransactionStates,
        repair: PowerLossRepair,
        config: Callable[[], TransactionConfig],
        clock: Clock,
        others: TransactionPeers | None = None,
    ) -> None:
        self._states = states
        self._repair = repair
        self._config = config
        self._clock = clock
        self._others = others
        # Batches refused since the start.
        self.refused_total = 0

    def add(
        self,
        slot: TransactionSlot,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Set[TopicPartition],
        client_version: TransactionVersion,
    ) -> ErrorCode:
        """Raises CoordinatorFault."""
        repair = self._repair
        if repair.lacks_ends and any(map(repair.is_settling, partitions)):
            # Step 5 would take what is open there for a part of this transaction.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        decision = rules.add_partitions(
            slot.shard.get(transactional_id),
            producer,
            partitions,
            client_version=client_version,
            now_ms=self._clock.now_ms(),
        )
        if decision.written is not None:
            self._states.write(slot, decision.written)
        return decision.error_code

    def confirm(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partition: TopicPartition,
        confirmation: Confirmation,
        together: Set[TopicPartition] = frozenset(),
    ) -> ErrorCode:
        """Returns whether a batch of the producer's transaction may be written to a partition.

        With ADD the partitions that it is `together` with in its request are added as well. Without
        a wait: no marker comes between the answer and the append of the batch.
        """
        if self._repair.is_settling(partition):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if confirmation is not Confirmation.ADD and not self._config().verifies_partitions:
            return ErrorCode.NONE
        if confirmation is Confirmation.ADD and self._repair.lacks_ends:
            together = {one for one in together if not self._repair.is_settling(one)}
        try:
            code = self._confirm(
                transactional_id, producer, partition, confirmation, together or {partition}
            )
        except CoordinatorFault as fault:
            code = fault.error_code
        if self._states.is_unreplicated(transactional_id):
            # The records would stay open if another coordinator did not know of the partition.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self._told(code, confirmation)

    def _told(self, code: ErrorCode, confirmation: Confirmation) -> ErrorCode:
        """Returns the code that a client of Produce or TxnOffsetCommit knows."""
        if code is not ErrorCode.NONE:
            self.refused_total += 1
        if code is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if code is ErrorCode.TRANSACTION_ABORTABLE and confirmation is Confirmation.LOOK:
            return ErrorCode.INVALID_TXN_STATE
        return code

    def _confirm(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partition: TopicPartition,
        confirmation: Confirmation,
        together: Set[TopicPartition],
    ) -> ErrorCode:
        """Raises CoordinatorFault."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        slot, current = self._states.located(transactional_id)
        if confirmation is not Confirmation.ADD:
            return rules.verify_partitions(current, producer, {partition})[partition]
        if slot is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return self.add(slot, transactional_id, producer, together, TransactionVersion.V2)

    # --- of coordinators on other brokers ----------------------------------------------------

    def elsewhere(self, transactional_id: str) -> NodeId | None:
        """Returns the other broker that coordinates an id; None if it is this one, or unknown."""
        if self._others is None or not transactional_id:
            return None
        where = self._states.place_of(transactional_id)
        return None if where is None else self._others.leader_of(where)

    async def confirm_elsewhere(
        self,
        node_id: NodeId,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Set[TopicPartition],
        confirmation: Confirmation,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Asks a broker what `confirm` says here, of several partitions at once."""
        assert self._others is not None
        if confirmation is not Confirmation.ADD and not self._config().verifies_partitions:
            return dict.fromkeys(partitions, ErrorCode.NONE)
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    verify_only=confirmation is not Confirmation.ADD,
                    topics=_by_topic(partitions),
                )
            ]
        )
        try:
            response = await self._others.add_partitions(node_id, request)
        except (OSError, StrandlineError) as error:
            log.debug("no answer of the coordinator at broker %d: %s", node_id, error)
            codes: dict[TopicPartition, ErrorCode] = {}
            otherwise = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            codes, otherwise = _codes_in(response, transactional_id)
        if ErrorCode.NOT_COORDINATOR in codes.values():
            # It was here that the wrong broker was asked, and not by the client.
            codes, otherwise = {}, ErrorCode.COORDINATOR_NOT_AVAILABLE
        return {one: self._told(codes.get(one, otherwise), confirmation) for one in partitions}


def _by_topic(partitions: Iterable[TopicPartition]) -> list[AddPartitionsToTxnTopic]:
    return [
        AddPartitionsToTxnTopic(name=topic, partitions=[one.partition for one in group])
        for topic, group in groupby(sorted(partitions), key=lambda one: one.topic)
    ]


def _codes_in(
    response: AddPartitionsToTxnResponse, transactional_id: str
) -> tuple[dict[TopicPartition, ErrorCode], ErrorCode]:
    """Returns the codes, and that of partitions which have none."""
    if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        # Nothing that the client could mend, and no right of its own that it lacks.
        return {}, ErrorCode.INVALID_TXN_STATE
    if response.error_code:
        return {}, ErrorCode.known(response.error_code)
    codes = {
        TopicPartition(topic.name, one.partition_index): ErrorCode.known(one.partition_error_code)
        for result in response.results_by_transaction
        if result.transactional_id == transactional_id
        for topic in result.topic_results
        for one in topic.results_by_partition
    }
    return codes, ErrorCode.UNKNOWN_SERVER_ERROR

"""Which partitions a producer writes to in its transaction, asked before it does (KIP-890).

add        partitions become part of the transaction, which begins with the first of them
confirm    whether a batch may be appended to one of them: asked for the first batch alone,
           without a wait, so that no marker comes between the answer and the append
"""

from __future__ import annotations

from collections.abc import Callable, Set
from enum import Enum, auto
from typing import Protocol

from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.transactions import transaction as rules
from strandline.broker.coordination.transactions.config import TransactionConfig
from strandline.broker.coordination.transactions.power_loss.repair import PowerLossRepair
from strandline.broker.coordination.transactions.states import TransactionSlot, TransactionStates
from strandline.broker.coordination.transactions.transaction import (
    ProducerIdentity,
    TransactionVersion,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.model import TopicPartition


class Confirmation(Enum):
    """What a client expects of a partition that it writes to in a transaction (KIP-890)."""

    LOOK = auto()  # must be part of it; older clients know INVALID_TXN_STATE alone
    LOOK_ABORTABLE = auto()  # must be part of it; the client aborts the transaction otherwise
    ADD = auto()  # becomes part of it with the write: transaction version 2


class Confirm(Protocol):
    """What says whether a batch may be written to a partition; see PartitionVerification."""

    def __call__(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partition: TopicPartition,
        confirmation: Confirmation,
        together: Set[TopicPartition] = ...,
    ) -> ErrorCode: ...


class PartitionVerification:
    """Adds and confirms partitions of transactions. Used on the event loop only."""

    def __init__(
        self,
        states: TransactionStates,
        repair: PowerLossRepair,
        config: Callable[[], TransactionConfig],
        clock: Clock,
    ) -> None:
        self._states = states
        self._repair = repair
        self._config = config
        self._clock = clock
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

"""Asks the coordinator about the first batch of a transaction in a partition (KIP-890).

    Produce   0-10  the partition must be part of the transaction: INVALID_TXN_STATE
             11     the same: TRANSACTION_ABORTABLE
             12 on  the partition becomes part of the transaction, and with it those of its request

Later batches need no coordinator: the log knows that the transaction is open. The question, its
answer and the append take one turn of the event loop, so no marker can come between them.
"""

from __future__ import annotations

from collections.abc import Set

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.coordination.runtime.transaction_coordinator import (
    Confirmation,
    TransactionCoordinator,
)
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import OutOfOrderSequence, RecordsRejected
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch import batch as batch_format

FIRST_VERSION_WITH_ABORTABLE = 11
FIRST_VERSION_THAT_ADDS = 12

# Clients retry after these codes of a coordinator that is not ready, but not every client's
# Produce knows them.
_NOT_READY = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class NotConfirmed(RecordsRejected):
    """The coordinator refused the partition."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(f"the coordinator of the transaction answers {code.name}")
        self.kafka_code = code  # type: ignore[misc]  # of this answer


def origin_of(
    records: memoryview,
    partition: Partition,
    transactional_id: str | None,
    coordinator: TransactionCoordinator,
    version: int,
    together: Set[TopicPartition],
) -> AppendOrigin:
    """Returns the origin of a client's batch, asking the coordinator if the log cannot know.

    The partitions of its request join a transaction `together`, with one record.

    Raises NotConfirmed, OutOfOrderSequence.
    """
    if transactional_id is None or len(records) < batch_format.HEADER_BYTES:
        return AppendOrigin.CLIENT
    header = batch_format.HEADER.unpack_from(records)
    attributes, producer_id, epoch, sequence = header[5], header[9], header[10], header[11]
    if producer_id < 0 or not attributes & batch_format.TRANSACTIONAL_BIT:
        return AppendOrigin.CLIENT
    producers, where = partition.log.local.producers, partition.topic_partition
    if producers.has_open_transaction(producer_id, epoch) and not coordinator.is_settling(where):
        return AppendOrigin.CLIENT
    confirmation = _confirmation(version)
    code = coordinator.confirm(
        transactional_id,
        ProducerIdentity(producer_id, epoch),
        where,
        confirmation,
        together,
    )
    if code is not ErrorCode.NONE:
        raise NotConfirmed(_answered(code, confirmation))
    if confirmation is Confirmation.ADD and sequence > 0 and producer_id not in producers.entries:
        raise OutOfOrderSequence(
            f"producer {producer_id} sent sequence {sequence} where nothing is known of it"
        )
    return AppendOrigin.VERIFIED


def _confirmation(version: int) -> Confirmation:
    if version >= FIRST_VERSION_THAT_ADDS:
        return Confirmation.ADD
    if version >= FIRST_VERSION_WITH_ABORTABLE:
        return Confirmation.LOOK_ABORTABLE
    return Confirmation.LOOK


def _answered(code: ErrorCode, confirmation: Confirmation) -> ErrorCode:
    is_retried = code in _NOT_READY or (
        code is ErrorCode.CONCURRENT_TRANSACTIONS and confirmation is not Confirmation.ADD
    )
    # Kafka's choice as well: every producer retries it, and none asks for metadata first.
    return ErrorCode.NOT_ENOUGH_REPLICAS if is_retried else code

"""Asks the coordinator about the first batch of a transaction in a partition (KIP-890).

    Produce   0-10  the partition must be part of the transaction: INVALID_TXN_STATE
             11     the same: TRANSACTION_ABORTABLE
             12 on  the partition becomes part of the transaction, and with it those of its request

Later batches need no coordinator: the log knows that the transaction is open. The question, its
answer and the append take one turn of the event loop, so no marker can come between them. A
coordinator on another broker is asked before (`elsewhere.py`), and the log's guard says at the
append whether a marker came.

A request is refused as a whole, as by Kafka, if a batch of it is part of a transaction and the
request names no transactional id (TRANSACTIONAL_ID_AUTHORIZATION_FAILED), or if two producers have
such batches in it (INVALID_PRODUCER_ID_MAPPING).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.coordination.transactions.verification import Confirmation
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import OutOfOrderSequence, RecordsRejected
from strandline.storage.local.formats.producer_state import VerificationGuard
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch import batch as batch_format

FIRST_VERSION_WITH_ABORTABLE = 11
FIRST_VERSION_THAT_ADDS = 12

# Names of this module: each batch of each producer is looked at. The attributes are two bytes.
_HEADER_BYTES = batch_format.HEADER_BYTES
_ATTRIBUTES_LOW_POSITION = batch_format.CRC_START + 1
_TRANSACTIONAL_BIT = batch_format.TRANSACTIONAL_BIT

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


class Confirmed(NamedTuple):
    """What a coordinator on another broker said of a partition."""

    code: ErrorCode
    guard: VerificationGuard


class TransactionalBatch(NamedTuple):
    """What the header of a batch says that is part of a transaction."""

    size_bytes: int
    producer_id: int
    epoch: int
    sequence: int


def transactional_batch(records: memoryview | None) -> TransactionalBatch | None:
    """Returns what a batch says of its transaction, None if it is part of none.

    Asked for every batch: of one that is part of none, only one byte is read.
    """
    if (
        records is None
        or len(records) < _HEADER_BYTES
        or not records[_ATTRIBUTES_LOW_POSITION] & _TRANSACTIONAL_BIT
    ):
        return None
    header = batch_format.HEADER.unpack_from(records)
    if header[3] != batch_format.MAGIC:
        return None
    return TransactionalBatch(
        header[1] + batch_format.LOG_OVERHEAD_BYTES, header[9], header[10], header[11]
    )


def code_for_all(
    transactional_id: str | None, batches: Iterable[TransactionalBatch]
) -> ErrorCode | None:
    """Returns the code for all batches of a request, None if it is not refused as a whole."""
    producers = {(one.producer_id, one.epoch) for one in batches}
    if producers and transactional_id is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if len([one for one in producers if one[0] >= 0]) > 1:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return None


def joins(batch: TransactionalBatch, records: memoryview, partition: Partition) -> bool:
    """Returns whether a batch adds its partition to the transaction of its request."""
    if partition.is_internal or batch.producer_id < 0:
        return False
    entry = partition.log.local.producers.entries.get(batch.producer_id)
    is_stale = entry is not None and batch.epoch < entry.epoch
    return batch.size_bytes == len(records) and not is_stale


def origin_of(
    records: memoryview,
    partition: Partition,
    transactional_id: str | None,
    coordinator: TransactionCoordinator,
    version: int,
    together: Set[TopicPartition],
    confirmed: Mapping[TopicPartition, Confirmed],
) -> AppendOrigin:
    """Returns the origin of a client's batch, asking the coordinator if the log cannot know.

    The partitions of its request join a transaction `together`, with one record. `confirmed` has
    those that a coordinator elsewhere was asked about.

    Raises NotConfirmed, InvalidProducerEpoch, OutOfOrderSequence, InvalidTransactionState.
    """
    if transactional_id is None:
        return AppendOrigin.CLIENT
    batch = asked_batch(records, partition, coordinator)
    if batch is None:
        return AppendOrigin.CLIENT
    producer_id, epoch = batch.producer_id, batch.epoch
    producers, where = partition.log.local.producers, partition.topic_partition
    entry = producers.entries.get(producer_id)
    if entry is not None:
        # Before the coordinator is asked, which may not be ready.
        producers.check_epoch(entry, epoch)
    confirmation = confirmation_of(version)
    told = confirmed.get(where)
    if told is not None:
        code = told.code
    else:
        code = coordinator.confirm(
            transactional_id,
            ProducerIdentity(producer_id, epoch),
            where,
            confirmation,
            together,
        )
    if code is not ErrorCode.NONE:
        producers.note_refused(producer_id, epoch, batch.sequence)
        raise NotConfirmed(_answered(code, confirmation))
    if told is not None:
        producers.check_verified(producer_id, told.guard)
    producers.check_refused(producer_id, epoch, batch.sequence)
    if confirmation is Confirmation.ADD and batch.sequence > 0 and entry is None:
        raise OutOfOrderSequence(
            f"producer {producer_id} sent sequence {batch.sequence} where nothing is known of it"
        )
    return AppendOrigin.VERIFIED


def asked_batch(
    records: memoryview, partition: Partition, coordinator: TransactionCoordinator
) -> TransactionalBatch | None:
    """Returns a batch about which the coordinator is asked, None if the log knows enough."""
    batch = transactional_batch(records)
    if batch is None or batch.producer_id < 0 or batch.size_bytes != len(records):
        return None
    is_open = partition.log.local.producers.has_open_transaction(batch.producer_id, batch.epoch)
    if is_open and not coordinator.is_settling(partition.topic_partition):
        return None
    return batch


def confirmation_of(version: int) -> Confirmation:
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

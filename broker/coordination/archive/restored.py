"""What a restore from the bucket makes of transactions.

    ONGOING              aborts: records of it may be lost with the disk
    PREPARE_*            stays decided: the next start writes its markers
    COMPLETE_*, EMPTY    stays

The archive of a partition and the snapshot of the transactions are of different moments. A producer
may have had later epochs than the snapshot says, with batches in the archive. So every producer id
is retired (`transaction.retire`): its producer is fenced, and the next one gets another producer
id, which no log has.

A restored log may end within a transaction that the snapshot has as completed, or does not know;
nobody would write its marker any more. `end_of_open` says how the restore ends it. The archived
segment in which it began tells, if there is one: readers of the archive have seen that outcome.
Otherwise it is a commit only if the snapshot proves one, else an abort, which never shows a record
that was aborted.
"""

from __future__ import annotations

from strandline.broker.coordination.transactions.power_loss.lost_ends import (
    OpenTransaction,
    is_later,
)
from strandline.broker.coordination.transactions.transaction import (
    PRODUCER_EPOCH_MAX,
    Transaction,
    TransactionState,
)
from strandline.storage.records.batch.marker import MarkerType


def end_of_open(
    transaction: Transaction | None,
    opened: OpenTransaction,
    *,
    is_committed: bool | None = None,
) -> MarkerType:
    """Returns how a transaction ends that is open in a restored log.

    `transaction` is the state of its producer id, and `is_committed` the outcome that the archive
    has, if known.
    """
    if is_committed is not None:
        return MarkerType.COMMIT if is_committed else MarkerType.ABORT
    producer = opened.producer
    if transaction is None or transaction.state not in (
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    ):
        return MarkerType.ABORT
    if is_later(opened, transaction):
        return MarkerType.ABORT
    if transaction.producer_id != producer.producer_id:
        # It was the last one of an id whose epochs are used up, and the next id has no other yet.
        is_this_one = producer.epoch == PRODUCER_EPOCH_MAX - 1
    elif transaction.client_version.bumps_epoch:
        is_this_one = transaction.epoch == min(producer.epoch + 1, PRODUCER_EPOCH_MAX)
    else:
        # All transactions of a producer of version 1 have one epoch: only while the last one is
        # being committed is it known that this is the one.
        is_this_one = (
            transaction.epoch == producer.epoch
            and transaction.state is TransactionState.PREPARE_COMMIT
        )
    return MarkerType.COMMIT if is_this_one else MarkerType.ABORT

"""What a restore from the bucket makes of transactions.

    ONGOING              aborts: records of it may be lost with the disk, so its producer is fenced
    PREPARE_*            stays: the next start writes its markers
    COMPLETE_*, EMPTY    stays

The archive of a partition and the snapshot of the transactions are of different moments. So a
restored log may end within a transaction that the snapshot has as completed, or does not know;
nobody would write its marker any more. `end_of_open` says how the restore ends it: as a commit only
if the snapshot proves one, otherwise as an abort, which never shows a record that was aborted.
"""

from __future__ import annotations

from strandline.broker.coordination.records.offset_records import TransactionEnd
from strandline.broker.coordination.transactions.transaction import (
    PRODUCER_EPOCH_MAX,
    ProducerIdentity,
    Transaction,
    TransactionState,
    TransactionVersion,
    fence_and_abort,
)


def restored(transaction: Transaction, now_ms: int) -> Transaction:
    """Returns the state with which a restored broker begins."""
    if transaction.state is not TransactionState.ONGOING:
        return transaction
    # Version 1 takes no new producer id where the epochs are used up, and none is at hand here.
    fenced = fence_and_abort(
        transaction, fresh_id=None, server_version=TransactionVersion.V1, now_ms=now_ms
    ).written
    assert fenced is not None, transaction
    return fenced


def end_of_open(transaction: Transaction | None, producer: ProducerIdentity) -> TransactionEnd:
    """Returns how a transaction ends that is open in a restored log.

    `producer` is that of its batches; `transaction` is the state of its producer id, if known.
    """
    if transaction is None or transaction.state not in (
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    ):
        return TransactionEnd.ABORT
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
    return TransactionEnd.COMMIT if is_this_one else TransactionEnd.ABORT

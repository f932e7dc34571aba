"""A coordinator's partition that lost its only replica goes on with what the bucket has of it.

groups          as they were at the last upload; what was committed since is lost
transactions    those under way go on: their coordinator ends them, or they time out
                all others are retired: no producer id and epoch is given twice
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.coordination.archive.restored_transactions import (
    decoded,
    restored_transactions,
)
from strandline.broker.coordination.archive.state_archive import (
    LiveRecord,
    LiveRecords,
    read_group_state,
    write_group_state,
)
from strandline.broker.coordination.transactions.transaction import TransactionVersion
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.storage.local.log.log import LocalLog
from strandline.storage.remote.keys import GROUPS_PREFIX, TRANSACTIONS_PREFIX
from strandline.storage.remote.object_store.interface import ObjectStore


def taken_over(
    store: ObjectStore, local: LocalLog, version: TransactionVersion, now_ms: int
) -> bool:
    """Fills an empty log; whether the bucket has anything of it. Blocks.

    Raises StorageError, CorruptRecords.
    """
    topic, number = local.topic_partition
    if topic == OFFSETS_TOPIC:
        live = read_group_state(store, number, GROUPS_PREFIX)
        if live is not None:
            write_group_state(local, live, live.pending)
    else:
        live = read_group_state(store, number, TRANSACTIONS_PREFIX)
        if live is not None:
            write_group_state(local, _transactions(live, version, now_ms))
    return live is not None


def _transactions(
    live: LiveRecords, version: TransactionVersion, now_ms: int
) -> Iterator[LiveRecord]:
    for record in live:
        transaction = decoded(record)
        if transaction is not None and transaction.partitions:
            yield record
        else:
            yield from restored_transactions([record], version, now_ms)

"""Writes transactions into restored logs: the transactional ids, and the ends of open transactions.

`restored.py` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from strandline.broker.coordination.archive.restored import end_of_open
from strandline.broker.coordination.archive.state_archive import LiveRecord, LiveRecords
from strandline.broker.coordination.transactions.markers import EndMarker, encode_end_marker
from strandline.broker.coordination.transactions.power_loss.left_open import open_transactions
from strandline.broker.coordination.transactions.power_loss.lost_ends import OpenTransaction
from strandline.broker.coordination.transactions.records import (
    decode_transaction,
    encode_transaction,
)
from strandline.broker.coordination.transactions.transaction import (
    NO_PRODUCER_ID,
    Transaction,
    TransactionVersion,
    retire,
)
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC, decode_key
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.model import TopicPartition


def transactions_by_producer(
    coordinated: Mapping[TopicPartition, LiveRecords],
) -> dict[int, Transaction]:
    """Returns the archived transactional ids by their producer ids.

    Also by the id that the last transaction had, if its end used up the epochs of that.
    """
    found: dict[int, Transaction] = {}
    for key, live in coordinated.items():
        if key.topic == TRANSACTION_TOPIC:
            for record in live:
                transaction = decoded(record)
                if transaction is not None:
                    found[transaction.producer_id] = transaction
                    if transaction.previous_producer_id != NO_PRODUCER_ID:
                        found.setdefault(transaction.previous_producer_id, transaction)
    return found


def restored_transactions(
    live: Iterable[LiveRecord], version: TransactionVersion, now_ms: int
) -> Iterator[LiveRecord]:
    """Yields the records with which a restored broker begins: every producer id is retired.

    `version` is the finalized level of `transaction.version`.
    """
    for record in live:
        transaction = decoded(record)
        if transaction is None:
            yield record
        else:
            value = encode_transaction(retire(transaction, now_ms=now_ms), version)
            yield replace(record, value=value)


def decoded(record: LiveRecord) -> Transaction | None:
    """Returns a transaction; None for a record that is kept as it is: the start reports it."""
    try:
        transactional_id = decode_key(record.key)
        if transactional_id is None:
            return None
        return decode_transaction(transactional_id, record.value)
    except MalformedRequest:
        return None


def end_open_transactions(
    local: LocalLog,
    transactions: Mapping[int, Transaction],
    now_ms: int,
    is_committed: Callable[[OpenTransaction], bool | None],
) -> None:
    """Appends a marker for each transaction that is open in a restored log.

    `is_committed` is the outcome that the archive has. Raises DiskError, and what it raises.
    """
    for opened in tuple(open_transactions(local)):
        marker = EndMarker(
            producer=opened.producer,
            end=end_of_open(
                transactions.get(opened.producer.producer_id),
                opened,
                is_committed=is_committed(opened),
            ),
            coordinator_epoch=opened.coordinator_epoch,
            version=TransactionVersion.V0,
        )
        local.append(
            memoryview(bytearray(encode_end_marker(marker, now_ms))),
            leader_epoch=max(local.leader_epochs.latest_epoch, 0),
            origin=AppendOrigin.COORDINATOR,
        )
        local.advance_high_watermark(local.end_offset)

"""Transactions as records of `__transaction_state`, and back."""

from __future__ import annotations

from itertools import groupby

from strandline.broker.coordination.transactions.transaction import (
    Transaction,
    TransactionState,
    TransactionVersion,
)
from strandline.broker.protocol.formats.transaction_log import (
    LoggedPartitions,
    TransactionLogValue,
    decode_value,
    encode_value,
)
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.storage.model import Buffer, TopicPartition


def encode_transaction(transaction: Transaction, version: TransactionVersion) -> bytes:
    """The value of its record; flexible from `transaction.version` 1 on."""
    partitions = sorted(transaction.partitions)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=(
            None
            if transaction.state is TransactionState.EMPTY
            else [
                LoggedPartitions(topic=topic, partition_ids=[one.partition for one in group])
                for topic, group in groupby(partitions, key=lambda one: one.topic)
            ]
        ),
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
    )
    return encode_value(value, 0 if version is TransactionVersion.V0 else 1)


def decode_transaction(transactional_id: str, value: Buffer) -> Transaction:
    """What a record says. Raises MalformedRequest."""
    read = decode_value(value)
    try:
        state = TransactionState(read.transaction_status)
        version = TransactionVersion(read.client_transaction_version)
    except ValueError as error:
        raise MalformedRequest(f"transactional id {transactional_id}: {error}") from error
    return Transaction(
        transactional_id=transactional_id,
        producer_id=read.producer_id,
        previous_producer_id=read.previous_producer_id,
        next_producer_id=read.next_producer_id,
        epoch=read.producer_epoch,
        timeout_ms=read.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(topic.topic, partition)
            for topic in read.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        started_ms=read.transaction_start_timestamp_ms,
        updated_ms=read.transaction_last_update_timestamp_ms,
        client_version=version,
    )

"""Transactions as records of `__transaction_state`, and back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from strandline.broker.coordination.transactions.transaction import (
    LogEnd,
    Transaction,
    TransactionState,
    TransactionVersion,
)
from strandline.broker.protocol.formats.transaction_log import (
    LoggedEnd,
    LoggedEnds,
    LoggedPartitions,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.storage.model import Buffer, Offset, TopicPartition
from strandline.storage.records.batch.any_batch import iter_records, walk
from strandline.storage.records.batch.record import Record, encode_batch


class TransactionRecord(NamedTuple):
    """The state of a transactional id; None: the id is forgotten."""

    transactional_id: str
    transaction: Transaction | None


def encode_record(record: TransactionRecord, version: TransactionVersion, now_ms: int) -> bytearray:
    """Encodes one batch, ready to be appended."""
    transaction = record.transaction
    value = None if transaction is None else encode_transaction(transaction, version)
    key = encode_key(record.transactional_id)
    return bytearray(encode_batch([Record(offset=0, timestamp_ms=now_ms, key=key, value=value)]))


def decode_records(buffer: Buffer, offset: Offset) -> Iterator[TransactionRecord]:
    """Decodes the records from `offset` on; skips keys of other kinds.

    Raises MalformedRequest with the record's offset, CorruptRecords.
    """
    for batch in walk(buffer):
        header = batch.header
        if header.next_offset <= offset or header.is_control:
            continue
        for record in iter_records(buffer, header, batch.position):
            try:
                transactional_id = None if record.key is None else decode_key(record.key)
                if transactional_id is None:
                    continue
                value = record.value
                transaction = None if value is None else decode_transaction(transactional_id, value)
            except MalformedRequest as error:
                raise MalformedRequest(f"offset {record.offset}: {error}") from error
            yield TransactionRecord(transactional_id, transaction)


def encode_transaction(transaction: Transaction, version: TransactionVersion) -> bytes:
    """The value of its record; flexible from `transaction.version` 1 on.

    Version 0 has no place for the log ends.
    """
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
        log_ends=[
            LoggedEnds(
                topic=topic,
                topic_id=topic_id,
                ends=[
                    LoggedEnd(
                        partition_id=one.partition.partition,
                        leader_epoch=one.leader_epoch,
                        offset=one.offset,
                    )
                    for one in group
                ],
            )
            for (topic, topic_id), group in groupby(
                transaction.log_ends, key=lambda one: (one.partition.topic, one.topic_id)
            )
        ],
    )
    return encode_value(value, 0 if version is TransactionVersion.V0 else 1)


def decode_transaction(transactional_id: str, value: Buffer) -> Transaction:
    """The state that a record has. Raises MalformedRequest."""
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
        log_ends=tuple(
            LogEnd(
                TopicPartition(topic.topic, one.partition_id),
                topic.topic_id,
                leader_epoch=one.leader_epoch,
                offset=one.offset,
            )
            # Completed transactions had the places of their markers there once.
            for topic in (read.log_ends if state.is_ending else ())
            for one in topic.ends
        ),
    )

"""Transactions in `__transaction_state`: what a start passes over, and what stops it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from strandline.broker.coordination.records.replay_chunk import ReplayChunk, read_chunk
from strandline.broker.coordination.transactions.records import (
    TransactionRecord,
    decode_records,
    encode_record,
)
from strandline.broker.coordination.transactions.transaction import Transaction, TransactionVersion
from strandline.broker.protocol.formats.transaction_log import encode_key
from strandline.storage.errors import CorruptFile
from strandline.storage.local.cleaner.cleaned_batch import empty_batch
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.batch import stamp
from strandline.storage.records.batch.record import Record, encode_batch

ONE = Transaction(transactional_id="one", producer_id=7, epoch=0, timeout_ms=1, updated_ms=1)
KNOWN = TransactionRecord("one", ONE)


def batch(key: bytes, value: bytes) -> bytes:
    return encode_batch([Record(offset=0, timestamp_ms=1, key=key, value=value)])


def loaded(*batches: bytes) -> ReplayChunk[TransactionRecord]:
    """What a start reads of a log with these batches, at the offsets 0, 1, 2."""
    placed = [bytearray(one) for one in batches]
    for offset, one in enumerate(placed):
        stamp(memoryview(one), 0, offset, 0)
    content = b"".join(placed)
    log = SimpleNamespace(
        topic_partition=TopicPartition("__transaction_state", 0),
        read=lambda _offset, *, bytes_max, isolation: SimpleNamespace(
            range=SimpleNamespace(read=lambda: content), next_offset=len(batches)
        ),
    )
    return read_chunk(log, 0, len(batches), decode_records)  # type: ignore[arg-type]  # a fake


def test_a_batch_that_compaction_emptied_and_records_of_another_kind_are_passed_over() -> None:
    known = bytes(encode_record(KNOWN, TransactionVersion.V2, 1))
    of_another_kind = batch(b"\0\x09" + b"key", b"value")
    chunk = loaded(known, of_another_kind, empty_batch(known))
    assert chunk.records == (KNOWN,)
    assert chunk.next_offset == 3


def test_a_record_of_a_later_version_stops_the_load() -> None:
    """Kafka passes it over, and goes on with an older state of that id."""
    with pytest.raises(CorruptFile, match="a transaction of version 9, where we know 0 and 1"):
        loaded(batch(encode_key("one"), b"\0\x09" + bytes(20)))

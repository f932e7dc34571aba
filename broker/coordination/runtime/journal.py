"""Writes records to the log of a slot: appends, replays, and flushes as the topic demands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from strandline.broker.coordination.model.classic_messages import CoordinatorFault, Instant
from strandline.broker.coordination.model.offset_messages import CoordinatorRecord, OffsetRecord
from strandline.broker.coordination.records.offset_records import (
    TransactionalRecord,
    encode_records,
)
from strandline.broker.coordination.runtime.shard import GroupSlot
from strandline.broker.coordination.runtime.slots import S, Slot
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import (
    InvalidProducerEpoch,
    MessageTooLarge,
    RecordListTooLarge,
    RecordsRejected,
    StorageError,
    StrandlineError,
)
from strandline.storage.local.log.log import AppendOrigin

# Expiry and deleted topics may concern any number of offsets; a batch must stay below
# max.message.bytes, of which an offset's tombstone takes well under a thousandth.
TOMBSTONES_PER_BATCH_MAX = 500


def append(slot: GroupSlot, records: Sequence[CoordinatorRecord], now: Instant) -> None:
    """Appends one batch. Raises RecordsRejected, StorageError."""
    batch = encode_records(records, now.wall_ms)
    slot.partition.append(memoryview(batch), origin=AppendOrigin.COORDINATOR)


def write_offsets(slot: GroupSlot, records: Sequence[CoordinatorRecord], now: Instant) -> None:
    """Appends and replays. Raises CoordinatorFault with the code for a committing client."""
    _append(slot, encode_records(records, now.wall_ms), _offset_code)
    replay(slot, records, now)


def write_pending(
    producer: ProducerIdentity, slot: GroupSlot, records: Sequence[OffsetRecord], now: Instant
) -> None:
    """Appends offsets that count once the producer's transaction is committed.

    Raises CoordinatorFault with the code for the producer.
    """
    batch = encode_records(
        records, now.wall_ms, producer_id=producer.producer_id, producer_epoch=producer.epoch
    )
    _append(slot, batch, _offset_code)
    for record in records:
        slot.shard.take(TransactionalRecord(producer.producer_id, record), now)


def write_members(slot: GroupSlot, records: Sequence[CoordinatorRecord], now: Instant) -> None:
    """Appends and replays. Raises CoordinatorFault with the code for a member."""
    _append(slot, encode_records(records, now.wall_ms), member_code)
    replay(slot, records, now)


def _append(
    slot: GroupSlot, batch: bytearray, code_of: Callable[[StrandlineError], ErrorCode]
) -> None:
    try:
        slot.partition.append(memoryview(batch), origin=AppendOrigin.COORDINATOR)
    except (RecordsRejected, StorageError) as error:
        code = code_of(error)
        if code not in _CODES_OF_REQUESTS:
            log_failed_write(slot, error)
        raise CoordinatorFault(code) from error


def replay(slot: GroupSlot, records: Sequence[CoordinatorRecord], now: Instant) -> None:
    """Applies written records, in their order, to the state of their slot."""
    for record in records:
        slot.shard.replay(record, now)


# The request is wrong, not the broker.
_CODES_OF_REQUESTS = (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.INVALID_PRODUCER_EPOCH)


def _offset_code(error: StrandlineError) -> ErrorCode:
    """Returns the error code for a client whose offsets could not be written."""
    if isinstance(error, MessageTooLarge | RecordListTooLarge):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if isinstance(error, InvalidProducerEpoch):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode.NOT_COORDINATOR


def member_code(error: StrandlineError) -> ErrorCode:
    """Returns the error code for members of a group that could not be written."""
    if isinstance(error, RecordsRejected):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NOT_COORDINATOR


def log_failed_write(slot: Slot[S], error: StrandlineError) -> None:
    """Logs it once a minute: refused clients retry at once."""
    where = slot.partition.topic_partition
    slot.quiet_log.say(
        logging.WARNING,
        "group record not written",
        where,
        {"partition": str(where), "error": str(error)},
    )


async def flush_if_needed(slot: Slot[S]) -> None:
    """Returns when the written records may be answered. Raises CoordinatorFault."""
    if slot.partition.must_flush:
        await flush(slot)


async def flush(slot: Slot[S]) -> None:
    """Returns when the written records are on the device. Raises CoordinatorFault."""
    try:
        await slot.partition.flush()
    except StorageError as error:
        raise CoordinatorFault(ErrorCode.NOT_COORDINATOR) from error


def in_batches(records: Sequence[CoordinatorRecord]) -> list[Sequence[CoordinatorRecord]]:
    """Splits the records into batches of at most TOMBSTONES_PER_BATCH_MAX."""
    size = TOMBSTONES_PER_BATCH_MAX
    return [records[start : start + size] for start in range(0, len(records), size)]

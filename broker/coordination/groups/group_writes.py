"""Writes the records of groups to the journal of their slot, and replays them."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.coordination.groups.group_shard import GroupSlot
from strandline.broker.coordination.model.classic_messages import Instant
from strandline.broker.coordination.model.offset_messages import CoordinatorRecord, OffsetRecord
from strandline.broker.coordination.records.offset_records import (
    TransactionalRecord,
    encode_records,
)
from strandline.broker.coordination.transactions.transaction import ProducerIdentity
from strandline.broker.protocol.schema.errors import ErrorCode

# Expiry and deleted topics may concern any number of offsets; a batch must stay below
# max.message.bytes, of which an offset's tombstone takes well under a thousandth.
TOMBSTONES_PER_BATCH_MAX = 500


def write_offsets(slot: GroupSlot, records: Sequence[CoordinatorRecord], now: Instant) -> None:
    """Appends and replays. Raises CoordinatorFault with the code for a committing client."""
    slot.journal.append(
        encode_records(records, now.wall_ms), too_large=ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    )
    _replay(slot, records, now)


def write_pending(
    producer: ProducerIdentity, slot: GroupSlot, records: Sequence[OffsetRecord], now: Instant
) -> None:
    """Appends offsets that count once the producer's transaction is committed.

    Raises CoordinatorFault with the code for the producer.
    """
    batch = encode_records(
        records, now.wall_ms, producer_id=producer.producer_id, producer_epoch=producer.epoch
    )
    slot.journal.append(batch, too_large=ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    for record in records:
        slot.shard.take(TransactionalRecord(producer.producer_id, record), now)


def write_members(slot: GroupSlot, records: Sequence[CoordinatorRecord], now: Instant) -> None:
    """Appends and replays. Raises CoordinatorFault with the code for a member."""
    slot.journal.append(encode_records(records, now.wall_ms))
    _replay(slot, records, now)


def _replay(slot: GroupSlot, records: Sequence[CoordinatorRecord], now: Instant) -> None:
    for record in records:
        slot.shard.replay(record, now)


def in_batches(records: Sequence[CoordinatorRecord]) -> list[Sequence[CoordinatorRecord]]:
    """Splits the records into batches of at most TOMBSTONES_PER_BATCH_MAX."""
    size = TOMBSTONES_PER_BATCH_MAX
    return [records[start : start + size] for start in range(0, len(records), size)]

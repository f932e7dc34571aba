"""The rules of `LocalLog.append`: which batches are accepted, and the errors for the others.

The hot path tests a batch with a handful of comparisons; it comes here once one of them fails, to
find out which, or when a batch is of an unusual kind. The answers are those of Kafka's
LogValidator, with one difference: keys, values and headers of records are read only where the
topic's configuration asks for that (`check_records`). Before the append the lengths and times of
all records were read (`records/batch/max_timestamp.py`).

    length below a header's, wrong CRC, magic > 2                   CorruptRecords (2)
    nothing, half a batch, two, magic 0 or 1, count and offsets
    disagree, control batch from a client, negative sequence,
    records that are read and are not as the header says            InvalidRecords (87)
    larger than max.message.bytes                                   MessageTooLarge (10)
    larger than a segment                                           RecordListTooLarge (18)
    codec 5 to 7                                                    UnsupportedCodec (76)
    timestamp out of bounds, or claimed to be the broker's          InvalidTimestamp (32)
    transactional batch of no transaction that is open              InvalidTransactionState (48)
    marker of an older producer epoch, or coordinator epoch         InvalidProducerEpoch (47),
                                                                    CoordinatorFenced (52)
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import (
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    MessageTooLarge,
    RecordError,
    RecordListTooLarge,
    RecordsRejected,
    UnsupportedCodec,
)
from strandline.storage.local.formats.producer_state import ProducerState
from strandline.storage.model import NO_TIMESTAMP, Buffer, TimestampType
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch import old_messages
from strandline.storage.records.batch.any_batch import BATCH_BYTES_MIN
from strandline.storage.records.batch.batch import (
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    Batch,
    BatchHeader,
    read_header,
)
from strandline.storage.records.batch.marker import TransactionMarker, read_marker
from strandline.storage.records.batch.old_messages import OLD_MAGICS
from strandline.storage.records.batch.record import iter_records
from strandline.storage.system import crc32c

# Attribute bits that call for a second look. The codec's own bits are among them because unknown
# codecs come out above CODEC_LAST as well: one comparison clears every ordinary batch.
UNUSUAL_BITS = (
    batch_format.CODEC_MASK
    | batch_format.TIMESTAMP_TYPE_BIT
    | batch_format.TRANSACTIONAL_BIT
    | batch_format.CONTROL_BIT
)

# Bound on the decompressed records of one append: over a hundred times the default of
# max.message.bytes, and harmless for the few workers that do it.
APPEND_BYTES_MAX = 128 * 1024 * 1024
# A batch may hold a million records; the first few errors tell the producer enough.
RECORD_ERRORS_MAX = 100

_ATTRIBUTES_POSITION = 21

_unpack_header = batch_format.HEADER.unpack_from
_crc32c = crc32c.crc32c


class AppendOrigin(Enum):
    """The source of an append: it decides which checks run, and whether offsets are assigned.

    VERIFIED is a client's batch whose partition its transaction's coordinator has confirmed: only
    such a batch, or one of a coordinator, begins a transaction in this log (KIP-890).
    """

    CLIENT = "client"
    VERIFIED = "verified"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class AppendInfo(NamedTuple):
    """The result of an append. `log_append_time_ms` is -1 unless the topic uses LogAppendTime.

    `duplicate` says that this is the result of an earlier, identical append.
    """

    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool
    size_bytes: int


def short_batch(records: memoryview) -> RecordsRejected:
    """Returns the error for bytes that are shorter than a batch header."""
    if len(records) == 0:
        return InvalidRecords("no batch to append")
    if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] < batch_format.MAGIC:
        return _old_format(records[MAGIC_POSITION])
    # Producers retry a corrupt batch. A truncated one is not corrupted in transit (Kafka's
    # ProduceRequest.validateRecords finds no batch there).
    return InvalidRecords(f"{len(records)} bytes are no whole record batch")


def _old_format(magic: int) -> RecordsRejected:
    return InvalidRecords(
        f"message format {magic} is taken by Produce 0 to 2 only, later ones take"
        f" {batch_format.MAGIC}"
    )


def misshapen_batch(
    size_bytes: int, magic: int, batch_length: int, config: LogConfig
) -> RecordsRejected:
    """Returns the error for a batch that is refused before its CRC is checked, in Kafka's order."""
    if 0 <= magic < batch_format.MAGIC:
        return _old_format(magic)
    if magic != batch_format.MAGIC:
        return CorruptRecords(f"record batch magic is {magic}")
    whole_bytes = batch_length + batch_format.LOG_OVERHEAD_BYTES
    if batch_length < batch_format.BATCH_LENGTH_MIN:
        return CorruptRecords(f"batch length {batch_length} is below a header's")
    if whole_bytes > size_bytes:
        return InvalidRecords(f"batch of {whole_bytes} bytes ends after {size_bytes} of them")
    if whole_bytes > config.max_message_bytes:
        return MessageTooLarge(
            f"batch of {whole_bytes} bytes, max.message.bytes is {config.max_message_bytes}"
        )
    if whole_bytes < size_bytes:
        return InvalidRecords("more than one batch in a produce request for a partition")
    return RecordListTooLarge(
        f"batch of {size_bytes} bytes, segment.bytes is {config.segment_bytes}"
    )


def check_unusual(
    records: memoryview, attributes: int, origin: AppendOrigin, producers: ProducerState
) -> TransactionMarker | None:
    """Refuses batches that only some origins may append; the marker of a coordinator's batch.

    Raises UnsupportedCodec, InvalidTimestamp, InvalidRecords, InvalidProducerEpoch,
    CoordinatorFenced.
    """
    codec = attributes & batch_format.CODEC_MASK
    if codec > batch_format.CODEC_LAST:
        raise UnsupportedCodec(f"compression codec {codec} is unknown")
    if origin is not AppendOrigin.COORDINATOR:
        if attributes & batch_format.TIMESTAMP_TYPE_BIT:
            raise InvalidTimestamp("a producer may not say that its timestamps are the broker's")
        if attributes & batch_format.CONTROL_BIT:
            raise InvalidRecords("clients may not write control records")
    if not attributes & batch_format.CONTROL_BIT:
        return None
    header = read_header(records)
    marker = read_marker(records, header)
    if header.has_producer:
        if marker is None:
            raise InvalidRecords("a control batch with a producer must be a marker")
        entry = producers.entries.get(header.producer_id)
        if entry is not None:
            producers.check_epoch(entry, header.producer_epoch)
            entry.check_coordinator(marker.coordinator_epoch)
    return marker


def check_records(records: Buffer, config: LogConfig, now_ms: int) -> None:
    """Checks every record, for topics whose configuration requires it.

    Raises CorruptRecords if they do not match the header, InvalidTimestamp if one is too old or
    too new, InvalidRecords if one has no key in a compacted topic. Either names all invalid
    records, for whichever reason, and time goes first (Kafka's LogValidator). Decompresses, so
    this belongs into a worker thread.
    """
    header = read_header(records)
    must_have_keys = "compact" in config.cleanup_policy and not header.is_control
    checks_time = config.message_timestamp_type is TimestampType.CREATE_TIME
    oldest_ms = now_ms - config.message_timestamp_before_max_ms
    newest_ms = now_ms + config.message_timestamp_after_max_ms
    blamed: list[RecordError] = []
    misdated: RecordError | None = None
    for index, record in enumerate(iter_records(records, header, bytes_max=APPEND_BYTES_MAX)):
        if must_have_keys and record.key is None:
            error = RecordError(index, "a compacted topic takes no record without a key")
        elif (
            checks_time
            and record.timestamp_ms != NO_TIMESTAMP
            and not oldest_ms <= record.timestamp_ms <= newest_ms
        ):
            error = RecordError(
                index, f"timestamp {record.timestamp_ms} is outside [{oldest_ms}, {newest_ms}]"
            )
            misdated = misdated or error
        else:
            continue
        blamed.append(error)
        if len(blamed) >= RECORD_ERRORS_MAX:
            break
    if misdated is not None:
        raise InvalidTimestamp(
            f"{_first(misdated, blamed)}; allowed are message.timestamp.before.max.ms before the"
            " broker's clock and message.timestamp.after.max.ms after it",
            record_errors=blamed,
        )
    if blamed:
        raise InvalidRecords(_first(blamed[0], blamed), record_errors=blamed)


def _first(error: RecordError, blamed: list[RecordError]) -> str:
    more = f", and {len(blamed) - 1} more" if len(blamed) > 1 else ""
    return f"record {error.batch_index}: {error.message}{more}"


def check_replicated(
    records: memoryview, next_offset: int, *, leader_epoch: int | None = None
) -> list[Batch]:
    """Returns all batches of `records`, checked before the first of them is written.

    With the `leader_epoch` that a leader was asked under, what may follow them is left out, as in
    Kafka: a batch that the answer cut, and batches of later epochs, which may be of a log that was
    truncated since (KAFKA-18723). Without it there has to be a batch, and nothing else. Messages of
    the old formats, which a leader may have from before Kafka 0.11, stay as they are.

    Raises CorruptRecords, InvalidRecords if they do not lie at or behind `next_offset`.
    """
    batches: list[Batch] = []
    position, size_bytes = 0, len(records)
    while size_bytes - position >= BATCH_BYTES_MIN:
        if records[position + MAGIC_POSITION] in OLD_MAGICS:
            end = position + old_messages.message_bytes(records, position)
            if end > size_bytes:
                break
            old_messages.check_crc(records, position)
            header = old_messages.read_header(records, position)
            _check_behind(header, next_offset)
            batches.append(Batch(position, header))
            position, next_offset = end, header.next_offset
            continue
        if size_bytes - position < HEADER_BYTES:
            break
        header = BatchHeader._make(_unpack_header(records, position))
        end = position + LOG_OVERHEAD_BYTES + header.batch_length
        if header.magic != batch_format.MAGIC:
            raise CorruptRecords(f"record batch magic is {header.magic}")
        if header.batch_length < batch_format.BATCH_LENGTH_MIN or header.last_offset_delta < 0:
            raise CorruptRecords(f"no record batch at position {position}")
        if end > size_bytes:
            break
        if leader_epoch is not None and header.leader_epoch > leader_epoch:
            return batches
        if _crc32c(records[position + CRC_START : end]) != header.crc:
            raise CorruptRecords(f"CRC of the batch at position {position} is wrong")
        _check_behind(header, next_offset)
        batch = Batch(position, header)
        if header.is_control:
            marker_of(records, batch)
        batches.append(batch)
        position, next_offset = end, header.next_offset
    if leader_epoch is None:
        if position != size_bytes:
            raise CorruptRecords(f"{size_bytes - position} bytes after the last whole batch")
        if not batches:
            raise InvalidRecords("no batch to append")
    return batches


def _check_behind(header: BatchHeader, next_offset: int) -> None:
    if header.base_offset < next_offset:
        raise InvalidRecords(
            f"replicated batch has offsets {header.base_offset} to {header.last_offset}, "
            f"the log ends at {next_offset}"
        )


def marker_of(records: memoryview, batch: Batch) -> TransactionMarker | None:
    """Returns the marker in `records` if they are one control batch. Raises CorruptRecords."""
    header = batch.header
    return read_marker(records, header, batch.position) if header.is_control else None


def stamp_append_time(records: memoryview, attributes: int, now_ms: int) -> None:
    """Sets the timestamp of all records of a batch to `now_ms`, and recomputes the CRC."""
    batch_format.ATTRIBUTES_FIELD.pack_into(
        records, _ATTRIBUTES_POSITION, attributes | batch_format.TIMESTAMP_TYPE_BIT
    )
    batch_format.OFFSET_FIELD.pack_into(records, batch_format.MAX_TIMESTAMP_POSITION, now_ms)
    crc = crc32c.crc32c(records[batch_format.CRC_START :])
    batch_format.CRC_FIELD.pack_into(records, batch_format.CRC_POSITION, crc)

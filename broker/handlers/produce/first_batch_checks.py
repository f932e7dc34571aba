"""Validates the records in the first batches of a connection.

    its first BATCHES_CHECKED batches    header, CRC, and every record of a small one
    later batches                        header and CRC

An append reads no record (docs/decisions/0005): that would cost more than the rest of it. But a
client that encodes batches wrongly does so from its first one on, and gets INVALID_RECORD here, as
from Kafka's LogValidator, for records that are fewer or more than the header says, do not end where
their lengths say, or do not decompress. Large batches are not checked even then: they would delay
all other clients. Nor are all batches when very many connections are new: all checks together share
RECORDS_PER_S.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import CorruptRecords, DecompressedTooLarge, InvalidRecords
from strandline.storage.rates import TokenBucket
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import check_crc, read_header
from strandline.storage.records.batch.stepper import read_varint, step_records
from strandline.storage.records.compression import decompress

BATCHES_CHECKED = 8
# Decompressed bytes of a batch: a default `batch.size`. In records of 100 bytes that takes 0.35 ms,
# and 5 ms in the smallest records.
CHECKED_BYTES_MAX = 16 * 1024
# If each batch has its own connection, all of them are first ones. Reading a record takes 2.5 us,
# so this is 0.5 % of a core; the saved-up budget, of 25 ms at most, is for the eight batches of
# many clients that start together.
RECORDS_PER_S = 2_000
RECORDS_SAVED_MAX = 10_000
# The cost of a check beside its records, in records.
RECORDS_PER_LOOK = 4
# Connections that are remembered, in 2 MB. Beyond it, older connections count as new again.
PEERS_MAX = 16_384


class FirstBatchChecks:
    """The connections that are new, by the addresses of their clients. Used on the event loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s` is monotonic."""
        self._now_s = now_s
        self._looked_at: dict[str, int] = {}
        self._records = TokenBucket()

    def __len__(self) -> int:
        """Returns the number of connections that are remembered."""
        return len(self._looked_at)

    def is_new(self, peer: str) -> bool:
        """Returns whether the next batch of this connection is among its first ones."""
        return self._looked_at.get(peer, 0) < BATCHES_CHECKED

    def look(self, peer: str, records: memoryview, config: LogConfig) -> None:
        """Checks `records` of a new connection; some topics have all their records read anyway.

        Raises InvalidRecords, see `look_inside`.
        """
        if not self.is_new(peer):
            return
        if len(self._looked_at) >= PEERS_MAX:
            self._looked_at.clear()
        self._looked_at[peer] = self._looked_at.get(peer, 0) + 1
        # A batch that is too large for its topic is refused for that reason.
        if len(records) <= config.max_message_bytes and not config.needs_records:
            look_inside(records, self._may_read)

    def _may_read(self, record_count: int) -> bool:
        wanted = max(record_count, 0) + RECORDS_PER_LOOK
        now_s = self._now_s()
        if wanted > self._records.tokens(now_s, per_s=RECORDS_PER_S, burst=RECORDS_SAVED_MAX):
            return False
        self._records.take(wanted)
        return True


def look_inside(
    records: memoryview, may_read: Callable[[int], bool] = lambda _record_count: True
) -> None:
    """Raises InvalidRecords for a small batch whose records do not match its header.

    The append reports other faults. `may_read` admits reading so many records.
    """
    if not batch_format.HEADER_BYTES <= len(records) <= CHECKED_BYTES_MAX:
        return
    try:
        header = read_header(records)
        if header.size_bytes != len(records) or header.codec > batch_format.CODEC_LAST:
            return
        if not may_read(header.record_count):
            return
        check_crc(records, header)
    except CorruptRecords:
        return
    try:
        payload = decompress(
            header.codec, records[batch_format.HEADER_BYTES :], bytes_max=CHECKED_BYTES_MAX
        )
        _check_lengths(bytes(payload), header.record_count)
    except DecompressedTooLarge:
        return
    except CorruptRecords as error:
        # The CRC is right: the producer encoded it so. Producers retry a corrupt batch, but not an
        # invalid one.
        raise InvalidRecords(str(error)) from error


def _check_lengths(payload: bytes, record_count: int) -> None:
    """Raises CorruptRecords unless `payload` is exactly so many complete records.

    Offset deltas are not checked: old clients number them differently, and Kafka accepts that.
    """
    for _, end, after, _ in step_records(payload, record_count):
        _, position = read_varint(payload, after, end)
        position = _after_field(payload, position, end)
        position = _after_field(payload, position, end)
        header_count, position = read_varint(payload, position, end)
        if not 0 <= header_count <= end - position:
            raise CorruptRecords(f"record with {header_count} headers")
        for _ in range(header_count):
            position = _after_field(payload, position, end, is_nullable=False)
            position = _after_field(payload, position, end)
        if position != end:
            raise CorruptRecords(f"record has {end - position} spare bytes")


def _after_field(payload: bytes, position: int, end: int, *, is_nullable: bool = True) -> int:
    """Returns the position behind a field; a negative length is null where Kafka allows it."""
    length, position = read_varint(payload, position, end)
    if length > end - position or (length < 0 and not is_nullable):
        raise CorruptRecords(f"record has a key, value or header of {length} bytes")
    return position + max(length, 0)

"""Validates keys, values and headers of the records in the first batches of a connection.

An append reads lengths and times of all records and nothing else of them (docs/decisions/0005). A
client that encodes records wrongly does so from its first batch on, and gets INVALID_RECORD here,
as from Kafka's LogValidator. Large batches are not checked even then: they would delay all other
clients. Nor are all batches when very many connections are new: all checks together share
RECORDS_PER_S.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.storage.errors import CorruptRecords, InvalidRecords, RecordsRejected
from strandline.storage.rates import TokenBucket
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import check_crc, read_header
from strandline.storage.records.batch.stepper import read_varint, step_records
from strandline.storage.records.compression import decompress

BATCHES_CHECKED = 8
# Bytes of a batch, as sent and decompressed: a default `batch.size`.
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
        self._checked: dict[str, int] = {}
        self._records = TokenBucket()

    def __len__(self) -> int:
        """Returns the number of connections that are remembered."""
        return len(self._checked)

    def is_new(self, peer: str) -> bool:
        """Returns whether the next batch of this connection is among its first ones."""
        return self._checked.get(peer, 0) < BATCHES_CHECKED

    def check(self, peer: str, records: memoryview) -> None:
        """Checks `records` of a connection if it is new. Raises InvalidRecords."""
        if not self.is_new(peer):
            return
        if len(self._checked) >= PEERS_MAX:
            self._checked.clear()
        self._checked[peer] = self._checked.get(peer, 0) + 1
        check_records(records, self._may_read)

    def _may_read(self, record_count: int) -> bool:
        wanted = record_count + RECORDS_PER_LOOK
        now_s = self._now_s()
        if wanted > self._records.tokens(now_s, per_s=RECORDS_PER_S, burst=RECORDS_SAVED_MAX):
            return False
        self._records.take(wanted)
        return True


def check_records(
    records: memoryview, may_read: Callable[[int], bool] = lambda _record_count: True
) -> None:
    """Raises InvalidRecords for a small batch with a record that has not the fields that it says.

    The append reports all other faults. `may_read` admits reading so many records. Offset deltas
    are not checked: old clients number them differently, and Kafka accepts that.
    """
    if not batch_format.HEADER_BYTES <= len(records) <= CHECKED_BYTES_MAX:
        return
    try:
        header = read_header(records)
        if header.size_bytes != len(records) or header.record_count < 0:
            return
        if not may_read(header.record_count):
            return
        check_crc(records, header)
        payload = decompress(
            header.codec, records[batch_format.HEADER_BYTES :], bytes_max=CHECKED_BYTES_MAX
        )
    except RecordsRejected:
        return
    try:
        _check_fields(bytes(payload), header.record_count)
    except CorruptRecords as error:
        # The CRC is right: the producer encoded it so. Producers retry a corrupt batch, but not an
        # invalid one.
        raise InvalidRecords(str(error)) from error


def _check_fields(payload: bytes, record_count: int) -> None:
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

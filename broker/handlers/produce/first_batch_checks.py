"""Validates key, value and headers of the first record in the first batches of a connection.

An append reads lengths and times of all records and nothing else of them (docs/decisions/0005). A
client that encodes records wrongly does so from its first one on, and gets INVALID_RECORD here, as
from Kafka's LogValidator. Large batches are not decompressed for it.
"""

from __future__ import annotations

from strandline.storage.errors import CorruptRecords, InvalidRecords, RecordsRejected
from strandline.storage.model import Buffer
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import check_crc, read_header
from strandline.storage.records.batch.stepper import read_varint
from strandline.storage.records.compression import decompress

BATCHES_CHECKED = 8
# Bytes of a batch, as sent and decompressed: a default `batch.size`.
CHECKED_BYTES_MAX = 16 * 1024
# Connections that are remembered, in 2 MB. Beyond it, older connections count as new again.
PEERS_MAX = 16_384


class FirstBatchChecks:
    """The connections that are new, by the addresses of their clients. Used on the event loop."""

    def __init__(self) -> None:
        self._checked: dict[str, int] = {}

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
        check_first_record(records)


def check_first_record(records: memoryview) -> None:
    """Raises InvalidRecords for a small batch whose first record has not the fields that it says.

    The append reports all other faults. Offset deltas are not checked: old clients number them
    differently, and Kafka accepts that.
    """
    if not batch_format.HEADER_BYTES <= len(records) <= CHECKED_BYTES_MAX:
        return
    try:
        header = read_header(records)
        if header.size_bytes != len(records):
            return
        check_crc(records, header)
        payload = decompress(
            header.codec, records[batch_format.HEADER_BYTES :], bytes_max=CHECKED_BYTES_MAX
        )
        length, position = read_varint(payload, 0, len(payload))
    except RecordsRejected:
        return
    end = position + length
    if not 0 < length <= len(payload) - position:
        return
    try:
        _check_fields(payload, position + 1, end)
    except CorruptRecords as error:
        # The CRC is right: the producer encoded it so. Producers retry a corrupt batch, but not an
        # invalid one.
        raise InvalidRecords(str(error)) from error


def _check_fields(payload: Buffer, position: int, end: int) -> None:
    for _ in ("time", "offset"):
        _, position = read_varint(payload, position, end)
    for _ in ("key", "value"):
        position = _after_field(payload, position, end)
    header_count, position = read_varint(payload, position, end)
    if not 0 <= header_count <= end - position:
        raise CorruptRecords(f"record with {header_count} headers")
    for _ in range(header_count):
        position = _after_field(payload, position, end, is_nullable=False)
        position = _after_field(payload, position, end)
    if position != end:
        raise CorruptRecords(f"record has {end - position} spare bytes")


def _after_field(payload: Buffer, position: int, end: int, *, is_nullable: bool = True) -> int:
    """Returns the position behind a field; a negative length is null where Kafka allows it."""
    length, position = read_varint(payload, position, end)
    if length > end - position or (length < 0 and not is_nullable):
        raise CorruptRecords(f"record has a key, value or header of {length} bytes")
    return position + max(length, 0)

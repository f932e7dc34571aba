"""Indexes the latest offset of every key for compaction, and filters records by it.

    add      dirty batches, in order     key -> its latest offset, until the memory is used up
    retain   any batches                 the records that are the latest of their key, as bytes
    rebase   retained records            the same, relative to another base timestamp (KIP-534)

Two classes behave the same: `CompiledKeyIndex` runs compiled loops and needs numba and numpy (see
kernels/compaction.py for the table); `PlainKeyIndex` is plain Python, for brokers without them and
for logs too small to be worth loading numba. A property test compares the two.

Keys are compared by a keyed hash of 128 bits under a secret of each index, so that no client can
construct two keys that displace each other.

A batch with unreadable records does not fail the cleaning: its keys are not indexed, and it is kept
as it is. An append reads lengths and times alone, so a client may have produced such a batch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from strandline.storage.errors import CorruptRecords
from strandline.storage.model import NO_TIMESTAMP, Buffer
from strandline.storage.records.batch.stepper import (
    read_length,
    read_varint,
    step_records,
    write_varint,
)
from strandline.storage.records.columns import vectorised

NO_OFFSET: Final = -1
# Hash and offset, as in Kafka's map.
COMPILED_KEY_BYTES: Final = 24
# An entry of a dict, its 16-byte key and its number, as CPython stores them.
PLAIN_KEY_BYTES: Final = 200
# Slots are numbered by the upper half of a 64-bit hash.
SLOTS_MAX: Final = 2**32 - 1
# Growth of a record when its timestamp delta and its length become the longest varints.
REBASED_GROWTH_BYTES: Final = 20


class Payload(NamedTuple):
    """The decompressed records [start, end) of a batch, inside some buffer.

    `drop_tombstones`: the delete horizon of the batch is over. The fields are in the order of the
    kernels' table.
    """

    start: int
    end: int
    base_offset: int
    base_timestamp_ms: int
    record_count: int
    last_offset_delta: int
    drop_tombstones: bool


class Retained(NamedTuple):
    """The retained records of a batch. `is_readable` False: keep the batch as it is."""

    records: Buffer
    record_count: int
    max_timestamp_ms: int
    has_tombstone: bool
    keyless_count: int
    is_readable: bool


UNREADABLE: Final = Retained(b"", 0, NO_TIMESTAMP, False, 0, False)


class KeyIndex(Protocol):
    """The latest offset of every key, and the records retained by it."""

    key_count_max: int
    # The index covers records up to this offset; later ones are retained.
    latest_offset: int

    @property
    def key_count(self) -> int:
        """How many keys are in the index."""
        ...

    def add(self, buffer: Buffer, payloads: Sequence[Payload], start_offset: int) -> bool:
        """Adds the keys at or after `start_offset`; True if the index is full and takes no more."""
        ...

    def retain(self, buffer: Buffer, payloads: Sequence[Payload]) -> list[Retained]:
        """Returns the retained records of each payload."""
        ...

    def rebase(self, records: Buffer, record_count: int, shift_ms: int) -> Buffer:
        """Adds `shift_ms` to the timestamp delta of every record. Raises CorruptRecords."""
        ...


class _KeyedRecord(NamedTuple):
    """The fields of a record that compaction needs, and its place in the payload."""

    start: int
    end: int
    timestamp_delta_ms: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


class PlainKeyIndex:
    """A KeyIndex in plain Python: a dict of hashes."""

    def __init__(self, *, bytes_max: int, load_factor: float) -> None:
        self.key_count_max = max(1, int(bytes_max / PLAIN_KEY_BYTES * load_factor))
        self.latest_offset = NO_OFFSET
        self._offsets: dict[bytes, int] = {}
        self._secret = os.urandom(16)

    @property
    def key_count(self) -> int:
        return len(self._offsets)

    def add(self, buffer: Buffer, payloads: Sequence[Payload], start_offset: int) -> bool:
        for payload in payloads:
            records = _walk(_slice(buffer, payload), payload)
            for record in records or ():
                offset = payload.base_offset + record.offset_delta
                if record.key is None or offset < start_offset:
                    continue
                if len(self._offsets) >= self.key_count_max:
                    return True
                self._offsets[self._hash(record.key)] = offset
                self.latest_offset = offset
        return False

    def retain(self, buffer: Buffer, payloads: Sequence[Payload]) -> list[Retained]:
        return [self._retain(_slice(buffer, payload), payload) for payload in payloads]

    def _retain(self, content: bytes, payload: Payload) -> Retained:
        records = _walk(content, payload)
        if records is None:
            return UNREADABLE
        kept: list[_KeyedRecord] = []
        keyless_count = 0
        for record in records:
            offset = payload.base_offset + record.offset_delta
            if offset <= self.latest_offset:
                if record.key is None:
                    keyless_count += 1
                    continue
                if record.is_tombstone and payload.drop_tombstones:
                    continue
                if offset < self._offsets.get(self._hash(record.key), NO_OFFSET):
                    continue
            kept.append(record)
        return Retained(
            records=b"".join(content[record.start : record.end] for record in kept),
            record_count=len(kept),
            max_timestamp_ms=max(
                (payload.base_timestamp_ms + record.timestamp_delta_ms for record in kept),
                default=NO_TIMESTAMP,
            ),
            has_tombstone=any(record.is_tombstone for record in kept),
            keyless_count=keyless_count,
            is_readable=True,
        )

    def rebase(self, records: Buffer, record_count: int, shift_ms: int) -> Buffer:
        content = bytes(records)
        rebased, body = bytearray(), bytearray()
        for start, end, after, delta_ms in step_records(content, record_count):
            _, position = read_varint(content, start, end)
            body[:] = content[position : position + 1]
            assert -(2**63) <= delta_ms + shift_ms < 2**63, delta_ms
            write_varint(body, delta_ms + shift_ms)
            body += content[after:end]
            write_varint(rebased, len(body))
            rebased += body
        return bytes(rebased)

    def _hash(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=16, key=self._secret).digest()


class CompiledKeyIndex:
    """A KeyIndex over the table and loops of kernels/compaction.py."""

    def __init__(self, *, bytes_max: int, load_factor: float, offsets_max: int) -> None:
        """`offsets_max`: the index gets no more records than that, so a table for them is enough.

        A small table is not only less memory: it stays in the processor's caches.
        """
        import numpy as np

        from strandline.storage.records.kernels import compaction as kernels

        slots = min(bytes_max // COMPILED_KEY_BYTES, SLOTS_MAX)
        self.key_count_max = max(1, int(slots * load_factor))
        if offsets_max < self.key_count_max:
            slots = min(slots, int(offsets_max / min(load_factor, 0.6)) + 1)
        self._kernels = kernels
        # One free slot ends every search.
        slots = max(slots, min(self.key_count_max, offsets_max) + 1)
        self._table = np.zeros((slots, kernels.TABLE_COLUMNS), np.uint64)
        self._state = np.zeros(kernels.STATE_FIELDS, np.int64)
        secret = os.urandom(16)
        self._k0 = np.uint64(int.from_bytes(secret[:8], "little"))
        self._k1 = np.uint64(int.from_bytes(secret[8:], "little"))
        self.latest_offset = NO_OFFSET

    @property
    def key_count(self) -> int:
        return int(self._state[0])

    def add(self, buffer: Buffer, payloads: Sequence[Payload], start_offset: int) -> bool:
        import numpy as np

        self._state[1] = self.latest_offset
        is_full = self._kernels.index_records(
            vectorised.as_array(buffer),
            np.array(payloads, np.int64),
            start_offset,
            self._table,
            self.key_count_max,
            self._k0,
            self._k1,
            self._state,
        )
        self.latest_offset = int(self._state[1])
        return bool(is_full)

    def retain(self, buffer: Buffer, payloads: Sequence[Payload]) -> list[Retained]:
        import numpy as np

        found = np.empty((len(payloads), self._kernels.FOUND_FIELDS), np.int64)
        target = np.empty(sum(payload.end - payload.start for payload in payloads), np.uint8)
        self._kernels.filter_records(
            vectorised.as_array(buffer),
            np.array(payloads, np.int64),
            self.latest_offset,
            self._table,
            self._k0,
            self._k1,
            target,
            found,
        )
        view = memoryview(target.data)
        return [
            Retained(view[start:end], count, max_ms, tombstones != 0, keyless, readable != 0)
            for start, end, count, max_ms, tombstones, readable, keyless in found.tolist()
        ]

    def rebase(self, records: Buffer, record_count: int, shift_ms: int) -> Buffer:
        import numpy as np

        target = np.empty(len(records) + REBASED_GROWTH_BYTES * record_count, np.uint8)
        size_bytes, is_whole = self._kernels.rebase_records(
            vectorised.as_array(records), record_count, shift_ms, target
        )
        if not is_whole:
            raise CorruptRecords("records to be rebased are not whole")
        return memoryview(target.data)[:size_bytes]


def _slice(buffer: Buffer, payload: Payload) -> bytes:
    return bytes(memoryview(buffer)[payload.start : payload.end])


def _walk(content: bytes, payload: Payload) -> list[_KeyedRecord] | None:
    """Returns all records of a payload; None if they cannot be read."""
    try:
        return list(_keyed_records(content, payload))
    except CorruptRecords:
        return None


def _keyed_records(content: bytes, payload: Payload) -> Iterator[_KeyedRecord]:
    """Headers are skipped: compaction copies records, it does not check them."""
    previous_delta = -1
    for start, end, after, delta_ms in step_records(content, payload.record_count):
        offset_delta, position = read_varint(content, after, end)
        if not previous_delta < offset_delta <= payload.last_offset_delta:
            raise CorruptRecords(f"offset delta {offset_delta} follows {previous_delta}")
        previous_delta = offset_delta
        key_length, position = read_length(content, position, end)
        key = None if key_length < 0 else content[position : position + key_length]
        value_length, _ = read_length(content, position + max(key_length, 0), end)
        yield _KeyedRecord(start, end, delta_ms, offset_delta, key, value_length < 0)

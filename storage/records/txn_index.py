"""Aborted transactions of a segment, as Kafka's `.txnindex` has them; both tiers hold these bytes.

    entry = version i16 (0) | producer id i64 | first offset i64
          | last offset i64 | last stable offset i64             34 bytes, no gaps

`last offset` is that of the abort marker; `last stable offset` is that of the partition just after
the marker, and tells a search when it may stop.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from strandline.storage.errors import CorruptFile
from strandline.storage.model import AbortedTransaction, Buffer

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


def decode_entries(content: Buffer, *, source: str) -> tuple[AbortedTransaction, ...]:
    """Returns all entries. Raises CorruptFile on a torn entry or an unknown version."""
    if len(content) % _ENTRY.size:
        raise CorruptFile(
            f"{source}: transaction index of {len(content)} bytes ends inside an entry"
        )
    entries = []
    for version, *fields in _ENTRY.iter_unpack(content):
        if version != _VERSION:
            raise CorruptFile(f"{source}: transaction index entry has version {version}")
        entries.append(AbortedTransaction(*fields))
    return tuple(entries)


def encode_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    """Returns a whole `.txnindex`, in Kafka's format."""
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)

"""The aborted transactions that ended in one segment, in Kafka's format.

    .txnindex  entry = version i16 (0) | producer id i64 | first offset i64
                     | last offset i64 | last stable offset i64             34 bytes, no gaps

`last offset` is that of the abort marker; `last stable offset` is that of the partition just after
the marker, and tells a search when it may stop. The file exists only if it has entries: most
segments have none, and then no file is opened.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import CorruptFile
from strandline.storage.files import OpenFile
from strandline.storage.model import AbortedTransaction

ENTRY = struct.Struct(">hqqqq")
VERSION = 0


def decode_entries(content: bytes) -> list[AbortedTransaction]:
    """Returns all entries of a file. Raises CorruptFile on a torn entry or an unknown version."""
    if len(content) % ENTRY.size:
        raise CorruptFile(f"transaction index of {len(content)} bytes ends inside an entry")
    entries = []
    for version, *fields in ENTRY.iter_unpack(content):
        if version != VERSION:
            raise CorruptFile(f"transaction index entry has version {version}")
        entries.append(AbortedTransaction(*fields))
    return entries


def encode_entries(entries: Sequence[AbortedTransaction]) -> bytes:
    """Returns a whole `.txnindex` file, in Kafka's format."""
    return b"".join(ENTRY.pack(VERSION, *entry) for entry in entries)


class TxnIndex:
    """Aborted transactions of one segment; all in memory, as they are few."""

    __slots__ = ("_entries", "_file_suspect", "_path")

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._entries: list[AbortedTransaction] = []
        self._file_suspect = False

    @property
    def path(self) -> Path:
        return Path(self._path)

    @classmethod
    def open(cls, path: Path | str) -> TxnIndex:
        """Loads the file if there is one. Raises CorruptFile, DiskError."""
        index = cls(path)
        index.load()
        return index

    def load(self) -> None:
        """Reads the file if there is one. Raises CorruptFile, DiskError."""
        content = files.read_if_there(self._path)
        self._entries = decode_entries(content) if content else []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Sequence[AbortedTransaction]:
        return self._entries

    def append(self, entry: AbortedTransaction) -> None:
        """Adds an entry and writes it; aborts are rare enough for a write each.

        Raises DiskError: memory has the entry, and `write_out` repairs the file.
        """
        self._entries.append(entry)
        if self._file_suspect:
            self.write_out()
            return
        self._file_suspect = True
        file = OpenFile(self._path, writable=True, create=True)
        try:
            file.append(ENTRY.pack(VERSION, *entry))
        finally:
            file.close()
        self._file_suspect = False

    def write_out(self) -> None:
        """Replaces a file that a failed write left torn; does nothing to others."""
        if self._file_suspect:
            files.write_atomically(self.path, encode_entries(self._entries), sync=False)
            self._file_suspect = False

    def truncate(self, end_offset: int) -> None:
        """Drops transactions whose marker lies at or after `end_offset`."""
        kept = [entry for entry in self._entries if entry.last_offset < end_offset]
        if len(kept) == len(self._entries):
            return
        self._entries = kept
        if kept:
            files.write_atomically(self.path, encode_entries(kept), sync=False)
        else:
            files.remove(self.path)

    def clear(self) -> None:
        self._entries = []
        files.remove(self.path)

"""The `.txnindex` file of a local segment: the aborted transactions that ended in it.

The file exists only if it has entries (`records/txn_index.py`): most segments have none, and then
no file is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strandline.storage import files
from strandline.storage.files import OpenFile
from strandline.storage.model import AbortedTransaction
from strandline.storage.records.txn_index import decode_entries, encode_entries


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
        self._entries = list(decode_entries(content or b"", source=str(self._path)))

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
            file.append(encode_entries([entry]))
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

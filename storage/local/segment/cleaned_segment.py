"""Writes the segment that a cleaning makes, under names that no reader opens.

    <20-digit base>.log.cleaned  .index.cleaned  .timeindex.cleaned  .txnindex.cleaned

Batches are appended in order; `finish` writes the indexes and makes everything durable. A start
removes such files: the cleaning did not finish.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import DiskError
from strandline.storage.files import OpenFile
from strandline.storage.local.formats.index import OffsetIndex, TimeIndex
from strandline.storage.local.formats.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from strandline.storage.local.segment.partition_folder import CLEANED_SUFFIX
from strandline.storage.model import NO_TIMESTAMP, AbortedTransaction, Buffer
from strandline.storage.records.txn_index import encode_entries

# Small batches are gathered; one write each would cost more than the cleaning.
WRITE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedFacts:
    """Facts about the written segment."""

    base_offset: int
    size_bytes: int
    max_timestamp_ms: int
    max_timestamp_offset: int


def cleaned_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """Returns the path of a file of the segment before the swap."""
    return directory / (file_name(base_offset, suffix) + CLEANED_SUFFIX)


def remove_cleaned(directory: Path, base_offset: int) -> None:
    """Removes unfinished files; missing ones are fine. Raises DiskError."""
    for suffix in SEGMENT_SUFFIXES:
        files.remove(cleaned_path(directory, base_offset, suffix))


class CleanedSegment:
    """The segment that a cleaning writes. Raises DiskError wherever it writes."""

    def __init__(self, directory: Path, base_offset: int, *, index_interval_bytes: int) -> None:
        remove_cleaned(directory, base_offset)
        self._directory = directory
        self._base_offset = base_offset
        self._index_interval_bytes = index_interval_bytes
        self._log = OpenFile(
            cleaned_path(directory, base_offset, LOG_SUFFIX), writable=True, create=True
        )
        self._offsets = OffsetIndex(cleaned_path(directory, base_offset, INDEX_SUFFIX), active=True)
        self._times = TimeIndex(
            cleaned_path(directory, base_offset, TIME_INDEX_SUFFIX), active=True
        )
        for index in (self._offsets, self._times):
            index.create_file()
        self._unwritten: list[Buffer] = []
        self._unwritten_bytes = 0
        self._bytes_since_index = 0
        self.size_bytes = 0
        self._max_timestamp_ms = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset

    def append(self, batch: Buffer, last_offset: int, max_timestamp_ms: int) -> None:
        """Adds a whole batch, with the index entries of an ordinary append."""
        size_bytes = len(batch)
        if max_timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = max_timestamp_ms
            self._max_timestamp_offset = last_offset
        if self._bytes_since_index > self._index_interval_bytes:
            self._offsets.append(last_offset - self._base_offset, self.size_bytes)
            self._add_time()
            self._bytes_since_index = size_bytes
        else:
            self._bytes_since_index += size_bytes
        self.size_bytes += size_bytes
        self._unwritten.append(batch)
        self._unwritten_bytes += size_bytes
        if self._unwritten_bytes >= WRITE_BYTES:
            self.write_out()

    def _add_time(self) -> None:
        self._times.append_if_later(
            self._max_timestamp_ms, self._max_timestamp_offset - self._base_offset
        )

    def write_out(self) -> None:
        """Writes the gathered batches; views of buffers may be reused afterwards."""
        if self._unwritten:
            self._log.append(b"".join(self._unwritten))
            self._unwritten.clear()
            self._unwritten_bytes = 0

    def finish(
        self, transactions: Sequence[AbortedTransaction], *, modified_ns: int
    ) -> CleanedFacts:
        """Completes and syncs all files. `modified_ns` becomes the log file's mtime.

        It is that of the youngest source: retention uses it for records without a timestamp.
        """
        self.write_out()
        self._add_time()
        for index in (self._offsets, self._times):
            index.write_out()
        if transactions:
            path = cleaned_path(self._directory, self._base_offset, TXN_INDEX_SUFFIX)
            files.write_atomically(path, encode_entries(transactions))
        try:
            os.utime(self._log.fileno(), ns=(modified_ns, modified_ns))
        except OSError as error:
            raise DiskError(f"cannot set the time of {self._log.path}: {error.strerror}") from error
        self._log.sync()
        files.sync_file(self._offsets.path)
        files.sync_file(self._times.path)
        files.sync_directory(self._directory)
        self._log.close()
        return CleanedFacts(
            base_offset=self._base_offset,
            size_bytes=self.size_bytes,
            max_timestamp_ms=self._max_timestamp_ms,
            max_timestamp_offset=self._max_timestamp_offset,
        )

    def abandon(self) -> None:
        """Removes the written files."""
        self._log.close()
        remove_cleaned(self._directory, self._base_offset)

"""Downloads archived segments to local files, for a scrub or a repair that reads every byte.

    1 make a file   2 remove its name   3 download into it   4 hand out a path to the open file

Since the file has no name, a kill -9 leaves nothing behind: the system frees its bytes with the
process. The bytes of all files together are bounded; a segment above the bound is downloaded alone.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.storage.errors import DiskError
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.segment.download import download

# Two segments of Kafka's default size; the space that the temporary folder must have.
SCRATCH_BYTES_MAX = 2 * 1024 * 1024 * 1024


class SegmentDownloads:
    """The downloads of one run. Thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._bytes = 0
        self._room = threading.Condition()

    @contextmanager
    def file(self, entry: SegmentEntry) -> Iterator[Path]:
        """Yields a file of the segment's unchecked bytes. Raises DiskError and as the store."""
        size_bytes = min(entry.size_bytes, SCRATCH_BYTES_MAX)
        with self._room:
            self._room.wait_for(lambda: self._bytes + size_bytes <= SCRATCH_BYTES_MAX)
            self._bytes += size_bytes
        try:
            with self._downloaded(entry) as path:
                yield path
        finally:
            with self._room:
                self._bytes -= size_bytes
                self._room.notify_all()

    @contextmanager
    def _downloaded(self, entry: SegmentEntry) -> Iterator[Path]:
        try:
            opened = tempfile.TemporaryFile()  # noqa: SIM115 (closed below)  # 1, 2
        except OSError as error:
            raise DiskError(f"cannot make a temporary file: {error.strerror}") from error
        with opened as file:
            download(self._store, entry, file)  # 3
            yield Path(f"/dev/fd/{file.fileno()}")  # 4

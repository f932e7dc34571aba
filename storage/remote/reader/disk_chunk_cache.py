"""Chunks on disk: files in one folder that survive a restart.

They hold the same bytes as chunks in memory, under a name made of object key and range. Object keys
are never reused, so an entry is never stale; it is checked like a download whenever it is read.

Bounded in bytes and in files. Leftovers of an earlier process are indexed at the first lookup, not
at the start; if they exceed the bounds, each chunk that is stored evicts a few of them, and is not
stored until there is space.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import DiskError
from strandline.storage.quiet_log import QuietLog
from strandline.storage.remote.segment.index import ChunkKey

log = logging.getLogger(__name__)

_CHUNK_SUFFIX = ".chunk"
# Segments may be tiny: this many names take some 4 MiB of memory, and a start that finds
# them a tenth of a second. Chunks of a MiB are 16 GiB by then.
FILES_MAX = 16_384
# Files that one chunk may evict: this bounds the delay of its reader.
DROPS_MAX = 256


class DiskChunkCache:
    """Chunks as files in one folder, evicted least recently used first. Thread-safe, blocking.

    A failing disk disables caching, never a read: errors count as misses.
    """

    def __init__(self, directory: Path, bytes_max: int, files_max: int = FILES_MAX) -> None:
        """Creates the folder; an earlier process's chunks are kept as far as the bounds allow.

        Raises DiskError if the folder cannot be created.
        """
        self._directory = directory
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._is_adopted = False
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._size_bytes = 0
        self._writing: set[str] = set()
        self._quiet_log = QuietLog(log)
        files.make_directory(directory)

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks in the folder; 0 before the first lookup."""
        return self._size_bytes

    def load(self, key: ChunkKey, target: memoryview) -> bool:
        """Fills `target` with the chunk; False if it is not cached: then `target` is garbage."""
        name = _file_name(key)
        with self._lock:
            self._adopt()
            if name not in self._sizes:
                return False
            self._sizes.move_to_end(name)
        path = self._directory / name
        try:
            with open(path, "rb", buffering=0) as file:
                done = 0
                while done < len(target):
                    count = file.readinto(target[done:])
                    if not count:
                        break
                    done += count
            os.utime(path)
        except OSError as error:
            self._note_failure(error)
            done = 0
        if done != len(target):
            self.remove(key)
            return False
        return True

    def store(self, key: ChunkKey, content: memoryview) -> None:
        """Stores a chunk, evicting older ones as needed."""
        name = _file_name(key)
        if len(content) > self._bytes_max:
            return
        try:
            with self._lock:
                self._adopt()
                if name in self._sizes or name in self._writing:
                    return
                if not self._make_room(len(content)):
                    return
                self._writing.add(name)
            # Not synced: a torn file is found by its batch CRCs, and it is only a cache.
            files.write_atomically(self._directory / name, content, sync=False)
            with self._lock:
                self._sizes[name] = len(content)
                self._size_bytes += len(content)
                # Other threads stored chunks meanwhile.
                self._make_room(0, file_count=0)
        except DiskError as error:
            self._note_failure(error)
        finally:
            with self._lock:
                self._writing.discard(name)

    def remove(self, key: ChunkKey) -> None:
        """Removes a chunk, for instance a corrupt one."""
        with self._lock:
            self._drop(_file_name(key))

    def _adopt(self) -> None:
        """Indexes an earlier process's chunks, once."""
        if self._is_adopted:
            return
        self._is_adopted = True
        try:
            with os.scandir(self._directory) as entries:
                found = [(one.stat().st_mtime_ns, one.name, one.stat().st_size) for one in entries]
            for _, name, size_bytes in sorted(found):
                if name.endswith(_CHUNK_SUFFIX):
                    self._sizes[name] = size_bytes
                    self._size_bytes += size_bytes
                elif name.endswith(files.TEMPORARY_SUFFIX):
                    files.remove(self._directory / name)
        except (OSError, DiskError) as error:
            self._note_failure(error)
        self._make_room(0, file_count=0)

    def _make_room(self, size_bytes: int, *, file_count: int = 1) -> bool:
        """Evicts the oldest until `size_bytes` fit; False if that exceeds DROPS_MAX evictions."""
        for _ in range(DROPS_MAX):
            if self._has_room(size_bytes, file_count):
                return True
            self._drop(next(iter(self._sizes)))
        return self._has_room(size_bytes, file_count)

    def _has_room(self, size_bytes: int, file_count: int) -> bool:
        return not self._sizes or (
            self._size_bytes + size_bytes <= self._bytes_max
            and len(self._sizes) + file_count <= self._files_max
        )

    def _drop(self, name: str) -> None:
        size_bytes = self._sizes.pop(name, None)
        if size_bytes is None:
            return
        self._size_bytes -= size_bytes
        try:
            files.remove(self._directory / name)
        except DiskError as error:
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        directory = str(self._directory)
        self._quiet_log.say(
            logging.WARNING,
            "chunk cache on disk failed",
            directory,
            {"directory": directory, "error": str(error)},
        )


def _file_name(key: ChunkKey) -> str:
    digest = hashlib.blake2b(key.log_key.encode(), digest_size=16).hexdigest()
    return f"{digest}-{key.position}-{key.end_position}{_CHUNK_SUFFIX}"

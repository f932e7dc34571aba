"""Chunks on disk: files in one folder that survive a restart.

They hold the same bytes as chunks in memory, under a name made of object key and range. Object keys
are never reused, so an entry is never stale; it is checked like a download whenever it is read.
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
from strandline.storage.remote.segment_index import ChunkKey

log = logging.getLogger(__name__)

_CHUNK_SUFFIX = ".chunk"


class DiskChunkCache:
    """Chunks as files in one folder, least recently used first to go. Thread-safe, blocking.

    A failing disk costs the cache, never a read: errors count as misses.
    """

    def __init__(self, directory: Path, bytes_max: int) -> None:
        """Opens the folder and keeps what an earlier process left there, up to `bytes_max`.

        Raises DiskError if the folder cannot be made or read.
        """
        self._directory = directory
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._size_bytes = 0
        self._writing: set[str] = set()
        self._quiet_log = QuietLog(log)
        files.make_directory(directory)
        self._adopt()
        self._trim(0)

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks in the folder."""
        return self._size_bytes

    def load(self, key: ChunkKey, target: memoryview) -> bool:
        """Fills `target` with the chunk's bytes; False if they are not here, and it is garbage."""
        name = _file_name(key)
        with self._lock:
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
        """Keeps a chunk, dropping older ones to make room."""
        name = _file_name(key)
        if len(content) > self._bytes_max:
            return
        try:
            with self._lock:
                if name in self._sizes or name in self._writing:
                    return
                self._writing.add(name)
                self._trim(len(content))
            # Not synced: a torn file is found by its batch CRCs, and it is only a cache.
            files.write_atomically(self._directory / name, content, sync=False)
            with self._lock:
                self._sizes[name] = len(content)
                self._size_bytes += len(content)
                self._trim(0)
        except DiskError as error:
            self._note_failure(error)
        finally:
            with self._lock:
                self._writing.discard(name)

    def remove(self, key: ChunkKey) -> None:
        """Forgets a chunk, for instance one whose bytes turned out wrong."""
        with self._lock:
            self._drop(_file_name(key))

    def _adopt(self) -> None:
        try:
            found = [
                (entry.stat().st_mtime_ns, entry.name, entry.stat().st_size)
                for entry in os.scandir(self._directory)
            ]
        except OSError as error:
            raise DiskError(f"cannot read {self._directory}: {error.strerror}") from error
        for _, name, size_bytes in sorted(found):
            if name.endswith(_CHUNK_SUFFIX):
                self._sizes[name] = size_bytes
                self._size_bytes += size_bytes
            elif name.endswith(files.TEMPORARY_SUFFIX):
                files.remove(self._directory / name)

    def _trim(self, incoming_bytes: int) -> None:
        while self._sizes and self._size_bytes + incoming_bytes > self._bytes_max:
            self._drop(next(iter(self._sizes)))

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

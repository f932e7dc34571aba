"""The two sparse indexes of a segment, in Kafka's formats.

    .index      entry = relative offset u32 | position u32           8 bytes
    .timeindex  entry = timestamp ms i64    | relative offset u32   12 bytes

An offset entry has the *last* offset of a batch and the position of its first byte. A time entry
has the highest timestamp of the segment up to and including the batch that ends at its offset.
Both grow strictly in both columns.

Invariant: entries may be missing (sparse), never wrong. So an index is a cache: a lookup returns
a position to start the walk from, and a doubtful index is deleted and rebuilt from the log.
Kafka's format has no checksum, so callers compare an entry with the batch it names.

The active segment's index lives in memory and is written out in runs of entries; a sealed one is
complete on disk and is loaded on demand. Loaded sealed indexes share one memory budget. No file
descriptor stays open: for thousands of partitions that costs more than an `open` per 512 entries.
"""

from __future__ import annotations

import logging
import struct
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from strandline.storage import files
from strandline.storage.errors import DiskError
from strandline.storage.files import OpenFile
from strandline.storage.model import NO_TIMESTAMP
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# Each lookup tries the file again. One limit for all indexes, of which few fail.
_quiet_log = QuietLog(log)

# Entries buffered before they are written: one small write per 512 batches of the hot path.
UNWRITTEN_ENTRIES_MAX = 512
# Memory for indexes of sealed segments, over all partitions; the index of a 1 GiB segment is 2 MiB.
LOADED_BYTES_MAX = 32 * 1024 * 1024

_SWAPPED = sys.byteorder == "little"
_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")


E = TypeVar("E")


class SparseIndex(Generic[E]):
    """The base class of both indexes: two sorted columns and their file."""

    ENTRY: ClassVar[struct.Struct]
    ENTRY_BYTES: ClassVar[int]
    KEY_TYPE: ClassVar[str]
    OFFSET_COLUMN: ClassVar[int]

    __slots__ = ("_file_suspect", "_keys", "_path", "_resident", "_values", "_written")

    def __init__(self, path: Path | str, *, active: bool) -> None:
        """An index over the file at `path`; an `active` one starts empty, see `load_active`."""
        self._path = path
        self._keys: array[int] | None = array(self.KEY_TYPE) if active else None
        self._values: array[int] | None = array("I") if active else None
        self._resident = active
        self._written = 0
        self._file_suspect = False

    @property
    def path(self) -> Path:
        return Path(self._path)

    def _entry(self, key: int, value: int) -> E:
        raise NotImplementedError

    def _encode(self, keys: array[int], values: array[int]) -> bytes:
        raise NotImplementedError

    def _decode(self, content: bytes) -> tuple[array[int], array[int]]:
        raise NotImplementedError

    # --- columns ---------------------------------------------------------------------------

    def columns(self) -> tuple[array[int], array[int]]:
        """Both columns, loaded from the file if this is a sealed index that was unloaded.

        A missing file yields no entries: lookups then walk from the beginning.
        """
        keys, values = self._keys, self._values
        if keys is None or values is None:
            keys, values = self._load()
        if not self._resident:
            LOADED.touch(self, len(keys) * self.ENTRY_BYTES)
        return keys, values

    def _load(self) -> tuple[array[int], array[int]]:
        try:
            content = files.read_whole(self._path)
        except DiskError as error:
            self._warn("index unreadable", error)
            content = b""
        return self._adopt(content)

    def _adopt(self, content: bytes) -> tuple[array[int], array[int]]:
        keys, values = self._decode(content[: len(content) // self.ENTRY_BYTES * self.ENTRY_BYTES])
        self._keys, self._values = keys, values
        return keys, values

    def unload(self) -> None:
        """Frees the columns of a sealed index; the next lookup reads the file again."""
        if not self._resident:
            self._keys = self._values = None

    @property
    def entry_count(self) -> int:
        return len(self.columns()[0])

    def floor(self, key: int) -> E | None:
        """Returns the last entry whose first column is at most `key`."""
        keys, values = self.columns()
        place = bisect_right(keys, key)
        return self._entry(keys[place - 1], values[place - 1]) if place else None

    def last_entry(self) -> E | None:
        """Returns the last entry; read from the file alone if the columns are not loaded."""
        keys, values = self._keys, self._values
        if keys is not None and values is not None:
            return self._entry(keys[-1], values[-1]) if keys else None
        try:
            file = OpenFile(self._path, writable=False)
        except DiskError:
            return None
        try:
            position = file.size_bytes() // self.ENTRY_BYTES * self.ENTRY_BYTES - self.ENTRY_BYTES
            if position < 0:
                return None
            return self._entry(*self.ENTRY.unpack(file.read_at(position, self.ENTRY_BYTES)))
        finally:
            file.close()

    # --- file ------------------------------------------------------------------------------

    def create_file(self) -> None:
        """Creates the empty file of a new index; an old file is emptied. Raises DiskError."""
        file = OpenFile(self._path, writable=True, create=True)
        try:
            if file.size_bytes():
                file.truncate(0)
        finally:
            file.close()

    def load_active(self) -> None:
        """Loads the file of an active index; appends continue behind its entries."""
        size_bytes = self.read_file()
        self.resume()
        if size_bytes != self._written * self.ENTRY_BYTES:
            self.rewrite()

    def read_file(self) -> int:
        """Reads the file for `resume`; its size in bytes, -1 if it cannot be read."""
        try:
            content = files.read_if_there(self._path)
        except DiskError as error:
            self._warn("index unreadable", error)
            content = None
        self._adopt(content or b"")
        return -1 if content is None else len(content)

    def resume(self) -> None:
        """Makes the bytes of `read_file` the content of an active index."""
        keys = self._keys
        if keys is None:
            # Lookups in other indexes may have unloaded this one.
            keys, _ = self._load()
        LOADED.forget(self)
        self._resident = True
        self._written = len(keys)

    def resume_with(self, content: bytes) -> None:
        """Makes `content`, the bytes of the file, the columns of an active index."""
        keys, _ = self._adopt(content)
        self._written = len(keys)

    def size_on_disk(self) -> int:
        """Size of the file in bytes; -1 if there is none."""
        try:
            return files.size_bytes(self._path)
        except DiskError:
            return -1

    def write_out(self) -> None:
        """Appends the unwritten entries to the file. Raises DiskError; memory keeps all entries."""
        keys, values = self._keys, self._values
        if keys is None or values is None or not self._resident:
            return
        if self._file_suspect:
            self.rewrite()
            return
        if self._written == len(keys):
            return
        content = self._encode(keys[self._written :], values[self._written :])
        try:
            file = OpenFile(self._path, writable=True, create=True)
            try:
                file.append(content)
            finally:
                file.close()
        except DiskError:
            self._file_suspect = True
            raise
        self._written = len(keys)

    def rewrite(self) -> None:
        """Replaces the file by the columns in memory."""
        keys, values = self.columns()
        files.write_atomically(self.path, self._encode(keys, values), sync=False)
        self._written = len(keys)
        self._file_suspect = False

    def seal(self) -> None:
        """Writes the remaining entries; from now on the columns may be unloaded."""
        self.write_out()
        if self._resident:
            self._resident = False
            self.columns()

    def clear(self) -> None:
        """Empties memory and file, and makes the index active."""
        LOADED.forget(self)
        self._keys, self._values = array(self.KEY_TYPE), array("I")
        self._resident = True
        self.rewrite()

    def append(self, key: int, value: int) -> None:
        keys, values = self._keys, self._values
        assert keys is not None, self.path
        assert values is not None, self.path
        keys.append(key)
        values.append(value)
        if len(keys) - self._written >= UNWRITTEN_ENTRIES_MAX:
            self._write_out_or_wait()

    def _write_out_or_wait(self) -> None:
        # A full disk must not turn an append that is already in the log into an error. The entries
        # stay in memory, the next run rewrites the file, and sealing reports a lasting failure.
        try:
            self.write_out()
        except DiskError as error:
            self._written = len(self._keys or ())
            self._warn("index not written", error)

    def _warn(self, event: str, error: DiskError) -> None:
        _quiet_log.say(logging.WARNING, event, str(self._path), {"reason": str(error)})

    def truncate(self, relative_offset: int) -> None:
        """Drops the entries of batches that end at or after `relative_offset`."""
        keys, values = self.columns()
        entry_count = bisect_left((keys, values)[self.OFFSET_COLUMN], relative_offset)
        if entry_count < len(keys):
            del keys[entry_count:], values[entry_count:]
            self.rewrite()


class OffsetEntry(NamedTuple):
    """The batch at `position` ends at `relative_offset`."""

    relative_offset: int
    position: int


class OffsetIndex(SparseIndex[OffsetEntry]):
    """Relative last offset of a batch -> position of that batch.

    `floor`: the batch that holds an offset is that of the entry, or a later one.
    """

    ENTRY = _OFFSET_ENTRY
    ENTRY_BYTES = 8
    KEY_TYPE = "I"
    OFFSET_COLUMN = 0
    __slots__ = ()

    def _entry(self, key: int, value: int) -> OffsetEntry:
        return OffsetEntry(key, value)

    def floor_by_position(self, position: int) -> OffsetEntry | None:
        """Returns the last entry whose batch begins at or before `position`."""
        keys, values = self.columns()
        place = bisect_right(values, position)
        return OffsetEntry(keys[place - 1], values[place - 1]) if place else None

    def _encode(self, keys: array[int], values: array[int]) -> bytes:
        rows = array("I", bytes(8 * len(keys)))
        rows[0::2] = keys
        rows[1::2] = values
        if _SWAPPED:
            rows.byteswap()
        return rows.tobytes()

    def _decode(self, content: bytes) -> tuple[array[int], array[int]]:
        rows = array("I")
        rows.frombytes(content)
        if _SWAPPED:
            rows.byteswap()
        return rows[0::2], rows[1::2]


class TimeEntry(NamedTuple):
    """One entry: `relative_offset` ends the batch that brought the log to `timestamp_ms`."""

    timestamp_ms: int
    relative_offset: int


class TimeIndex(SparseIndex[TimeEntry]):
    """Highest timestamp so far -> relative last offset of the batch that has it.

    `floor`: every record of earlier batches is older; the entry's own batch may hold one.
    """

    ENTRY = _TIME_ENTRY
    ENTRY_BYTES = 12
    KEY_TYPE = "q"
    OFFSET_COLUMN = 1
    __slots__ = ()

    def _entry(self, key: int, value: int) -> TimeEntry:
        return TimeEntry(key, value)

    def append_if_later(self, timestamp_ms: int, relative_offset: int) -> None:
        """Adds an entry unless the last one has this timestamp already, or a later one."""
        keys = self._keys
        if keys:
            if timestamp_ms <= keys[-1]:
                return
        elif timestamp_ms == NO_TIMESTAMP:
            return
        self.append(timestamp_ms, relative_offset)

    def _encode(self, keys: array[int], values: array[int]) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, keys, values))

    def _decode(self, content: bytes) -> tuple[array[int], array[int]]:
        timestamps, offsets = array("q"), array("I")
        for timestamp_ms, relative_offset in _TIME_ENTRY.iter_unpack(content):
            timestamps.append(timestamp_ms)
            offsets.append(relative_offset)
        return timestamps, offsets


class LoadedIndexes:
    """An LRU cache that bounds the memory of sealed indexes over all logs."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_loaded = 0
        # Lookups may come from a worker thread (timestamps) while the loop serves fetches.
        self._lock = threading.Lock()
        self._sizes: OrderedDict[int, tuple[SparseIndex[Any], int]] = OrderedDict()

    def touch(self, index: SparseIndex[Any], size_bytes: int) -> None:
        """Marks `index` as just used, and unloads others until the budget holds."""
        with self._lock:
            known = self._sizes.pop(id(index), None)
            self.bytes_loaded += size_bytes - (known[1] if known else 0)
            self._sizes[id(index)] = (index, size_bytes)
            while self.bytes_loaded > self.bytes_max and len(self._sizes) > 1:
                _, (oldest, oldest_bytes) = self._sizes.popitem(last=False)
                self.bytes_loaded -= oldest_bytes
                oldest.unload()

    def forget(self, index: SparseIndex[Any]) -> None:
        """Removes an index whose segment was deleted."""
        with self._lock:
            known = self._sizes.pop(id(index), None)
            if known:
                self.bytes_loaded -= known[1]


LOADED = LoadedIndexes(LOADED_BYTES_MAX)


def iter_offset_entries(content: bytes) -> Iterator[OffsetEntry]:
    """Returns the whole entries of a .index file, unchecked."""
    whole_bytes = len(content) // OffsetIndex.ENTRY_BYTES * OffsetIndex.ENTRY_BYTES
    return map(OffsetEntry._make, _OFFSET_ENTRY.iter_unpack(content[:whole_bytes]))


def iter_time_entries(content: bytes) -> Iterator[TimeEntry]:
    """Returns the whole entries of a .timeindex file, unchecked."""
    whole_bytes = len(content) // TimeIndex.ENTRY_BYTES * TimeIndex.ENTRY_BYTES
    return map(TimeEntry._make, _TIME_ENTRY.iter_unpack(content[:whole_bytes]))

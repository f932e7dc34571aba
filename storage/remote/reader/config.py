"""Configuration of cold reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strandline.storage.config.definition import INT, LONG, MIB, STRING, key


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReaderConfig:
    """Bounds on the memory, disk and requests of cold reads."""

    parallel_downloads_max: int = key(
        "remote.log.reader.threads",
        INT,
        10,
        "Requests to the object store at the same time on behalf of readers, at most. May be"
        " altered to between half and twice its value.",
        minimum=1,
        maximum=1000,
        dynamic=True,
    )
    index_bytes_max: int = key(
        "remote.log.index.file.cache.total.size.bytes",
        LONG,
        1024 * MIB,
        "Memory for indexes of remote segments, of which at most 4,096 are kept; the least recently"
        " used is dropped first.",
        minimum=1,
        dynamic=True,
    )
    waiting_reads_max: int = key(
        "remote.log.reader.max.pending.tasks",
        INT,
        100,
        "Remote reads waiting for a thread; further fetches get an empty answer.",
        minimum=1,
    )
    chunk_bytes: int = key(
        "strandline.remote.chunk.bytes",
        INT,
        8 * MIB,
        "Bytes of a segment that the broker downloads at a time, rounded up to about a mebibyte.",
        minimum=64 * 1024,
        maximum=256 * MIB,
    )
    memory_bytes_max: int = key(
        "strandline.remote.cache.memory.bytes",
        LONG,
        128 * MIB,
        "Memory for chunks of remote segments.",
        minimum=0,
    )
    disk_bytes_max: int = key(
        "strandline.remote.cache.disk.bytes",
        LONG,
        0,
        "Disk space for chunks of remote segments, at most 16,384 of them; they survive a"
        " restart. 0: none.",
        minimum=0,
    )
    disk_directory: Path | None = key(
        "strandline.remote.cache.directory",
        STRING,
        None,
        "Folder of the chunks on disk; unset: remote-cache in the first log folder.",
        convert=Path,
    )

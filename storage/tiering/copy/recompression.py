"""Rewrites the batches of a segment with zstd before it is archived.

    segment file ---> v2 batches that are not zstd yet: rewritten, if that makes them smaller
                      control batches, old messages, unreadable batches: unchanged
                 ---> a nameless file beside it, which is inspected and uploaded in its place

Offsets, timestamps, producers and sequences stay, so the archive holds the same records in other
batches. It is off unless a topic asks for it, and runs in the inspection's process. The file has no
name, so a kill at any moment leaves nothing of it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strandline.storage.errors import CorruptRecords, DiskError, UnsupportedCodec
from strandline.storage.model import Position
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.recompression import recompressed
from strandline.storage.records.compression import Codec

# Through this folder a process opens a file that another one has open.
_OPEN_FILES = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompression:
    """The path for the rewritten segment, and the zstd level."""

    path: Path
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompressed:
    """Result of a rewrite; if `batch_count` is 0, no batch got smaller."""

    source_size_bytes: int
    batch_count: int


@contextmanager
def nameless_file(folder: Path) -> Iterator[Path]:
    """A file in `folder` that vanishes with this process; child processes can open its path.

    Raises DiskError.
    """
    try:
        if not _OPEN_FILES.is_dir():
            with tempfile.NamedTemporaryFile(prefix="recompressed-") as named:
                yield Path(named.name)
            return
        with tempfile.TemporaryFile(dir=folder) as file:
            yield _OPEN_FILES / str(os.getpid()) / "fd" / str(file.fileno())
    except OSError as error:
        raise DiskError(f"no temporary file in {folder}: {error.strerror}") from error


def recompress_segment(
    source: Path, wanted: Recompression, *, position: Position = 0
) -> Recompressed:
    """Writes the batches of `source` from `position` on to `wanted.path`, rewritten where that
    makes them smaller.

    Raises CorruptRecords at a batch with a wrong CRC, DiskError.
    """
    count = 0
    try:
        with open(source, "rb") as file, open(wanted.path, "wb") as target:
            size_bytes = file.seek(0, 2)
            if not size_bytes:
                raise CorruptRecords(f"{source} is empty")
            view = memoryview(mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ))
            view = view[position:]
            end = 0
            for batch in walk(view, verify_crc=True):
                end = batch.end_position
                encoded = batch.encoded(view)
                smaller = _smaller(encoded, batch.header, wanted.level)
                count += smaller is not None
                target.write(encoded if smaller is None else smaller)
            if end != len(view):
                raise CorruptRecords(f"{len(view) - end} bytes after the last whole batch")
    except OSError as error:
        raise DiskError(f"cannot rewrite {source}: {error.strerror}") from error
    return Recompressed(source_size_bytes=len(view), batch_count=count)


def _smaller(encoded: memoryview, header: BatchHeader, level: int) -> bytearray | None:
    """Returns the batch compressed with zstd; None if it stays unchanged."""
    if header.is_control or header.codec == Codec.ZSTD:
        return None
    if header.record_count < 1:
        return None
    try:
        made = recompressed(encoded, header, codec=Codec.ZSTD, level=level)
    except (CorruptRecords, UnsupportedCodec):
        # A batch that its producer sent broken is archived unchanged.
        return None
    return made if len(made) < len(encoded) else None

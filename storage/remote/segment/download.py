"""Downloads a whole `.log`."""

from __future__ import annotations

from typing import IO

from strandline.storage.errors import DiskError
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.object_store.interface import GetsRanges
from strandline.storage.system import crc32c

# The memory of a download.
DOWNLOAD_BYTES = 8 * 1024 * 1024


def download(store: GetsRanges, entry: SegmentEntry, file: IO[bytes]) -> int:
    """Appends the segment's bytes to `file` and returns their CRC-32C; blocks.

    The caller compares it with the entry's. Raises DiskError, and what the store raises.
    """
    crc = 0
    for start in range(0, entry.size_bytes, DOWNLOAD_BYTES):
        end = min(start + DOWNLOAD_BYTES, entry.size_bytes)
        content = store.get(entry.log_key, start=start, end=end)
        crc = crc32c.crc32c(content, crc)
        try:
            file.write(content)
            file.flush()
        except OSError as error:
            raise DiskError(
                f"cannot hold {entry.log_key} in a temporary file: {error.strerror}"
            ) from error
    return crc

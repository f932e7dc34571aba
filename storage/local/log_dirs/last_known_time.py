"""The last time that retention trusted, stored beside the checkpoints of each log folder.

    last-believed-time     {"magic": "strandline-last-time", "version": 1, "crc32c": ...}
                           milliseconds since the epoch, in digits

It is a hint: an unreadable note counts as absent, and a failed write is repeated next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from strandline.storage.errors import CorruptFile, DiskError, UnsupportedFormat
from strandline.storage.local.formats import headed_file
from strandline.storage.model import TimestampMs

log = logging.getLogger(__name__)

FILE_NAME = "last-believed-time"
MAGIC = "strandline-last-time"
VERSION = 1
# The note may lag this far behind; a round of retention need not sync every folder.
NOTE_MS = 60_000


class LastTime:
    """The stored time of all log folders. `read`, `note` and `write` block."""

    def __init__(self, folders: Callable[[], Sequence[Path]]) -> None:
        """`folders` returns those that can be used now."""
        self._folders = folders
        self._noted_ms: TimestampMs | None = None

    def read(self) -> TimestampMs | None:
        """Returns the latest note of all folders; None if there is none."""
        found = [noted for folder in self._folders() if (noted := _read(folder)) is not None]
        return max(found, default=None)

    def note(self, believed_ms: TimestampMs) -> None:
        """Stores `believed_ms` in all folders, unless the last note is recent enough."""
        if self.is_due(believed_ms):
            for folder in self._folders():
                self.write(folder, believed_ms)

    def is_due(self, believed_ms: TimestampMs) -> bool:
        """Whether the last note is too old; then `believed_ms` counts as noted."""
        if self._noted_ms is not None and abs(believed_ms - self._noted_ms) < NOTE_MS:
            return False
        self._noted_ms = believed_ms
        return True

    def write(self, folder: Path, believed_ms: TimestampMs) -> None:
        """Stores `believed_ms` in one folder, if that can be written."""
        try:
            headed_file.write(
                folder / FILE_NAME, str(believed_ms).encode(), magic=MAGIC, version=VERSION
            )
        except DiskError as error:
            # The owner of the folder logs the error.
            log.debug("time not noted", extra={"fields": {"reason": str(error)}})


def _read(folder: Path) -> TimestampMs | None:
    try:
        body = headed_file.read(folder / FILE_NAME, magic=MAGIC, version=VERSION)
        return None if body is None else int(body)
    except (CorruptFile, UnsupportedFormat, DiskError, ValueError) as error:
        log.warning(
            "stored time of retention is unreadable, it is ignored",
            extra={"fields": {"reason": str(error)}},
        )
        return None

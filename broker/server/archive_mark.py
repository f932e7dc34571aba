"""Which local folder holds the archive, noted in the first log folder.

    .strandline-archive    the URL of the archive that this broker found or began there

A volume that is not mounted at a start leaves an empty folder, and an empty folder is what a new
archive begins in. What this disk remembers tells the two apart. A bucket needs no such note: it is
there, or it says that it is not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import DiskError

log = logging.getLogger(__name__)

FILE_NAME = ".strandline-archive"


class ArchiveMark:
    """The note about one archive. Its methods block."""

    def __init__(self, folder: Path, url: str, *, check_present: Callable[[], None]) -> None:
        """`check_present` raises DiskError if `folder` is not the log folder that was locked."""
        self.path = folder / FILE_NAME
        self._content = f"{url}\n".encode()
        self._check_present = check_present

    @property
    def is_set(self) -> bool:
        """Whether the archive was seen by an earlier start of this broker. Raises DiskError."""
        return files.read_if_there(self.path) == self._content

    def set(self) -> None:
        """Notes that the archive was seen; a disk that refuses is asked again at the next start."""
        try:
            if not self.is_set:
                self._check_present()
                files.write_atomically(self.path, self._content)
        except DiskError as error:
            log.warning("archive not noted", extra={"fields": {"reason": str(error)}})

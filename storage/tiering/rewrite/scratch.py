"""The folder for temporary files of merges and compactions.

Each has tens or hundreds of MB, and a child process opens it by name. They are on the broker's disk
rather than in the system's folder for temporary files, which may be in memory. The next start
removes leftovers of a kill; the lock of the log folder ensures that no other process uses them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import DiskError

SCRATCH_FOLDER = "remote-scratch"


def remove_leftovers(scratch: Path | None) -> None:
    """Removes the folder at the start; files that cannot be removed stay."""
    if scratch is not None:
        with suppress(DiskError):
            files.remove_tree(scratch)


def made(scratch: Path | None) -> Path | None:
    """Returns the folder after creating it; None is the system's. Raises OSError."""
    if scratch is not None:
        scratch.mkdir(exist_ok=True)
    return scratch

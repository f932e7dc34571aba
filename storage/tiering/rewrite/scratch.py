"""Where segments lie while they are made for the bucket: merged ones, and compacted ones.

Each is some ten or hundred MB, in files that a child process opens by their names. They lie on the
broker's disk and not in the system's place for temporary files, which may be memory. What a kill
left there goes at the next start; the lock of the log folder sees to it that it is nobody else's.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import DiskError

SCRATCH_FOLDER = "remote-scratch"


def remove_leftovers(scratch: Path | None) -> None:
    """Empties the folder before anything is made in it; what cannot be removed is left."""
    if scratch is not None:
        with suppress(DiskError):
            files.remove_tree(scratch)


def made(scratch: Path | None) -> Path | None:
    """The folder, which is there now; None is the system's place. Raises OSError."""
    if scratch is not None:
        scratch.mkdir(exist_ok=True)
    return scratch

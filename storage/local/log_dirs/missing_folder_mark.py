"""The mark of a log whose folder was missing when its broker started: it may have an archive.

    <topic>-<partition>/past-unknown      empty; created with the folder, and removed when the
                                          archive has been read

A new folder of an old partition means that a disk may be lost. The folder is empty, but its log is
not: an append now would assign offsets a second time. An existing folder is this disk's own past,
or an older image of it, and is written to without a check (docs/decisions, 15).
"""

from __future__ import annotations

from pathlib import Path

from strandline.storage import files
from strandline.storage.local.formats.names import DELETE_SUFFIX, put_aside

MARK = "past-unknown"


def make_marked(directory: Path) -> None:
    """Creates a folder that never exists without its mark. Blocks. Raises DiskError."""
    made = directory.with_name(put_aside(directory.name, DELETE_SUFFIX))
    files.make_directory(made, sync=False)
    files.write_atomically(made / MARK, b"")
    files.rename(made, directory)


def is_marked(directory: Path) -> bool:
    """Returns whether the archive of this log has not been read yet."""
    return files.is_there(directory, MARK)


def forget(directory: Path) -> None:
    """Removes the mark. After a loss of power it may be there again. Raises DiskError."""
    files.remove(directory / MARK)

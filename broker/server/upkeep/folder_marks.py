"""Mark files in log folders, which limit the brokers that may start on them.

    .strandline-restore    a restore into this folder has not finished
    .strandline-replica    the folder belongs to a read-only replica
    .strandline-brokers    the folder becomes that of several brokers, or of a lone one again
    .strandline-archive    the URL of the local folder that holds the archive; in the first one only

An ordinary broker starts on folders with neither of the first two. `restore.py` and `read_only.py`
set and remove them. An unreadable folder cannot be locked either, and the lock reports it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import DiskError, StrandlineError
from strandline.storage.local.formats.names import partition_of, subfolders

log = logging.getLogger(__name__)

RESTORE_MARK = ".strandline-restore"
REPLICA_MARK = ".strandline-replica"
BROKERS_MARK = ".strandline-brokers"
ARCHIVE_MARK = ".strandline-archive"
# Beside the partitions' folders in the first log folder; no topic can have this name.
METADATA_FOLDER = "strandline-metadata"
# Of the controller of several brokers of this machine; in the first log folder.
CONTROLLER_FOLDER = "controller"


class RestoreRefused(StrandlineError):
    """The folders or the bucket are not fit for a restore; the restore changed no file."""


class WrongFolder(StrandlineError):
    """The folder belongs to the other kind of broker, or it is not the first one of `log.dirs`."""


def check_not_interrupted(folders: Iterable[Path]) -> None:
    """Raises RestoreRefused if a restore into these folders has not finished."""
    for folder in folders:
        if files.is_there(folder, RESTORE_MARK):
            raise RestoreRefused(
                f"{folder}: a restore was interrupted; run the same `strandline restore` again"
            )


def are_of_several(folders: Sequence[Path]) -> bool:
    """Whether several brokers had these folders, or are about to have them."""
    return any(files.is_there(folder, BROKERS_MARK) for folder in folders) or files.is_there(
        folders[0] / CONTROLLER_FOLDER, METADATA_FOLDER
    )


def check_no_replica(folders: Iterable[Path]) -> None:
    """Raises WrongFolder if a folder belongs to a read-only replica."""
    for folder in folders:
        if files.is_there(folder, REPLICA_MARK):
            raise WrongFolder(
                f"{folder} belongs to a read-only replica: start it with --read-only, or choose"
                " other folders"
            )


def check_metadata_not_lost(folders: Sequence[Path], *, is_archived: bool) -> None:
    """Raises WrongFolder if a start would take these partitions for ones of unknown topics.

    For a first folder without metadata; `is_archived` tells whether the bucket has them. As in
    Kafka, whose broker does not start on a metadata log directory that was not formatted. Blocks.
    Raises DiskError.
    """
    first, *others = folders
    for folder in others:
        if files.is_there(folder, METADATA_FOLDER):
            raise WrongFolder(
                f"{first} has no metadata, and {folder} has: name {folder} first in log.dirs"
            )
    partitions = [
        path for folder in folders for path in subfolders(folder) if partition_of(path.name)
    ]
    if partitions and not is_archived:
        raise WrongFolder(
            f"{first} has no metadata, so the broker would know no topic of its {len(partitions)}"
            f" partitions ({partitions[0]}, ...): bring the first folder of log.dirs back, or move"
            " the folders of the partitions away to start without them"
        )


class ArchiveMark:
    """The mark of an archive that is a local folder. Its methods block.

    The mount point of a volume that is not mounted is an empty folder, and so is a new archive. The
    mark on this disk tells the two apart. A bucket needs no mark: it exists, or the store reports
    that it does not.
    """

    def __init__(self, folder: Path, url: str, *, check_present: Callable[[], None]) -> None:
        """`check_present` raises DiskError if `folder` is not the log folder that was locked."""
        self.path = folder / ARCHIVE_MARK
        self._content = f"{url}\n".encode()
        self._check_present = check_present

    @property
    def is_set(self) -> bool:
        """Whether an earlier start of this broker saw the archive. Raises DiskError."""
        return files.read_if_there(self.path) == self._content

    def set(self) -> None:
        """Marks the archive as seen; the next start retries after a disk error."""
        try:
            if not self.is_set:
                self._check_present()
                files.write_atomically(self.path, self._content)
        except DiskError as error:
            log.warning("mark of the archive not written", extra={"fields": {"reason": str(error)}})

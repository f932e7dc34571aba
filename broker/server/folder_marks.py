"""Marks in log folders that say who may start on them; looked for at every start.

    .strandline-restore    `strandline restore` began here and did not come to its end
    .strandline-replica    a read-only replica lives here

An ordinary broker starts on folders with neither. Who sets and takes them away is `restore.py` and
`replica.py`. A folder that cannot be looked into cannot be locked either: that is said there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import StrandlineError

RESTORE_MARK = ".strandline-restore"
REPLICA_MARK = ".strandline-replica"
# Beside the partitions' folders in the first log folder; no topic can have this name.
METADATA_FOLDER = "strandline-metadata"


class RestoreRefused(StrandlineError):
    """The folders or the bucket are not fit for a restore; nothing was changed."""


class WrongFolder(StrandlineError):
    """A replica's folder is no place for a broker, nor the other way round."""


def check_not_interrupted(folders: Iterable[Path]) -> None:
    """Raises RestoreRefused if a restore of these folders did not come to its end."""
    for folder in folders:
        if files.is_there(folder, RESTORE_MARK):
            raise RestoreRefused(
                f"{folder}: a restore was interrupted; run the same `strandline restore` again"
            )


def check_no_replica(folders: Iterable[Path]) -> None:
    """Raises WrongFolder if a read-only replica lives here."""
    for folder in folders:
        if files.is_there(folder, REPLICA_MARK):
            raise WrongFolder(
                f"{folder} belongs to a read-only replica: start it with --read-only, or choose"
                " other folders"
            )

"""Files that an earlier run left to be deleted, removed before a start writes anything.

A start checks the folder's identity, then removes them, and only then writes its first file: a
disk may be full of nothing but them. Where there is room the start removes files as it opens each
log, and folders after it: to list thousands of partitions takes time.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import DiskError
from strandline.storage.local.formats.names import is_removable, partition_of, subfolders
from strandline.storage.local.log_dirs.log_dir import LogDir
from strandline.storage.local.segment.partition_folder import file_names
from strandline.storage.local.segment.trash import DELETED_SUFFIX
from strandline.storage.plurals import human_bytes

log = logging.getLogger(__name__)

# A segment of the default size, as in the alert for a disk that is nearly full.
ROOM_BYTES = 1024**3


def remove_leftovers(directory: LogDir) -> None:
    """Removes what waits to be deleted, if there is little room. Blocks; raises no DiskError."""
    free_bytes = _free_bytes(directory.path)
    if free_bytes is None or free_bytes >= ROOM_BYTES:
        return
    count = 0
    try:
        for path in subfolders(directory.path):
            if is_removable(path.name):
                files.remove_tree(path)
                count += 1
            elif partition_of(path.name) is not None:
                count += _remove_files(path)
    except DiskError as error:
        log.warning("files not unlinked", extra={"fields": {"reason": str(error)}})
    if count:
        freed_bytes = (_free_bytes(directory.path) or free_bytes) - free_bytes
        log.info(
            "little room: what waited for its deletion is removed before the start",
            extra={
                "fields": {
                    "folder": str(directory.path),
                    "removed": count,
                    "freed": human_bytes(max(0, freed_bytes)),
                }
            },
        )


def _remove_files(folder: Path) -> int:
    """Removes files of removed segments; those of an unfinished cleaning are the log's to judge."""
    names = [name for name in file_names(folder) if name.endswith(DELETED_SUFFIX)]
    for name in names:
        files.remove(folder / name)
    return len(names)


def _free_bytes(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize

"""The names of folders and files in a log folder, in Kafka's layout.

<topic>-<partition>                 a log
<topic>-<partition>.<id>-delete     a removed one, until it is purged
<topic>-<partition>.<id>-stray      one that the cluster does not know; kept, but see LogDirs.load
<topic>-<partition>.<id>-future     Kafka's unfinished copy from another log folder

<20-digit offset><suffix>           a file of a segment, see segment.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from strandline.storage import entropy
from strandline.storage.errors import DiskError
from strandline.storage.model import TopicPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
# File systems end names at 255 bytes; a removed folder's name loses the end of its topic instead.
NAME_BYTES_MAX = 255

_PARTITION_FOLDER = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_RENAMED_FOLDER = re.compile(r".+\.[0-9a-f]{32}-(delete|stray|future)")


def file_name(offset: int, suffix: str) -> str:
    """`00000000000000000042.log` for 42 and `.log`."""
    return f"{offset:020d}{suffix}"


def partition_of(name: str) -> TopicPartition | None:
    """Returns the partition whose folder has this name; None for any other name."""
    match = _PARTITION_FOLDER.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def is_put_aside(name: str) -> bool:
    """Returns whether the name is that of a removed, stray or unfinished partition folder."""
    return _RENAMED_FOLDER.fullmatch(name) is not None


def is_removable(name: str) -> bool:
    """Returns whether the folder may be deleted with its content; a stray one may hold records."""
    match = _RENAMED_FOLDER.fullmatch(name)
    return match is not None and match[1] != "stray"


def put_aside(name: str, suffix: str) -> str:
    """Returns the name of a folder that is taken out of use; it is never used twice."""
    ending = f".{entropy.new_id().hex}{suffix}"
    return name[: NAME_BYTES_MAX - len(ending)] + ending


def subfolders(path: Path) -> list[Path]:
    """Returns the folders in `path`, by name. Raises DiskError."""
    try:
        # scandir knows from the listing itself which entries are folders.
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        return [path / name for name in names]
    except OSError as error:
        raise DiskError(f"cannot list {path}: {error.strerror}") from error

"""The last run of a broker of a cluster over a log folder, beside the checkpoints.

    last-run     {"magic": "strandline-last-run", "version": 1, "crc32c": ...}
                 {"broker_epoch": 17, "boot": "fbdb...", "place": "2049:131:140", "folders": [...]}

A process that is killed leaves all that it wrote to the kernel, and a run that goes on from there
has all that it ever acknowledged. So it is, if

    boot           is the present one: no power was lost since
    place          is the folder's: its device, and the inodes of itself and of its lock. A copy has
                   others
    folders        are the ids of all folders, then as now: none was exchanged, added or left out
    broker_epoch   is that of the last registration, which the controller knows: nobody ran since,
                   on this folder or on another one

and no folder failed. That removes the note, in memory at least, which is where the same boot looks
for it. It is a promise, not a hint: an unreadable note is none, and so is a missing one.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import CorruptFile, DiskError, UnsupportedFormat
from strandline.storage.local.formats import headed_file

log = logging.getLogger(__name__)

FILE_NAME = "last-run"
MAGIC = "strandline-last-run"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """What a note says."""

    broker_epoch: int
    boot: str
    place: str
    folders: tuple[str, ...]


def read(folder: Path) -> LastRun | None:
    """Returns the note of a folder; None if there is none that can be read. Blocks.

    Raises DiskError.
    """
    try:
        body = headed_file.read(folder / FILE_NAME, magic=MAGIC, version=VERSION)
        if body is None:
            return None
        found = json.loads(body)
        return LastRun(
            broker_epoch=int(found["broker_epoch"]),
            boot=str(found["boot"]),
            place=str(found["place"]),
            folders=tuple(map(str, found["folders"])),
        )
    except (CorruptFile, UnsupportedFormat, ValueError, KeyError, TypeError) as error:
        log.info("note of the last run not used", extra={"fields": {"reason": str(error)}})
        return None


def write(folder: Path, run: LastRun) -> None:
    """Replaces the note. Blocks. Raises DiskError."""
    body = json.dumps(asdict(run)).encode()
    headed_file.write(folder / FILE_NAME, body, magic=MAGIC, version=VERSION)


def remove(folder: Path) -> None:
    """Removes the note, without a sync: after a loss of power it says nothing anyway.

    A folder that cannot be written keeps it.
    """
    with suppress(DiskError):
        files.remove(folder / FILE_NAME)

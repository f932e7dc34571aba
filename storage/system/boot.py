"""Which boot of the machine keeps what was written to a folder.

What a process writes is the kernel's at once, synced or not. A kill of the process takes nothing
of it, and neither does a stop of its container: only the end of the boot does, a loss of power say.

So far as the kernel keeps it. Behind other file systems is a server or a process whose end nobody
here is told of (NFS, CIFS, FUSE), and of them nothing is said.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from strandline.storage import files
from strandline.storage.errors import DiskError

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
MOUNTS: Final = Path("/proc/self/mountinfo")
# Of which this kernel has all pages that are not on the device yet.
LOCAL_FILE_SYSTEMS: Final = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "overlay")
)
# A space, a tab, a newline and a backslash in a name of a mount point.
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def boot_of(folder: Path, *, boot_id: Path = BOOT_ID, mounts: Path = MOUNTS) -> str | None:
    """Returns the id of the boot that keeps what was written to `folder`, synced or not.

    None if nobody knows: without Linux, behind another file system, or where a container has a
    file of its own in place of the kernel's, which may outlive the boot. Blocks.
    """
    try:
        if os.stat(boot_id).st_dev != os.stat(mounts).st_dev:  # noqa: PTH116
            return None
        found = files.read_if_there(boot_id)
        listed = files.read_if_there(mounts)
    except (OSError, DiskError):
        return None
    if not found or not listed:
        return None
    text = listed.decode("utf-8", "surrogateescape")
    is_kept = _file_system(text, os.path.realpath(folder)) in LOCAL_FILE_SYSTEMS
    return found.decode("ascii", "replace").strip() if is_kept else None


def _file_system(mounts: str, folder: str) -> str | None:
    """Returns the type of the file system that a folder lies in; None if none is found.

    A line is `id parent device root mount-point options [fields...] - type source options`. Of two
    over the same mount point the later one is seen.
    """
    length, found = 0, None
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if len(columns := fields.split(" ")) < 5:
            continue
        point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), columns[4])
        is_above = folder == point or folder.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= length:
            length, found = len(point), rest.split(" ", 1)[0]
    return found

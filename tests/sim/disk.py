"""What a power loss leaves of a folder: of each file, what was synced, and by chance some more.

    appended ───────────► synced ──────────► end        a power loss cuts between synced and end

Names are kept: a file that was never synced stays, empty or shorter. What was overwritten or
renamed is not taken back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from stat import S_ISREG
from unittest.mock import patch


class Disk:
    """The files of a simulation, and how much of each would survive."""

    def __init__(self, random: Random, synced: MutableMapping[int, int] | None = None) -> None:
        """`synced` has, by inode, the size at the last sync."""
        self._random = random
        self._synced: MutableMapping[int, int] = {} if synced is None else synced

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block syncs are seen, and removals: the next file may get the same inode.

        Nothing waits for the device: a folder keeps its names in any case.
        """
        unlink, replace = os.unlink, os.replace

        def fsync(file: int) -> None:
            found = os.fstat(file)
            if S_ISREG(found.st_mode):
                self._synced[found.st_ino] = found.st_size

        def forget(path: str | Path, dir_fd: int | None = None) -> None:
            with suppress(FileNotFoundError):
                found = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
                if found.st_nlink == 1:
                    self._synced.pop(found.st_ino, None)

        def unlink_and_forget(path: str | Path, *, dir_fd: int | None = None) -> None:
            forget(path, dir_fd)
            unlink(path, dir_fd=dir_fd)

        def replace_and_forget(source: str | Path, target: str | Path) -> None:
            forget(target)
            replace(source, target)

        with (
            patch.object(os, "fsync", fsync),
            patch.object(os, "unlink", unlink_and_forget),
            patch.object(os, "replace", replace_and_forget),
        ):
            yield

    def lose_power(self, folder: Path) -> int:
        """Cuts the files of the folder; returns how many bytes are lost."""
        lost_bytes = 0
        for path in sorted(folder.rglob("*")):
            found = path.lstat()
            if not S_ISREG(found.st_mode):
                continue
            synced = min(self._synced.get(found.st_ino, 0), found.st_size)
            kept = (
                synced
                if self._random.random() < 0.5
                else self._random.randint(synced, found.st_size)
            )
            if kept < found.st_size:
                os.truncate(path, kept)
                lost_bytes += found.st_size - kept
        return lost_bytes

"""Files of removed segments that wait to be unlinked.

A removed file is renamed to `<name>.deleted` at once (`<name>.2.deleted` while another one of that
name waits, as after two cleanings of a segment), so a start ignores it. It is unlinked after
`file.delete.delay.ms`: unlinking a gigabyte can take long, and a copy by name may still be running.
A start removes all that remain.

The delay is monotonic time: with a wall clock that was a year ahead and then corrected, files would
fill the disk for a year.
"""

from __future__ import annotations

import threading
from pathlib import Path

from strandline.storage import files

DELETED_SUFFIX = ".deleted"


class Trash:
    """Removed files of one log. `purge` may run in a worker thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # When each file was removed, by monotonic time. The delay is asked for at each purge: it
        # may be altered meanwhile, as by one who needs the space.
        self._removed_s: dict[Path, float] = {}

    def put(self, path: Path, *, now_s: float) -> None:
        """Renames a file, to be unlinked later; a missing one is fine. Raises DiskError."""
        if not path.exists():
            return
        with self._lock:
            target = self._free_name(path)
            files.rename(path, target, sync=False)
            self._removed_s[target] = now_s

    def _free_name(self, path: Path) -> Path:
        target = path.with_name(path.name + DELETED_SUFFIX)
        number = 2
        while target in self._removed_s:
            target = path.with_name(f"{path.name}.{number}{DELETED_SUFFIX}")
            number += 1
        return target

    def purge(self, now_s: float, *, delay_ms: int) -> int:
        """Unlinks files that were removed `delay_ms` ago or earlier; returns how many.

        The log's folder must exist: a missing file counts as unlinked. Raises DiskError: the
        remaining files wait for the next call.
        """
        with self._lock:
            removed = self._removed_s.items()
            due = [path for path, removed_s in removed if removed_s + delay_ms / 1000 <= now_s]
        for path in due:
            files.remove(path)
            with self._lock:
                self._removed_s.pop(path, None)
        return len(due)

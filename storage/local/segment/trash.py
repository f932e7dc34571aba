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
        # When each file may be unlinked, by monotonic time.
        self._unlink_at_s: dict[Path, float] = {}

    def put(self, path: Path, *, unlink_at_s: float) -> None:
        """Renames a file, to be unlinked later; a missing one is fine. Raises DiskError."""
        if not path.exists():
            return
        with self._lock:
            target = self._free_name(path)
            files.rename(path, target, sync=False)
            self._unlink_at_s[target] = unlink_at_s

    def _free_name(self, path: Path) -> Path:
        target = path.with_name(path.name + DELETED_SUFFIX)
        number = 2
        while target in self._unlink_at_s:
            target = path.with_name(f"{path.name}.{number}{DELETED_SUFFIX}")
            number += 1
        return target

    def purge(self, now_s: float) -> int:
        """Unlinks files whose delay is over; returns how many.

        The log's folder must exist: a missing file counts as unlinked. Raises DiskError: the
        remaining files wait for the next call.
        """
        with self._lock:
            due = [path for path, due_s in self._unlink_at_s.items() if due_s <= now_s]
        for path in due:
            files.remove(path)
            with self._lock:
                self._unlink_at_s.pop(path, None)
        return len(due)

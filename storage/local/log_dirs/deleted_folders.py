"""Folders of deleted logs that wait to be removed.

Such a folder is renamed at once, so that a start does not load it, and removed after
`file.delete.delay.ms` of monotonic time: a reader may still use its files.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import DiskError
from strandline.storage.local.formats.names import DELETE_SUFFIX, put_aside


class DeletedFolders:
    """The deleted folders in all log folders of a broker. Each folder's thread may `purge` it."""

    def __init__(self) -> None:
        # When each folder may be removed, by monotonic time.
        self._remove_at_s: dict[Path, float] = {}

    def put(self, path: Path, *, remove_at_s: float) -> None:
        """Renames the folder durably and adds it. Blocks. Raises DiskError."""
        target = path.with_name(put_aside(path.name, DELETE_SUFFIX))
        files.rename(path, target)
        self.add(target, remove_at_s=remove_at_s)

    def add(self, path: Path, *, remove_at_s: float) -> None:
        """Adds a folder that is renamed already."""
        self._remove_at_s[path] = remove_at_s

    def purge(self, now_s: float, *, within: Collection[Path]) -> tuple[int, DiskError | None]:
        """Removes folders of these log folders whose delay is over: their count, the first error.

        The log folders must be there: a folder that is gone counts as removed. One that cannot be
        removed is tried again, and delays no other.
        """
        count, first_error = 0, None
        for path, remove_at_s in list(self._remove_at_s.items()):
            if remove_at_s > now_s or path.parent not in within:
                continue
            try:
                files.remove_tree(path)
            except DiskError as error:
                first_error = first_error or error
            else:
                self._remove_at_s.pop(path, None)
                count += 1
        return count, first_error

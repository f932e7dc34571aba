"""A store whose listings are those of an earlier moment, as some servers' are for a while.

What was written since is not listed, what was deleted since still is. Everything that is asked by
its name is answered as it is now.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.storage.remote.object_store.interface import ObjectInfo, ObjectStore


class LaggingLists:
    """Listings of `store` stay what they are now, until `catch_up`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._listed: list[ObjectInfo] | None = list(store.list(""))

    def catch_up(self) -> None:
        """From now on listings are true."""
        self._listed = None

    def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        if self._listed is None:
            return self._store.list(prefix, start_after=start_after, limit=limit)
        found = [
            info
            for info in self._listed
            if info.key.startswith(prefix) and info.key.encode() > start_after.encode()
        ]
        return iter(found[:limit])

    def list_folders(self, prefix: str) -> Iterator[str]:
        names = {
            info.key[len(prefix) :].partition("/")[0]
            for info in self.list(prefix)
            if "/" in info.key[len(prefix) :]
        }
        return iter(sorted(names, key=str.encode))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

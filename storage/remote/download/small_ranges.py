"""Indexes and other small pieces of objects, past the SDK where that goes."""

from __future__ import annotations

from strandline.storage.remote.download.process import DownloadProcess
from strandline.storage.remote.object_store.interface import GetsRanges


class RangesPastTheSdk:
    """Small ranges of a store's objects, by its own way where `get_range` has none."""

    def __init__(self, store: GetsRanges, process: DownloadProcess | None) -> None:
        self._store = store
        self._process = process

    def get(self, key: str, *, start: int, end: int) -> bytes:
        """As `ObjectStore.get`. Blocks."""
        found = None if self._process is None else self._process.get_range(key, start, end)
        return self._store.get(key, start=start, end=end) if found is None else found

"""Deletes the objects of a deleted topic, a bounded number at a time.

    1 by name      of each partition the objects in its manifest, and then the manifest:
                   segments of a page, the page, ..., segments of the root, parts, marks, root
    2 by listing   objects that no manifest names: uploads that died, or whose commit failed

Reads are consistent, but listings may lag: some servers list new objects late, and deleted ones for
a while. Step 1 therefore deletes committed objects without a listing, and a listing of only objects
that were just deleted is retried later, not at once.

A manifest's key is used again if the topic is tiered again: where the store can, only the version
that was read or listed is deleted, so that a DELETE that arrives late spares the next one.

A crash in 1 leaves a manifest whose first objects are gone, which is read again; or none, and then
the listing has the rest. Deleting an absent object is harmless.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from strandline.storage.crash_points import PURGE_AFTER_SOME, crash_point
from strandline.storage.errors import (
    CorruptFile,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    TierError,
    UnsupportedFormat,
)
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.keys import MANIFEST_FILE, manifest_key, topic_folder
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.topic_info import TopicInfo
from strandline.storage.remote.object_store.interface import Lack, ObjectStore

# Bounds on the keys of one request, and on the requests of one call in the executor, so that other
# work gets its turn while a large topic is deleted.
KEYS_PER_DELETE_MAX = 1000
DELETES_PER_STEP_MAX = 10


class ListingLags(TierError):
    """The store lists objects that were deleted before."""


class _Doomed(NamedTuple):
    """An object to delete; with an etag, only that version."""

    key: str
    etag: str = ""


class TopicObjects:
    """The objects in a topic's folder but `topic.json`. Blocking; used by one thread at a time."""

    def __init__(
        self,
        info: TopicInfo,
        store: ObjectStore,
        *,
        before_first: Callable[[], object] | None = None,
        may_delete: Callable[[], bool] = lambda: True,
    ) -> None:
        """`before_first` is called before the first object is deleted, if there is one.

        `may_delete` is asked before each request. A broker that was stopped in between may find
        that another one has purged the topic, and that it has a new archive by now.
        """
        self._may_delete = may_delete
        self._before_first = before_first
        self._info = info
        self._store = store
        self._folder = topic_folder(info.topic, info.topic_id)
        # None: all objects that the manifests name are deleted.
        self._named: Iterator[Sequence[_Doomed]] | None = self._iter_named()
        self._last_listed: frozenset[str] = frozenset()
        self.deleted_count = 0

    def delete_some(self) -> bool:
        """Deletes a bounded number; True if some may be left.

        Raises the store's errors, and ListingLags if it lists only objects deleted before.
        """
        for _ in range(DELETES_PER_STEP_MAX):
            try:
                batch = self._next()
                if batch is None:
                    return False
                if not self._may_delete():
                    return True
                if batch:
                    if self._before_first is not None:
                        self._before_first()
                        self._before_first = None
                    self._delete(batch)
                    crash_point(PURGE_AFTER_SOME)
            except StorageError:
                if self._named is not None:
                    self._named = self._iter_named()
                raise
            self._check_progress([doomed.key for doomed in batch])
        return True

    def _delete(self, batch: Sequence[_Doomed]) -> None:
        is_ignored = Lack.CONDITIONAL_DELETE in self._store.lacks
        versions = [] if is_ignored else [doomed for doomed in batch if doomed.etag]
        self._store.delete([doomed.key for doomed in batch if doomed not in versions])
        for key, etag in versions:
            # Another version came in between: it is listed.
            with contextlib.suppress(PreconditionFailed):
                self._store.delete_matching(key, etag)

    def _next(self) -> Sequence[_Doomed] | None:
        """Returns what to delete next, which may be nothing; None if all is deleted."""
        if self._named is not None:
            named = next(self._named, None)
            if named is not None:
                return named
            self._named = None
        # One more than a request takes: topic.json may be among them.
        found = self._store.list(self._folder, limit=KEYS_PER_DELETE_MAX + 1)
        return [
            _Doomed(one.key, one.etag if one.key.endswith(f"/{MANIFEST_FILE}") else "")
            for one in found
            if one.key != self._info.key
        ][:KEYS_PER_DELETE_MAX] or None

    def _check_progress(self, keys: Sequence[str]) -> None:
        if self._named is not None:
            self.deleted_count += len(keys)
            return
        again = self._last_listed.issuperset(keys)
        self._last_listed = frozenset(keys)
        if again:
            raise ListingLags(self._folder, "list", f"{keys[0]} and more were deleted before")
        self.deleted_count += len(keys)

    # --- by name -----------------------------------------------------------------------------

    def _iter_named(self) -> Iterator[Sequence[_Doomed]]:
        """Batches of objects, one request each; at least one, maybe empty, for each partition."""
        for number in range(self._info.partition_count):
            batch: list[_Doomed] = []
            for doomed in self._named_of(
                TopicIdPartition(self._info.topic, self._info.topic_id, number)
            ):
                batch.append(doomed)
                if len(batch) == KEYS_PER_DELETE_MAX:
                    yield batch
                    batch = []
            yield batch

    def _named_of(self, partition: TopicIdPartition) -> Iterator[_Doomed]:
        try:
            stored = manifest_store.load(self._store, partition)
        except (CorruptFile, UnsupportedFormat, ObjectCorrupt):
            # Its objects are found by listing.
            return
        if stored is not None:
            yield from map(_Doomed, self._in_manifest(stored.manifest))
            yield _Doomed(manifest_key(partition), stored.etag)

    def _in_manifest(self, manifest: Manifest) -> Iterator[str]:
        for page in manifest.pages:
            try:
                entries = manifest_store.read_page(self._store, page)
            except (ObjectNotFound, CorruptFile, UnsupportedFormat, ObjectCorrupt):
                entries = ()
            for entry in entries:
                yield from (entry.log_key, entry.meta_key)
            yield page.key
        for entry in manifest.segments:
            yield from (entry.log_key, entry.meta_key)
        for part in manifest.tail:
            yield part.key
        for mark in manifest.deleting:
            yield from mark.keys

    def __repr__(self) -> str:
        return f"<TopicObjects {self._info.topic} deleted={self.deleted_count}>"

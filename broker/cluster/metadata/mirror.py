"""The mirror of the metadata log: a restore reads it when every disk is lost.

    log (this disk)     1  2  3  4  5  6  7        snapshot 4
    mirror (bucket)     1  2  .  4  5              ->  3, 6, 7 and the snapshot are copied to it

The mirror follows the log at its own pace and receives only objects of the log: a mirror with more
or other objects belongs to another history and is left alone. A listing finds deleted objects,
which are written again; damaged ones are replaced. One request lists a store of this size, so each
change lists it, and a timer does so now and then.

Entries are written before snapshots, in order, and never over a whole one. So two brokers that
write different entries to the same mirror notice it at the first name that both use, or at the
mirror's own boundary if that name was pruned (log_reader.py).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from strandline.broker.cluster.metadata.log_format import (
    check_document,
    decode_snapshot,
    entry_checksum,
)
from strandline.broker.cluster.metadata.log_reader import (
    SNAPSHOTS_KEPT,
    checksum_at,
    cluster_of,
    counts,
    first_kept,
    indexes,
    prune,
    read_history,
)
from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    StoreFull,
)
from strandline.storage.remote.keys import (
    METADATA_BOUNDARY_KEY,
    METADATA_LOG_PREFIX,
    METADATA_PREFIX,
    METADATA_SNAPSHOT_PREFIX,
    metadata_log_key,
    metadata_snapshot_key,
    parse_metadata_key,
)
from strandline.storage.remote.object_store.interface import IfAbsent, IfMatches, ObjectStore

log = logging.getLogger(__name__)


class MirrorDiverged(StorageError):
    """The mirror holds another history than the log; nothing was written to it."""


class MirrorTaken(MirrorDiverged):
    """The mirror continues with entries of another broker of this identity, or of a backup."""


class MetadataMirror:
    """Copies the log to its mirror. Blocking; calls must not overlap."""

    def __init__(self, store: ObjectStore, mirror: ObjectStore, *, cluster_id: str) -> None:
        self._store = store
        self._mirror = mirror
        self._cluster_id = cluster_id
        # The last entry in the mirror without a gap; -1: not yet read.
        self.version = -1
        self.snapshot_version = -1
        # Objects that this process had seen in the mirror, and that were deleted.
        self.deleted_count = 0

    def copy_missing(self, version: int) -> None:
        """Copies all objects that the mirror lacks; the log's image is at `version`.

        Raises MirrorDiverged, CorruptFile if the log is damaged, and TierError.
        """
        is_first = self.version < 0
        if is_first:
            self.version = self._check(version)
        listed = {info.key for info in self._mirror.list(METADATA_PREFIX)}
        kept = _Kept.of(self._store)
        # An append may be durable, and mirrored, before its image is current.
        self._check_newest(max(map(_index, listed), default=0), max(version, kept.newest))
        if not is_first:
            self._note_deleted(kept, listed)
        # Later objects may be another broker's: they are compared.
        known = {key for key in listed if _index(key) <= self.version}
        for key in kept.entries_without_gap(self._store.url):
            self._copy(key, known)
        copied = [key for key in kept.snapshot_keys if self._copy(key, known)]
        if copied or METADATA_BOUNDARY_KEY not in listed:
            prune(self._mirror)
        self.snapshot_version = max(kept.snapshots, default=0)

    def copy_newer(self, version: int, snapshot_version: int) -> bool:
        """As `copy_missing`, but checks only the newest entry; returns False if that is not enough.

        Each entry names its predecessor, so the newest one identifies the history.
        """
        first = self._first_missing(version, snapshot_version)
        if first is None:
            return False
        for index in range(first, version + 1):
            self._copy(metadata_log_key(index))
        return True

    def _first_missing(self, version: int, snapshot_version: int) -> int | None:
        """The first of our entries that the mirror must hold or get; None: check all of it."""
        found = indexes(self._mirror, METADATA_LOG_PREFIX, after=snapshot_version)
        if found:
            return found[-1] if found[-1] <= version else None
        if not snapshot_version:
            return None
        # A restored log begins with a snapshot, at the mirror's newest entry.
        with contextlib.suppress(ObjectNotFound):
            newest = self._mirror.get(metadata_log_key(snapshot_version))
            if entry_checksum(newest) == checksum_at(self._store, snapshot_version):
                return snapshot_version + 1
        return None

    # --- checks ------------------------------------------------------------------------------

    def _check(self, version: int) -> int:
        """Returns the mirror's version. Raises MirrorDiverged unless its history is ours."""
        try:
            theirs = read_history(self._mirror, cluster_id=self._cluster_id)
        except (CorruptFile, ObjectCorrupt) as error:
            self._check_damaged(error)
            return 0
        found = theirs.image.version
        self._check_newest(found, version)
        ours = checksum_at(self._store, found) if found else ""
        # The entry is pruned here and in no snapshot: only the cluster id can be compared.
        if ours not in ("", theirs.head_checksum):
            raise MirrorTaken(
                f"the metadata in {self._mirror.url} has another entry {found} than the"
                f" log in {self._store.url}: two brokers have written under one cluster id"
            )
        return found

    def _check_newest(self, theirs: int, ours: int) -> None:
        if theirs > ours:
            raise MirrorTaken(
                f"the metadata in {self._mirror.url} is at entry {theirs}, the log in"
                f" {self._store.url} only at {ours}: the log is an older copy."
                " Move its folder away to restore it from the mirror"
            )

    def _check_damaged(self, error: StorageError) -> None:
        """Raises MirrorDiverged unless the remaining objects are of this history.

        All of them are compared before anything is written: the missing ones may belong to another
        history.
        """
        if cluster_of(self._mirror) not in ("", self._cluster_id):
            raise MirrorDiverged(f"the mirror of the metadata log is not usable: {error}")
        for index in indexes(self._mirror, METADATA_LOG_PREFIX):
            key = metadata_log_key(index)
            with contextlib.suppress(ObjectNotFound):
                self._is_same(key, self._store.get(key))
        log.warning(
            "metadata in the bucket are incomplete, they are written again",
            extra={"fields": {"mirror": self._mirror.url, "reason": str(error)}},
        )

    def _note_deleted(self, kept: _Kept, listed: Collection[str]) -> None:
        """Notes deleted objects of the mirror: it is behind until they are written again."""
        had = [key for key in kept.entry_keys if _index(key) <= self.version]
        had += [key for key in kept.snapshot_keys if _index(key) <= self.snapshot_version]
        gone = [key for key in had if key not in listed and not self._has(key)]
        if not gone:
            return
        self.version = min(map(_index, gone)) - 1
        self.deleted_count += len(gone)
        log.warning(
            "metadata in the bucket were deleted, they are written again",
            extra={"fields": {"mirror": self._mirror.url, "count": len(gone), "first": min(gone)}},
        )

    def _has(self, key: str) -> bool:
        """Returns whether the mirror has the object; asked by name, because a listing may lag."""
        with contextlib.suppress(ObjectNotFound):
            self._mirror.head(key)
            return True
        return False

    # --- copying -----------------------------------------------------------------------------

    def _copy(self, key: str, known: Collection[str] = ()) -> bool:
        """Copies one intact object unless it is known to be there; returns whether it was missing.

        Raises CorruptFile if it is damaged here, or MirrorDiverged if a different intact one has
        that name: MirrorTaken for an entry, which is written once and never changed, also if
        another broker has written and pruned it.
        """
        if key in known:
            return False
        content = self._store.get(key)
        check_document(content, key=key)
        try:
            self._mirror.put(key, content, condition=IfAbsent())
        except (PreconditionFailed, AccessDenied, StoreFull) as error:
            self._replace_damaged(key, content, error)
        if key.startswith(METADATA_LOG_PREFIX) and not counts(self._mirror, _index(key)):
            raise MirrorTaken(
                f"the metadata in {self._mirror.url} were pruned beyond entry {_index(key)} of the"
                f" log in {self._store.url}: another broker has written them"
            )
        self.version = max(self.version, _index(key)) if self.version >= 0 else -1
        return True

    def _replace_damaged(self, key: str, content: bytes, error: StorageError) -> None:
        """Overwrites a damaged object; one that is intact and ours stays."""
        try:
            if self._is_same(key, content):
                return
            etag = self._mirror.head(key).etag
        except ObjectNotFound:
            # A store that refuses writes does so before it checks the precondition.
            raise error from None
        log.warning("damaged metadata are replaced", extra={"fields": {"key": key}})
        self._mirror.put(key, content, condition=IfMatches(etag))

    def _is_same(self, key: str, content: bytes) -> bool:
        """Returns False if the object is damaged. Raises MirrorDiverged if it is another one."""
        try:
            theirs = self._mirror.get(key)
            if theirs == content or _is_same_snapshot(key, theirs, content):
                return True
            check_document(theirs, key=key)
        except (CorruptFile, ObjectCorrupt):
            return False
        kind = MirrorTaken if key.startswith(METADATA_LOG_PREFIX) else MirrorDiverged
        raise kind(
            f"{key} in {self._mirror.url} is not the one in {self._store.url}: another history"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The objects of a store that are not to be pruned: numbers, ascending."""

    entries: tuple[int, ...]
    snapshots: tuple[int, ...]

    @classmethod
    def of(cls, store: ObjectStore) -> _Kept:
        snapshots = tuple(indexes(store, METADATA_SNAPSHOT_PREFIX)[-SNAPSHOTS_KEPT:])
        entries = indexes(store, METADATA_LOG_PREFIX, after=first_kept(snapshots) - 1)
        return cls(entries=tuple(entries), snapshots=snapshots)

    @property
    def newest(self) -> int:
        return max((*self.entries, *self.snapshots), default=0)

    @property
    def entry_keys(self) -> tuple[str, ...]:
        return tuple(map(metadata_log_key, self.entries))

    @property
    def snapshot_keys(self) -> tuple[str, ...]:
        return tuple(map(metadata_snapshot_key, self.snapshots))

    def entries_without_gap(self, url: str) -> Iterator[str]:
        """Yields the keys of the entries in order. Raises CorruptFile where one is missing."""
        begins = {0, *self.snapshots}
        before = {*begins, *self.entries}
        for index in self.entries:
            if index - 1 not in before and index not in begins:
                raise CorruptFile(
                    f"the metadata log in {url} has a gap: {metadata_log_key(index - 1)} is missing"
                )
            yield metadata_log_key(index)


def _is_same_snapshot(key: str, theirs: bytes, ours: bytes) -> bool:
    """Returns whether both end with the same entry; another release may encode them differently."""
    if not key.startswith(METADATA_SNAPSHOT_PREFIX):
        return False
    found, wanted = (
        decode_snapshot(content, key=key, index=_index(key)) for content in (theirs, ours)
    )
    return found.head_checksum == wanted.head_checksum


def _index(key: str) -> int:
    """Returns 0 for foreign names."""
    return parse_metadata_key(key) or 0

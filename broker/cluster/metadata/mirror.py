"""The mirror of the metadata log: what a restore has of the cluster when every disk is lost.

    log (this disk)     1  2  3  4  5  6  7        snapshot 4
    mirror (bucket)     1  2  .  4  5              ->  3, 6, 7 and the snapshot are brought to it

It follows the log at its own pace, and it only ever receives what the log has: if it has more, or
something else, it belongs to another history and is left alone. What somebody deleted there is
found by listing it, and written again; what is damaged is replaced. A store of the log's size is
listed with one request, so it is listed for each change, and now and then without one.

Entries are written before snapshots, in order, and never over a whole one. So two brokers that
bring the same mirror different entries notice it at the first name that both of them want.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from strandline.broker.cluster.metadata.documents import (
    check_document,
    decode_snapshot,
    entry_checksum,
)
from strandline.broker.cluster.metadata.history import (
    SNAPSHOTS_KEPT,
    checksum_at,
    cluster_of,
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
    """It goes on with what another broker wrote, of the same identity or after a backup of this."""


class MetadataMirror:
    """Brings a mirror what the log has. Blocking; no call beside another."""

    def __init__(self, store: ObjectStore, mirror: ObjectStore, *, cluster_id: str) -> None:
        self._store = store
        self._mirror = mirror
        self._cluster_id = cluster_id
        # The last entry that it has without a gap; -1: nobody has looked yet.
        self.version = -1
        self.snapshot_version = -1
        # Objects that this process knew there, and that were gone.
        self.deleted_count = 0

    def bring(self, version: int) -> None:
        """Brings it all that the log has and it has not; the log's image is at `version`.

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
        # What comes after what is known may be another broker's: it is compared.
        known = {key for key in listed if _index(key) <= self.version}
        for key in kept.entries_without_gap(self._store.url):
            self._copy(key, known)
        if [key for key in kept.snapshot_keys if self._copy(key, known)]:
            prune(self._mirror)
        self.snapshot_version = max(kept.snapshots, default=0)

    def claim(self, version: int, snapshot_version: int) -> bool:
        """The same after a look at its newest entry alone; False: that look was not enough.

        Entries name the one before, so that one tells whose history it is.
        """
        first = self._first_to_claim(version, snapshot_version)
        if first is None:
            return False
        for index in range(first, version + 1):
            self._copy(metadata_log_key(index))
        return True

    def _first_to_claim(self, version: int, snapshot_version: int) -> int | None:
        """The first of our entries that it has to have, or to take; None: look closely."""
        found = indexes(self._mirror, METADATA_LOG_PREFIX, after=snapshot_version)
        if found:
            return found[-1] if found[-1] <= version else None
        if not snapshot_version:
            return None
        # A log that was restored begins with a snapshot, at the mirror's newest entry.
        with contextlib.suppress(ObjectNotFound):
            newest = self._mirror.get(metadata_log_key(snapshot_version))
            if entry_checksum(newest) == checksum_at(self._store, snapshot_version):
                return snapshot_version + 1
        return None

    # --- whose it is -------------------------------------------------------------------------

    def _check(self, version: int) -> int:
        """The version that it has. Raises MirrorDiverged unless it is a part of ours."""
        try:
            theirs = read_history(self._mirror, cluster_id=self._cluster_id)
        except (CorruptFile, ObjectCorrupt) as error:
            self._check_damaged(error)
            return 0
        found = theirs.image.version
        self._check_newest(found, version)
        ours = checksum_at(self._store, found) if found else ""
        # Pruned here, and in no snapshot: the cluster id is all there is to compare.
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
        """Raises MirrorDiverged unless what is left is of this history.

        All of it is compared before anything is written: what is missing may be missing from
        another history.
        """
        if cluster_of(self._mirror) not in ("", self._cluster_id):
            raise MirrorDiverged(f"the mirror of the metadata log is not usable: {error}")
        for index in indexes(self._mirror, METADATA_LOG_PREFIX):
            key = metadata_log_key(index)
            with contextlib.suppress(ObjectNotFound):
                self._is_same(key, self._store.get(key))
        log.warning(
            "metadata in the bucket are not whole, they are written again",
            extra={"fields": {"mirror": self._mirror.url, "reason": str(error)}},
        )

    def _note_deleted(self, kept: _Kept, listed: Collection[str]) -> None:
        """What it had, and has no more: it is behind as long as that is so."""
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
        """A listing may lag; asked by its name it is there."""
        with contextlib.suppress(ObjectNotFound):
            self._mirror.head(key)
            return True
        return False

    # --- copying -----------------------------------------------------------------------------

    def _copy(self, key: str, known: Collection[str] = ()) -> bool:
        """Brings one whole object, if it is not known to be there; whether it was not.

        Raises CorruptFile if it is damaged here, or MirrorDiverged if another whole one lies there
        under that name: MirrorTaken for an entry, which is written once and never changed.
        """
        if key in known:
            return False
        content = self._store.get(key)
        check_document(content, key=key)
        try:
            self._mirror.put(key, content, condition=IfAbsent())
        except (PreconditionFailed, AccessDenied, StoreFull) as error:
            self._replace_damaged(key, content, error)
        self.version = max(self.version, _index(key)) if self.version >= 0 else -1
        return True

    def _replace_damaged(self, key: str, content: bytes, error: StorageError) -> None:
        """Writes over what is no whole object; what is ours stays."""
        try:
            if self._is_same(key, content):
                return
            etag = self._mirror.head(key).etag
        except ObjectNotFound:
            # A store that takes no writes refuses before it looks what is there.
            raise error from None
        log.warning("damaged metadata are replaced", extra={"fields": {"key": key}})
        self._mirror.put(key, content, condition=IfMatches(etag))

    def _is_same(self, key: str, content: bytes) -> bool:
        """False: it is damaged. Raises MirrorDiverged if it is whole, and something else."""
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
    """What a store has of the log and is not to be pruned: numbers, ascending."""

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
        """Their keys, one after the other. Raises CorruptFile where one is missing."""
        begins = {0, *self.snapshots}
        before = {*begins, *self.entries}
        for index in self.entries:
            if index - 1 not in before and index not in begins:
                raise CorruptFile(
                    f"the metadata log in {url} has a gap: {metadata_log_key(index - 1)} is missing"
                )
            yield metadata_log_key(index)


def _is_same_snapshot(key: str, theirs: bytes, ours: bytes) -> bool:
    """Whether both end with the same entry; their bytes may be another release's."""
    if not key.startswith(METADATA_SNAPSHOT_PREFIX):
        return False
    found, wanted = (
        decode_snapshot(content, key=key, index=_index(key)) for content in (theirs, ours)
    )
    return found.head_checksum == wanted.head_checksum


def _index(key: str) -> int:
    """Of what somebody else put there it is 0."""
    return parse_metadata_key(key) or 0

"""The ordered log of metadata, as immutable objects in an object store.

    metadata/log/00000000000000000041.json        one entry: records that happen together
    metadata/log/00000000000000000042.json
    metadata/snapshot/00000000000000000040.json   the whole image after entry 40

    entry     {"format", "version", "cluster_id", "index", "previous", "writer", "records": [...]}
    snapshot  {"format", "version", "cluster_id", "index", "previous", ...the image...}

`previous` is the checksum of the entry before (in a snapshot: of the entry it ends with), so
entries of two histories cannot be mixed unnoticed. `writer` is new for every attempt to append:
two brokers never write the same bytes, and a lost answer is recognised by it.

An append creates the next name if absent. Whoever finds it taken has lost the race, learns what
the winner wrote, and decides again (`MetadataRaced`): this is the whole consensus.

    1 create entry n   2 image n is current   3 every SNAPSHOT_INTERVAL entries: write a snapshot
    4 delete what two snapshots have made superfluous

A crash after 1 loses the answer, not the entry. 3 and 4 only save time: their failure is logged
and made up for by a later one. Loading reads the newest whole snapshot and all entries after it;
a missing or damaged entry is an error, because every image after it would be wrong
(metadata_history.py).

The mirror is a second store (the bucket, when the log itself lies on the local disk) that follows
at its own pace. It only ever receives what the log has; if it has more, or something else, it
belongs to another history and is left alone. An empty log is restored from a mirror that is not,
by a snapshot of what the mirror has: one object, so a crash leaves all of it or nothing.

Blocking calls throughout: run them in an executor. `append` may run beside `mirror_once`, but no
call beside itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

from strandline.broker.cluster.image import MetadataImage
from strandline.broker.cluster.metadata_documents import (
    NO_ENTRY_CHECKSUM,
    check_document,
    encode_entry,
    encode_snapshot,
    entry_checksum,
)
from strandline.broker.cluster.metadata_history import (
    Loaded,
    checksum_at,
    indexes,
    is_empty,
    prune,
    read_entries,
    read_history,
)
from strandline.broker.cluster.records import ClusterCreated, MetadataRecord
from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    StoreFull,
    TierError,
)
from strandline.storage.remote.keys import (
    METADATA_LOG_PREFIX,
    METADATA_SNAPSHOT_PREFIX,
    metadata_log_key,
    metadata_snapshot_key,
)
from strandline.storage.remote.object_store import IfAbsent, ObjectStore, new_write_id
from strandline.storage.values import dataclass

log = logging.getLogger(__name__)

# Loading reads at most twice this many entries one by one: well under a second from a disk, a few
# seconds from a bucket.
SNAPSHOT_INTERVAL = 256
# How often a reader starts over because pruning removed what it had just listed.
LISTING_ATTEMPTS_MAX = 3


class MetadataRaced(StorageError):
    """Another broker appended first; `MetadataLog.image` is up to date: decide again."""


class MirrorDiverged(StorageError):
    """The mirror holds another history than the log; nothing was written to it."""


class MirrorTaken(MirrorDiverged):
    """It goes on with what another broker wrote, of the same identity or after a backup of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogStatistics:
    """Versions are entry numbers; -1 for a mirror that was not yet reached."""

    version: int
    snapshot_version: int
    mirror_version: int

    @property
    def mirror_lag(self) -> int:
        """Entries that would be lost with the local disk."""
        return self.version - max(self.mirror_version, 0)


class MetadataLog:
    """Owner of the log: the current image, and the one way to make the next."""

    def __init__(
        self,
        store: ObjectStore,
        mirror: ObjectStore | None = None,
        *,
        cluster_id: str,
        snapshot_interval: int = SNAPSHOT_INTERVAL,
        check_store: Callable[[], None] = lambda: None,
    ) -> None:
        """`cluster_id` is what an empty log is created with, and what any other must belong to.

        `check_store` is called before anything is appended, and raises StorageError if the store
        may be somebody else's by now.
        """
        self._store = store
        self._mirror = mirror
        self._cluster_id = cluster_id
        self._snapshot_interval = snapshot_interval
        self._check_store = check_store
        self._image = MetadataImage()
        self._head_checksum = NO_ENTRY_CHECKSUM
        self._snapshot_version = 0
        self._mirror_version = -1
        self._mirror_snapshot_version = -1
        # One at a time: a caller may have given up waiting for the one before.
        self._mirroring = threading.Lock()

    @property
    def image(self) -> MetadataImage:
        """The newest image that this process knows."""
        return self._image

    def statistics(self) -> MetadataLogStatistics:
        return MetadataLogStatistics(
            version=self._image.version,
            snapshot_version=self._snapshot_version,
            mirror_version=self._mirror_version,
        )

    def __repr__(self) -> str:
        return f"<MetadataLog {self.statistics()}>"

    @property
    def is_unbegun(self) -> bool:
        """Whether the log is known to be empty: only then its mirror is asked. Blocks."""
        try:
            return is_empty(self._store)
        except TierError:
            return False

    def load(self) -> MetadataImage:
        """Reads the log, creating it if neither it nor the mirror has anything yet.

        Raises CorruptFile (an object is damaged or missing, or the log is another cluster's),
        UnsupportedFormat, or TierError if a store cannot be read. A mirror is only needed, and
        only asked, while the log is empty.
        """
        if self._mirror is not None and is_empty(self._store):
            self._restore(self._mirror)
        if self.refresh().version == 0:
            # A lost race is fine: `append` has then read what the winner created.
            with contextlib.suppress(MetadataRaced):
                self.append([ClusterCreated(cluster_id=self._cluster_id)])
        return self._image

    def refresh(self) -> MetadataImage:
        """Reads the log again: for what others wrote, or after an append whose outcome is open.

        Raises as `load` does.
        """
        self._take_over(read_history(self._store, cluster_id=self._cluster_id))
        return self._image

    def catch_up(self) -> MetadataImage:
        """As `refresh`, for a log that somebody else writes: reads only what is new."""
        if self._image.version == 0:
            return self.refresh()
        known = Loaded(self._image, self._head_checksum, self._snapshot_version)
        try:
            self._take_over(read_entries(self._store, known))
        except CorruptFile:
            # Pruning has overtaken us, or it is damaged: the whole log says which.
            return self.refresh()
        return self._image

    def _take_over(self, loaded: Loaded) -> None:
        self._image = loaded.image
        self._head_checksum = loaded.head_checksum
        self._snapshot_version = loaded.snapshot_version

    def append(self, records: Sequence[MetadataRecord]) -> MetadataImage:
        """Makes the records durable as one entry, and returns the image after it.

        Raises MetadataRaced if the image they were decided on is no longer the newest. After any
        other StorageError the outcome is open; the next append finds out, by then losing the race
        to this one.
        """
        assert records, "an entry holds at least one record"
        self._check_store()
        # Fails before anything is written if the records do not fit: then we are wrong.
        image = self._image.apply_entry(records)
        content = encode_entry(
            records,
            index=image.version,
            cluster_id=image.cluster_id,
            previous=self._head_checksum,
            writer=new_write_id(),
        )
        try:
            self._store.put(metadata_log_key(image.version), content, condition=IfAbsent())  # 1
        except PreconditionFailed as error:
            self.refresh()
            raise MetadataRaced(
                f"metadata log entry {image.version} was written by somebody else"
            ) from error
        self._image = image  # 2
        self._head_checksum = entry_checksum(content)
        if image.version - self._snapshot_version >= self._snapshot_interval:
            self._make_snapshot()
        return image

    def mirror_once(self) -> int:
        """Copies what the mirror lacks; the entries it still lacks after that (appended meanwhile).

        Costs no request while nothing has changed. Raises MirrorDiverged, CorruptFile (the log is
        damaged, which must not spread), or TierError if a store cannot be reached. Without a mirror
        nothing happens.
        """
        if self._mirror is None:
            return 0
        with self._mirroring:
            return self._mirror_to(self._mirror)

    def claim_mirror(self) -> None:
        """Brings to the mirror what it lacks, after a look at its newest entry alone.

        Entries name the one before, so that one tells whose history it is. The first `mirror_once`
        reads all of it, for it has to be of use. Raises as `mirror_once`.
        """
        mirror = self._mirror
        if mirror is None:
            return
        with self._mirroring:
            first = self._first_to_claim(mirror)
            if first is None:
                self._mirror_to(mirror)
                return
            for index in range(first, self._image.version + 1):
                _copy(self._store, mirror, metadata_log_key(index))

    def _first_to_claim(self, mirror: ObjectStore) -> int | None:
        """The first of our entries that the mirror has to have, or to take; None: look closely."""
        found = indexes(mirror, METADATA_LOG_PREFIX, after=self._snapshot_version)
        if found:
            return found[-1] if found[-1] <= self._image.version else None
        if not self._snapshot_version:
            return None
        # A log that was restored begins with a snapshot, at the mirror's newest entry.
        with contextlib.suppress(ObjectNotFound):
            newest = mirror.get(metadata_log_key(self._snapshot_version))
            if entry_checksum(newest) == checksum_at(self._store, self._snapshot_version):
                return self._snapshot_version + 1
        return None

    def _mirror_to(self, mirror: ObjectStore) -> int:
        if (
            self._mirror_version == self._image.version
            and self._mirror_snapshot_version == self._snapshot_version
        ):
            return 0
        for attempt in range(1, LISTING_ATTEMPTS_MAX + 1):
            try:
                self._copy_to(mirror)
                break
            except ObjectNotFound:
                # A snapshot came in between and what was listed has been pruned: look again.
                if attempt == LISTING_ATTEMPTS_MAX:
                    raise
        # An append may be durable, and mirrored, before its image is current.
        return max(0, self._image.version - self._mirror_version)

    # --- snapshots ------------------------------------------------------------------------

    def _make_snapshot(self) -> None:
        version = self._image.version
        content = encode_snapshot(self._image, head_checksum=self._head_checksum)
        try:
            self._store.put(metadata_snapshot_key(version), content, condition=IfAbsent())  # 3
            self._snapshot_version = version
            prune(self._store)  # 4
        except PreconditionFailed:
            # Another broker was quicker: images of one version are equal.
            self._snapshot_version = version
        except StorageError as error:
            log.warning(
                "metadata snapshot not written, the log stays longer",
                extra={"fields": {"version": version, "error": str(error)}},
            )

    # --- the mirror -----------------------------------------------------------------------

    def _copy_to(self, mirror: ObjectStore) -> None:
        """Brings the mirror up to date, entries first: they are what could be lost."""
        if self._mirror_version < 0:
            self._mirror_version = self._check_mirror(mirror)
        mirrored = self._mirror_version
        snapshots = indexes(self._store, METADATA_SNAPSHOT_PREFIX)
        entries = indexes(self._store, METADATA_LOG_PREFIX, after=mirrored)
        if snapshots and snapshots[-1] > mirrored and entries[:1] != [mirrored + 1]:
            # Pruning has overtaken the mirror: it goes on from the newest snapshot.
            _copy(self._store, mirror, metadata_snapshot_key(snapshots[-1]))
            mirrored = self._mirror_version = snapshots[-1]
            entries = [index for index in entries if index > mirrored]
        for index in entries:
            if index != mirrored + 1:
                raise CorruptFile(
                    f"the metadata log in {self._store.url} has a gap:"
                    f" {metadata_log_key(mirrored + 1)} is missing"
                )
            _copy(self._store, mirror, metadata_log_key(index))
            mirrored = self._mirror_version = index
        self._copy_snapshots(mirror, [version for version in snapshots if version <= mirrored])

    def _copy_snapshots(self, mirror: ObjectStore, versions: Sequence[int]) -> None:
        in_mirror = set(indexes(mirror, METADATA_SNAPSHOT_PREFIX))
        # An older one than the mirror has would be pruned at once.
        missing = [v for v in versions if v > max(in_mirror, default=-1)]
        for version in missing:
            _copy(self._store, mirror, metadata_snapshot_key(version))
        if missing:
            prune(mirror)
        self._mirror_snapshot_version = versions[-1] if versions else 0

    def _check_mirror(self, mirror: ObjectStore) -> int:
        """The version that the mirror has. Raises MirrorDiverged unless it is a part of ours."""
        theirs = self._read_mirror(mirror)
        if theirs.image.version > self._image.version:
            raise MirrorTaken(
                f"the metadata in {mirror.url} is at entry {theirs.image.version}, the log in"
                f" {self._store.url} only at {self._image.version}: the log is an older copy."
                " Move its folder away to restore it from the mirror"
            )
        ours = checksum_at(self._store, theirs.image.version) if theirs.image.version else ""
        # Pruned here, and in no snapshot: the cluster id is all there is to compare.
        same = ours in ("", theirs.head_checksum)
        if not same:
            raise MirrorTaken(
                f"the metadata in {mirror.url} has another entry {theirs.image.version} than the"
                f" log in {self._store.url}: two brokers have written under one cluster id"
            )
        return theirs.image.version

    def _read_mirror(self, mirror: ObjectStore) -> Loaded:
        try:
            return read_history(mirror, cluster_id=self._cluster_id)
        except CorruptFile as error:
            raise MirrorDiverged(
                f"the mirror of the metadata log is not usable: {error}"
            ) from error

    def _restore(self, mirror: ObjectStore) -> None:
        """Gives the empty log what the mirror has, as one snapshot."""
        theirs = read_history(mirror, cluster_id=self._cluster_id)
        version = theirs.image.version
        if version == 0:
            return
        content = encode_snapshot(theirs.image, head_checksum=theirs.head_checksum)
        self._store.put(metadata_snapshot_key(version), content, condition=IfAbsent())
        log.warning(
            "metadata log restored from its mirror",
            extra={"fields": {"mirror": mirror.url, "version": version}},
        )


def _copy(source: ObjectStore, target: ObjectStore, key: str) -> None:
    """Copies one whole object, damage excluded.

    Raises CorruptFile, or MirrorDiverged if the target has another object under that name:
    MirrorTaken for an entry, which is written once and never changed.
    """
    content = source.get(key)
    check_document(content, key=key)
    try:
        target.put(key, content, condition=IfAbsent())
    except (PreconditionFailed, AccessDenied, StoreFull) as error:
        try:
            theirs = target.get(key)
        except ObjectNotFound:
            # A store that takes no writes refuses before it looks what is there.
            if not isinstance(error, PreconditionFailed):
                raise error from None
            raise
        if theirs != content:
            kind = MirrorTaken if key.startswith(METADATA_LOG_PREFIX) else MirrorDiverged
            raise kind(
                f"{key} in {target.url} is not the one in {source.url}: another history"
            ) from None

"""The ordered log of metadata, as immutable objects in an object store.

    metadata/log/00000000000000000041.json        one entry: records applied together
    metadata/log/00000000000000000042.json
    metadata/snapshot/00000000000000000040.json   the whole image after entry 40
    metadata/boundary                             the entries whose names pruning may have freed

    entry     {"format", "version", "cluster_id", "index", "offset", "epoch", "previous", "writer",
               "records": [...]}
    snapshot  {"format", "version", "cluster_id", "index", "offset", "epoch", "previous", "records"}
    boundary  {"format", "version", "index"}

The records are Kafka's: in Kafka's JSON, and in a snapshot, whose records make its image out of
nothing, as batches of bytes (log_format.py).
`offset` is the offset of the first one in Kafka's count, in a snapshot of the next one. `epoch` is
that of the controller that wrote the entry, where a process of its own did: each start has another.
`previous` is the checksum of the entry before (in a snapshot: of the entry it ends with), so a mix
of two histories is detected. `writer` is new for every attempt to append: two brokers never write
the same bytes, and a writer recognises its own entry after a lost answer.

An append creates the next name if absent. A broker that finds the name taken has lost the race,
reads the winner's entry, and decides again (`MetadataRaced`). So has one that was paused for so
long that the name had been taken and pruned: the boundary, which grows before names are deleted,
tells it afterwards. This is the whole consensus; it needs no clock.

    1 create entry n   2 read the boundary: it is below n   3 image n is current
    every SNAPSHOT_INTERVAL entries, or later, when they have more bytes than the last snapshot
    4 write a snapshot   5 raise the boundary   6 delete what two snapshots cover

The first append to a log of a release before Kafka's records converts it: a snapshot follows at
once. From 1 on that release refuses the log by the version of its format (old_records.py).

A crash after 1 loses the answer, not the entry. 4 to 6 only save time: their failure is logged,
and a later round repeats them. Loading reads the newest whole snapshot and all entries after it; a
missing or damaged entry is an error, because every image after it would be wrong (log_reader.py).

The mirror is a second store (the bucket, when the log itself lies on the local disk) that follows
at its own pace (mirror.py). An empty log is restored from a non-empty mirror, by one snapshot of
the mirror's image: a crash leaves all of it or nothing.

All calls block: run them in an executor. `append` may run beside `mirror_once`, but no call beside
itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from strandline.broker.cluster.metadata.features import first_levels
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.log_format import (
    encode_entry,
    encode_snapshot,
    entry_checksum,
)
from strandline.broker.cluster.metadata.log_reader import (
    NO_HISTORY,
    Loaded,
    counts,
    is_empty,
    prune,
    raise_boundary,
    read_entries,
    read_history,
    write_boundary,
)
from strandline.broker.cluster.metadata.mirror import MetadataMirror
from strandline.broker.protocol.formats.metadata_records import MetadataRecord, NoOpRecord
from strandline.storage.crash_points import (
    METADATA_AFTER_ENTRY,
    METADATA_AFTER_SNAPSHOT,
    crash_point,
)
from strandline.storage.errors import (
    CorruptFile,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    TierError,
)
from strandline.storage.model import Epoch, Offset
from strandline.storage.remote.keys import metadata_log_key, metadata_snapshot_key, new_unique
from strandline.storage.remote.object_store.interface import IfAbsent, ObjectStore

log = logging.getLogger(__name__)

# Entries between two snapshots: at least this many, and as many as have the bytes of a snapshot,
# whose encoding costs as much. Loading reads at most twice INTERVALS_MAX times as many, one by one:
# about a second from a disk, half a minute from a bucket.
SNAPSHOT_INTERVAL = 256
INTERVALS_MAX = 4
# Others run in between while a snapshot is encoded.
PAUSE_S = 0.001
# How often a reader starts over because pruning removed objects that it had just listed.
LISTING_ATTEMPTS_MAX = 3


class MetadataRaced(StorageError):
    """Another broker appended first; `MetadataLog.image` is up to date: decide again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogStatistics:
    """State of the log and its mirror. Versions are entry numbers; -1: mirror not yet reached.

    `mirror_deleted_count` counts objects that were found deleted in the mirror.
    """

    version: int
    snapshot_version: int
    mirror_version: int
    mirror_deleted_count: int

    @property
    def mirror_lag(self) -> int:
        """Returns how many entries would be lost with the local disk."""
        return self.version - max(self.mirror_version, 0)


class MetadataLog:
    """Owner of the metadata log: the current image, and the only way to append the next entry."""

    def __init__(
        self,
        store: ObjectStore,
        mirror: ObjectStore | None = None,
        *,
        cluster_id: str,
        snapshot_interval: int = SNAPSHOT_INTERVAL,
        intervals_max: int = INTERVALS_MAX,
        check_store: Callable[[], None] = lambda: None,
    ) -> None:
        """`cluster_id` is given to an empty log; any other log must belong to that cluster.

        `check_store` is called before each append; it raises StorageError if another broker may own
        the store by now.
        """
        self._store = store
        self._mirror_store = mirror
        self._mirror = (
            None if mirror is None else MetadataMirror(store, mirror, cluster_id=cluster_id)
        )
        self._cluster_id = cluster_id
        self._snapshot_interval = snapshot_interval
        self._intervals_max = intervals_max
        self._check_store = check_store
        self._loaded = NO_HISTORY
        # Serialises mirroring: a caller may have given up waiting for the previous one.
        self._mirroring = threading.Lock()

    @property
    def image(self) -> MetadataImage:
        """The newest image that this process has read or written."""
        return self._loaded.image

    def statistics(self) -> MetadataLogStatistics:
        return MetadataLogStatistics(
            version=self.image.version,
            snapshot_version=self._loaded.snapshot_version,
            mirror_version=-1 if self._mirror is None else self._mirror.version,
            mirror_deleted_count=0 if self._mirror is None else self._mirror.deleted_count,
        )

    def __repr__(self) -> str:
        return f"<MetadataLog {self.statistics()}>"

    @property
    def is_known_empty(self) -> bool:
        """Whether the log is known to be empty: only then the mirror is read. Blocks."""
        try:
            return is_empty(self._store)
        except TierError:
            return False

    def load(self) -> MetadataImage:
        """Reads the log, creating it if neither it nor the mirror has anything yet.

        Raises CorruptFile (an object is damaged or missing, or the log is another cluster's),
        UnsupportedFormat, or TierError if a store cannot be read. A mirror is only read while the
        log is empty.
        """
        if self._mirror_store is not None and is_empty(self._store):
            self.restore(
                read_history(self._mirror_store, cluster_id=self._cluster_id),
                self._mirror_store.url,
            )
        self.refresh()
        write_boundary(self._store)
        if self.image.version == 0:
            # A lost race is fine: `append` has then read the winner's entry.
            with contextlib.suppress(MetadataRaced):
                self.append(first_levels())
        return self.image

    def restore(self, found: Loaded, url: str) -> None:
        """Restores the empty log from the history in its mirror at `url`, as one snapshot.

        A process that was paused since the log was lost must not believe what it appends.
        """
        version = found.image.version
        if version == 0:
            return
        raise_boundary(self._store, version)
        content = encode_snapshot(found.image, head_checksum=found.head_checksum)
        self._store.put(metadata_snapshot_key(version), content, condition=IfAbsent())
        log.warning(
            "metadata log restored from its mirror",
            extra={"fields": {"mirror": url, "version": version}},
        )

    def refresh(self) -> MetadataImage:
        """Reads the log again: for entries of others, or after an append with unknown outcome.

        Raises as `load` does.
        """
        self._loaded = read_history(self._store, cluster_id=self._cluster_id)
        return self.image

    def catch_up(self) -> MetadataImage:
        """As `refresh`, for a log with another writer: reads only new entries."""
        if self.image.version == 0:
            return self.refresh()
        try:
            self._loaded = read_entries(self._store, self._loaded)
        except CorruptFile:
            # The next entry was pruned, or is damaged: reading the whole log tells which.
            return self.refresh()
        return self.image

    def begin_epoch(self) -> None:
        """Begins the epoch of a controller that others follow, by an entry of its own.

        Its records stand for the two control records with which Kafka's epochs begin. Raises
        MetadataRaced if another one did so at the same time, and as `append` does.
        """
        self.append([NoOpRecord(), NoOpRecord()], epoch=self.image.epoch + 1)

    def append(
        self,
        records: Sequence[MetadataRecord],
        *,
        epoch: Epoch | None = None,
        next_offset: Offset | None = None,
    ) -> tuple[MetadataDelta, MetadataImage]:
        """Writes the records durably as one entry; returns what it changed, and the image after it.

        Without an `epoch` that of the entry before goes on. `next_offset` is where the log of a
        cluster stands, whose records these are not (`broker/cluster/archive/`).

        Raises MetadataRaced if the image they were decided on is no longer the newest. After any
        other StorageError the outcome is unknown; the next append finds out, because it then loses
        the race to this one.
        """
        assert records, "an entry holds at least one record"
        self._check_store()
        # Fails before the write if the records do not fit: that is a bug of ours.
        before = self.image
        delta = MetadataDelta(before)
        delta.cluster_id = self._cluster_id
        delta.epoch = before.epoch if epoch is None else epoch
        delta.replay(records)
        if next_offset is not None:
            delta.next_offset = next_offset
        image = delta.image()
        content = encode_entry(
            records,
            before=before,
            epoch=image.epoch,
            cluster_id=self._cluster_id,
            previous=self._loaded.head_checksum,
            writer=new_unique(),
            next_offset=next_offset,
        )
        try:
            self._store.put(metadata_log_key(image.version), content, condition=IfAbsent())  # 1
        except PreconditionFailed:
            self._lose(image.version)
        crash_point(METADATA_AFTER_ENTRY)
        if not counts(self._store, image.version):  # 2
            self._lose(image.version)
        self._loaded = replace(  # 3
            self._loaded,
            image=image,
            head_checksum=entry_checksum(content),
            entry_bytes=self._loaded.entry_bytes + len(content),
        )
        if self._is_snapshot_due():
            self.make_snapshot()
        return delta, image

    def _is_snapshot_due(self) -> bool:
        loaded, interval = self._loaded, self._snapshot_interval
        entry_count = loaded.image.version - loaded.snapshot_version
        is_longer = loaded.entry_bytes >= loaded.snapshot_bytes
        return loaded.is_old or (
            entry_count >= interval and (is_longer or entry_count >= self._intervals_max * interval)
        )

    def _lose(self, version: int) -> NoReturn:
        self.refresh()
        raise MetadataRaced(f"metadata log entry {version} was written by another broker")

    def mirror_once(self) -> int:
        """Copies missing objects to the mirror; returns how many entries it still lacks.

        Sends no request while nothing has changed. Raises MirrorDiverged, CorruptFile (the log is
        damaged, which must not spread), or TierError if a store cannot be reached. Without a mirror
        it does nothing.
        """
        mirror = self._mirror
        if mirror is None:
            return 0
        with self._mirroring:
            known = mirror.version, mirror.snapshot_version
            if known != (self.image.version, self._loaded.snapshot_version):
                self._copy_missing(mirror)
            # An append may be durable, and mirrored, before its image is current.
            return max(0, self.image.version - mirror.version)

    def repair_mirror(self) -> None:
        """Restores objects that were deleted in the mirror by a third party.

        Raises as `mirror_once`.
        """
        if self._mirror is not None:
            with self._mirroring:
                self._copy_missing(self._mirror)

    def claim_mirror(self) -> None:
        """Copies missing objects to the mirror, after checking only its newest entry.

        The first `mirror_once` checks the whole mirror. Raises as `mirror_once`.
        """
        mirror = self._mirror
        if mirror is None:
            return
        with self._mirroring:
            if not mirror.copy_newer(self.image.version, self._loaded.snapshot_version):
                self._copy_missing(mirror)

    def _copy_missing(self, mirror: MetadataMirror) -> None:
        for attempt in range(1, LISTING_ATTEMPTS_MAX + 1):
            try:
                mirror.copy_missing(self.image.version)
                break
            except ObjectNotFound:
                # A new snapshot has pruned some of the listed objects: list again.
                if attempt == LISTING_ATTEMPTS_MAX:
                    raise

    # --- snapshots ------------------------------------------------------------------------

    def make_snapshot(self) -> None:
        """Writes a snapshot of the newest image, and deletes what two snapshots cover."""
        version = self.image.version
        content = encode_snapshot(
            self.image,
            head_checksum=self._loaded.head_checksum,
            # The other threads wait for the interpreter's lock meanwhile.
            pause=partial(threading.Event().wait, PAUSE_S),
        )
        written = replace(
            self._loaded,
            snapshot_version=version,
            is_old=False,
            snapshot_bytes=len(content),
            entry_bytes=0,
        )
        try:
            self._store.put(metadata_snapshot_key(version), content, condition=IfAbsent())  # 4
            self._loaded = written
            crash_point(METADATA_AFTER_SNAPSHOT)
            prune(self._store)  # 5, 6
        except PreconditionFailed:
            # Another broker was quicker: images of one version are equal.
            self._loaded = written
        except StorageError as error:
            log.warning(
                "metadata snapshot not written, the log stays longer",
                extra={"fields": {"version": version, "error": str(error)}},
            )

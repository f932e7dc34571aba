"""Compares the bucket with its manifests: finds orphans and missing objects.

    listed first          objects under topics/<topic>-<id>/<partition>/
    read afterwards       the partition's manifest and its pages
    orphan                listed, not referred to, and older than the grace time
    missing               referred to, not listed, and not found by a HEAD

The order makes a concurrent commit harmless: the manifest that is read refers to its objects. The
grace time has to be longer than a copy may take, so that an older uncommitted upload is never
committed (see copier).

The age of an object is the smaller one by the store's clock, which dated it, and by ours. If one
clock is wrong by hours, no object is deleted early.

Orphans come from uploads without a commit, pages of failed commits, interrupted purges, and write
probes of a start that were not deleted. Folders whose topic has a tombstone are left to the purge.
A partition whose manifest cannot be read has no orphans: its objects are not known.

A readable manifest may be an older one that was put over a newer one by mistake. Signs of that are
missing objects, and segments beyond its end, which a failed copy also leaves until its retry.
Objects of such a partition need a review before they are deleted. If the archive has continued from
there, objects with other records than the archive stay (`older_manifest.py`), and the other orphans
of the partition are deleted.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from enum import Enum

from strandline.storage.clock import Clock
from strandline.storage.errors import CorruptFile, ObjectNotFound, StorageError, UnsupportedFormat
from strandline.storage.model import TimestampMs, TopicIdPartition
from strandline.storage.remote.keys import (
    PROBE_PREFIX,
    TOPIC_FILE,
    TOPICS_PREFIX,
    TopicFolder,
    manifest_key,
    parse_partition_object,
    parse_topic_folder,
)
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import ManifestPages, load
from strandline.storage.remote.manifest.topic_info import load_topic_info
from strandline.storage.remote.object_store.interface import ObjectInfo, ObjectStore
from strandline.storage.tiering.audit.usage import Sum, topic_of
from strandline.storage.tiering.partition.older_manifest import (
    ArchivedEpochs,
    is_beyond,
    with_other_records,
)

log = logging.getLogger(__name__)

# A copy's default deadline is ten minutes; a day leaves room for a longer one.
GRACE_MS_DEFAULT = 24 * 3600 * 1000
# Partitions that are compared concurrently, if there is an executor.
PARALLEL_MAX = 16
# Listed objects of partitions that wait for their manifests: some 30 MB.
AHEAD_OBJECTS_MAX = 100_000


class OrphanReason(Enum):
    """Why an object is an orphan; the value is shown to operators."""

    NOT_IN_MANIFEST = "the manifest of its partition does not name it"
    OLDER_MANIFEST = "the manifest of its partition does not name it, and may be an older one"
    OTHER_RECORDS = "it has other records than the archive has there: a lost manifest may own it"
    NO_MANIFEST = "its partition has no manifest: the one that was lost may own it"
    NO_TOPIC = "its topic has no topic.json: the one that was lost may own it"
    UNKNOWN_NAME = "it has no name of ours"
    PROBE = "it tried the store out, and is not needed"


# Orphans that need no review: the manifest of a live partition was read and does not name the
# object, or no manifest ever names it. The others may be the remains after a manifest or a
# topic.json was lost.
SAFE_REASONS = frozenset({OrphanReason.NOT_IN_MANIFEST, OrphanReason.PROBE})
# Objects that a lost or overwritten manifest or topic.json may own.
OWNED_REASONS = frozenset(
    {
        OrphanReason.OLDER_MANIFEST,
        OrphanReason.OTHER_RECORDS,
        OrphanReason.NO_MANIFEST,
        OrphanReason.NO_TOPIC,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An object that no manifest refers to."""

    key: str
    size_bytes: int
    modified_ms: TimestampMs
    reason: OrphanReason


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadablePartition:
    """A partition that could not be compared."""

    partition: TopicIdPartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketComparison:
    """The result of `compare`. `missing_keys` are in a manifest and do not exist."""

    object_count: int
    orphans: tuple[Orphan, ...]
    missing_keys: tuple[str, ...]
    unreadable: tuple[UnreadablePartition, ...]
    # By topic, objects that wait for their deletion: marked in a manifest, or of a deleted topic.
    marked: Mapping[str, Sum]


def delete_orphans(store: ObjectStore, orphans: Sequence[Orphan]) -> None:
    """Deletes the found orphans; blocks. Raises what the store raises."""
    store.delete([orphan.key for orphan in orphans])


def time_of_both(store: ObjectStore, clock: Clock) -> TimestampMs:
    """Returns the earlier time of the store's clock and ours; blocks. Raises as the store does.

    A running upload would look old to a clock that is a day ahead.
    """
    return min(store.clock_ms(), clock.now_ms())


def delete_safe_orphans(store: ObjectStore, *, clock: Clock, grace_ms: int) -> int:
    """Deletes orphans that need no review; returns their number. Blocks. Raises as the store."""
    found = compare(store, now_ms=time_of_both(store, clock), grace_ms=grace_ms).orphans
    safe = [orphan for orphan in found if orphan.reason in SAFE_REASONS]
    delete_orphans(store, safe)
    others = [orphan.key for orphan in found if orphan.reason is OrphanReason.OTHER_RECORDS]
    if others:
        log.warning(
            "objects with other records than the archive stay until an operator deletes them",
            extra={"fields": {"objects": len(others), "first_key": others[0]}},
        )
    return len(safe)


def compare(
    store: ObjectStore,
    *,
    now_ms: TimestampMs,
    grace_ms: int = GRACE_MS_DEFAULT,
    topic: str | None = None,
    executor: Executor | None = None,
    on_objects: Callable[[int], None] = lambda _count: None,
) -> BucketComparison:
    """Compares every partition's folder with its manifest, of all topics or of one name.

    Blocks. Raises what the store raises. `now_ms` is a time of the store's own clock, see
    `time_of_both`; objects younger than `grace_ms` are no orphans. With an `executor` manifests are
    read during the listing. `on_objects` gets the number of further listed objects.
    """
    comparison = _Comparison(
        store, oldest_fresh_ms=now_ms - grace_ms, executor=executor, on_objects=on_objects
    )
    listed = store.list(TOPICS_PREFIX if topic is None else f"{TOPICS_PREFIX}{topic}-")
    for folder_name, objects in itertools.groupby(listed, key=_topic_folder_name):
        folder = parse_topic_folder(folder_name)
        if topic is None or (folder is not None and folder.topic == topic):
            comparison.compare_topic(folder_name, objects)
    comparison.finish()
    if topic is None:
        comparison.add_probes(store.list(PROBE_PREFIX))
    return BucketComparison(
        object_count=comparison.object_count,
        orphans=tuple(comparison.orphans),
        missing_keys=tuple(comparison.missing_keys),
        unreadable=tuple(comparison.unreadable),
        marked=comparison.marked,
    )


class _Comparison:
    """One run over the bucket.

    It holds the keys of one partition; with an executor those of PARALLEL_MAX, and at most
    AHEAD_OBJECTS_MAX besides the last partition's.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        oldest_fresh_ms: TimestampMs,
        executor: Executor | None,
        on_objects: Callable[[int], None],
    ) -> None:
        self._store = store
        self._executor = executor
        self._on_objects = on_objects
        # Running comparisons with the number of their objects, oldest first.
        self._under_way: deque[tuple[int, Future[_Compared]]] = deque()
        self._pages = ManifestPages(store, pages_max=1)
        self._oldest_fresh_ms = oldest_fresh_ms
        self.object_count = 0
        self.orphans: list[Orphan] = []
        self.missing_keys: list[str] = []
        self.unreadable: list[UnreadablePartition] = []
        self.marked: dict[str, Sum] = {}

    def compare_topic(self, folder_name: str, objects: Iterator[ObjectInfo]) -> None:
        folder = parse_topic_folder(folder_name)
        verdict = _TopicVerdict.UNKNOWN if folder is None else self._judge_topic(folder)
        groups = itertools.groupby(objects, key=_partition_of)
        for partition, group in groups:
            listed = list(group)
            self.object_count += len(listed)
            self._on_objects(len(listed))
            if verdict is _TopicVerdict.DELETED:
                self._add_marked(listed)
                continue
            if verdict is _TopicVerdict.UNKNOWN:
                self._take(_Compared(spare=listed, reason=OrphanReason.UNKNOWN_NAME))
            elif partition is None:
                strange = [info for info in listed if not info.key.endswith("/" + TOPIC_FILE)]
                self._take(_Compared(spare=strange, reason=OrphanReason.UNKNOWN_NAME))
            elif verdict is _TopicVerdict.ABSENT:
                self._take(_Compared(spare=listed, reason=OrphanReason.NO_TOPIC))
            else:
                self._begin(partition, listed)

    def _begin(self, partition: TopicIdPartition, listed: list[ObjectInfo]) -> None:
        """Compares one partition, now or during the listing."""
        if self._executor is None:
            self._take(self._compare_partition(partition, listed))
            return
        compared = self._executor.submit(self._compare_partition, partition, listed)
        self._under_way.append((len(listed), compared))
        while (
            len(self._under_way) > PARALLEL_MAX
            or sum(count for count, _ in self._under_way) > AHEAD_OBJECTS_MAX
        ):
            self._take(self._under_way.popleft()[1].result())

    def finish(self) -> None:
        """Waits for the running comparisons."""
        while self._under_way:
            self._take(self._under_way.popleft()[1].result())

    def add_probes(self, listed: Iterator[ObjectInfo]) -> None:
        """Adds write probes of a start that were not deleted."""
        probes = list(listed)
        self.object_count += len(probes)
        self._take(_Compared(spare=probes, reason=OrphanReason.PROBE))

    def _judge_topic(self, folder: TopicFolder) -> _TopicVerdict:
        try:
            info = load_topic_info(self._store, folder.topic, folder.topic_id)
        except (CorruptFile, UnsupportedFormat) as error:
            log.warning(
                "topic.json is unreadable, its topic counts as live",
                extra={"fields": {"topic": folder.topic, "reason": str(error)}},
            )
            return _TopicVerdict.LIVE
        if info is None:
            return _TopicVerdict.ABSENT
        return _TopicVerdict.DELETED if info.is_deleted else _TopicVerdict.LIVE

    def _compare_partition(
        self, partition: TopicIdPartition, listed: list[ObjectInfo]
    ) -> _Compared:
        try:
            referred = self._referred_keys(partition)
        except StorageError as error:
            return _Compared(unreadable=UnreadablePartition(partition=partition, reason=str(error)))
        if referred is None:
            return _Compared(spare=listed, reason=OrphanReason.NO_MANIFEST)
        named = referred.needed | referred.marked
        marked = [info for info in listed if info.key in referred.marked - referred.needed]
        spare = [info for info in listed if info.key not in named]
        unseen = referred.needed.difference(info.key for info in listed)
        missing = [key for key in sorted(unseen) if not self._exists(key)]
        if missing or any(is_beyond(info.key, referred.manifest) for info in spare):
            reason = OrphanReason.OLDER_MANIFEST
            return _Compared(spare=spare, reason=reason, missing_keys=missing, marked=marked)
        try:
            other = with_other_records(
                self._store,
                [info for info in spare if self._is_old(info)],
                referred.manifest,
                referred.epochs,
            )
        except StorageError as error:
            return _Compared(unreadable=UnreadablePartition(partition=partition, reason=str(error)))
        return _Compared(spare=spare, of_other_records=other, marked=marked)

    def _referred_keys(self, partition: TopicIdPartition) -> _ReferredKeys | None:
        """Returns every key that the manifest refers to; None without a manifest."""
        stored = load(self._store, partition)
        if stored is None:
            return None
        manifest = stored.manifest
        needed, epochs = {manifest_key(partition)}, ArchivedEpochs()
        needed.update(page.key for page in manifest.pages)
        needed.update(part.key for part in manifest.tail)
        for entry in self._pages.iter_segments(manifest):
            needed.update((entry.log_key, entry.meta_key))
            epochs.add(entry)
        marked = {key for mark in manifest.deleting for key in mark.keys}
        return _ReferredKeys(manifest=manifest, needed=needed, marked=marked, epochs=epochs)

    def _exists(self, key: str) -> bool:
        """Asks by name, since the listing may not have a recent object."""
        try:
            self._store.head(key)
        except ObjectNotFound:
            return False
        return True

    def _add_marked(self, objects: Iterable[ObjectInfo]) -> None:
        for info in objects:
            self.marked.setdefault(topic_of(info.key), Sum()).add(info.size_bytes)

    def _take(self, found: _Compared) -> None:
        self._add_marked(found.marked)
        self.missing_keys.extend(found.missing_keys)
        if found.unreadable is not None:
            self.unreadable.append(found.unreadable)
        self.orphans.extend(
            Orphan(
                key=info.key,
                size_bytes=info.size_bytes,
                modified_ms=info.modified_ms,
                reason=OrphanReason.OTHER_RECORDS
                if info.key in found.of_other_records
                else found.reason,
            )
            for info in found.spare
            if self._is_old(info)
        )

    def _is_old(self, info: ObjectInfo) -> bool:
        # An object without a time may be new.
        return 0 <= info.modified_ms <= self._oldest_fresh_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """The result of comparing one partition, or objects of no partition."""

    spare: Sequence[ObjectInfo] = ()
    reason: OrphanReason = OrphanReason.NOT_IN_MANIFEST
    # Keys in `spare` with OrphanReason.OTHER_RECORDS in place of `reason`.
    of_other_records: frozenset[str] = frozenset()
    missing_keys: Sequence[str] = ()
    # Objects that its manifest marks for deletion.
    marked: Sequence[ObjectInfo] = ()
    unreadable: UnreadablePartition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReferredKeys:
    """The keys that a manifest needs, and those it marks for deletion, which may be gone."""

    manifest: Manifest
    needed: set[str]
    marked: set[str]
    epochs: ArchivedEpochs


class _TopicVerdict(Enum):
    LIVE = "live"
    DELETED = "deleted"
    ABSENT = "absent"
    UNKNOWN = "unknown"


def _topic_folder_name(info: ObjectInfo) -> str:
    return info.key[len(TOPICS_PREFIX) :].partition("/")[0]


def _partition_of(info: ObjectInfo) -> TopicIdPartition | None:
    parsed = parse_partition_object(info.key)
    return None if parsed is None else parsed.partition

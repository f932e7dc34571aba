"""Reads, salvages and prunes the metadata log that one store holds.

A history is the newest complete snapshot and all entries after it (see metadata_log.py). The log
and its mirror are read alike.

If a mirror is damaged or has lost objects, a restore takes what precedes the damage:

    1  2  3  4  5  .  .  8  9        the image after 5, numbered 9 from then on

The next entry is 10 and names the existing 9 as its predecessor: no name is used twice, and a
broker that has 6 and 7 on its disk detects that the log has a second writer.

Pruning frees names, and a writer that was paused meanwhile could create one of them again. So
`metadata/boundary` says which names may be free. It is raised before they are deleted, and only
grows; what was created or read counts only if the boundary, read afterwards, lies below it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.log_format import (
    NO_ENTRY_CHECKSUM,
    Entry,
    cluster_id_of,
    decode_boundary,
    decode_entry,
    decode_snapshot,
    encode_boundary,
    entry_checksum,
)
from strandline.storage.crash_points import METADATA_AFTER_BOUNDARY, crash_point
from strandline.storage.errors import (
    CorruptFile,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
)
from strandline.storage.remote.keys import (
    CLUSTER_KEY,
    GROUPS_PREFIX,
    METADATA_BOUNDARY_KEY,
    METADATA_LOG_PREFIX,
    METADATA_PREFIX,
    METADATA_SNAPSHOT_PREFIX,
    TOPICS_PREFIX,
    metadata_log_key,
    metadata_snapshot_key,
    parse_metadata_key,
)
from strandline.storage.remote.manifest import change_list
from strandline.storage.remote.manifest.cluster_info import load_cluster_info
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectStore,
    PutCondition,
)

log = logging.getLogger(__name__)

# The newest, and one in reserve in case the newest is damaged.
SNAPSHOTS_KEPT = 2
# More entries than any cluster writes: a list of changes that claims more is not trusted.
ENTRIES_MAX = 10**12
# More records than one entry has: a start has one for each partition.
RECORDS_PER_ENTRY_MAX = 10**6
# How often somebody else may prune while a history is read, or raise the boundary first: pruning
# comes once in a snapshot interval.
PRUNED_MEANWHILE_MAX = 3


class NamesFreed(CorruptFile):
    """Pruning may have freed the names of entries that were to be read."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A history up to its newest entry: the image and the checksum of that entry."""

    image: MetadataImage
    head_checksum: str
    snapshot_version: int
    # Whether a release before Kafka's records wrote the snapshot, or an entry after it.
    is_old: bool = False
    # Bytes of the snapshot, and of the entries after it.
    snapshot_bytes: int = 0
    entry_bytes: int = 0


NO_HISTORY = Loaded(MetadataImage(), NO_ENTRY_CHECKSUM, 0)


def read_history(store: ObjectStore, *, cluster_id: str) -> Loaded:
    """Returns the newest image in `store`; version 0 if there is none.

    Raises CorruptFile (damaged, missing, or another cluster's), UnsupportedFormat, or TierError.
    """
    for attempt in range(1, PRUNED_MEANWHILE_MAX + 1):
        try:
            loaded = read_entries(store, _read_snapshot(store))
            break
        except (NamesFreed, ObjectNotFound):
            if attempt == PRUNED_MEANWHILE_MAX:
                raise
    _check_cluster(store, loaded.image, cluster_id)
    return loaded


def _check_cluster(store: ObjectStore, image: MetadataImage, cluster_id: str) -> None:
    if image.version and image.cluster_id != cluster_id:
        raise CorruptFile(
            f"the metadata in {store.url} belongs to cluster {image.cluster_id},"
            f" this is cluster {cluster_id}"
        )


@dataclass(frozen=True, slots=True)
class SalvagedMetadata:
    """The usable part of a mirror. `damage` describes its damage; empty if it is intact."""

    loaded: Loaded
    damage: str
    # The entry that the image belongs to; `loaded` may have a higher number.
    entry: int


def cluster_id_or_damage(store: ObjectStore) -> tuple[str, str]:
    """Returns the cluster id of the archive (empty for a new one) and the fault of `cluster.json`.

    Without a readable `cluster.json` the metadata tell the id. Raises UnsupportedFormat, TierError,
    and CorruptFile if neither is readable.
    """
    try:
        info = load_cluster_info(store)
    except (CorruptFile, ObjectCorrupt) as error:
        found, fault = cluster_of(store), str(error)
        if not found:
            raise
    else:
        if info is not None:
            return info.cluster_id, ""
        found, fault = cluster_of(store), f"{CLUSTER_KEY} is missing"
    return found, f"{fault}: by the metadata it is the archive of cluster {found}" if found else ""


def salvage_history(store: ObjectStore, *, cluster_id: str) -> SalvagedMetadata:
    """Reads a mirror, or the part of it that precedes the first damaged or lost object.

    Raises CorruptFile if it is another cluster's, UnsupportedFormat, or TierError.
    """
    noted = _noted_version(store)
    try:
        loaded = read_history(store, cluster_id=cluster_id)
        damage = _shortness(store, loaded.image.version, noted)
    except (CorruptFile, ObjectCorrupt) as error:
        loaded, damage = _before_damage(store), str(error)
        _check_cluster(store, loaded.image, cluster_id)
    entry = loaded.image.version
    if damage:
        newest = max(indexes(store, METADATA_PREFIX), default=0)
        newest = max(newest, _freed_through_if_readable(store))
        loaded = _numbered(store, loaded, cluster_id, max(noted, newest))
    return SalvagedMetadata(loaded, damage, entry)


def _noted_version(store: ObjectStore) -> int:
    """Returns the mirror's newest entry as noted in the lists of changes; 0 if it is unknown."""
    noted = (found.metadata_version for found in change_list.load_all(store).values())
    return max((one for one in noted if one <= ENTRIES_MAX), default=0)


def _shortness(store: ObjectStore, version: int, noted: int) -> str:
    """Describes the entries missing at the end; a new archive has none yet."""
    if not version and (noted or any(_has_any(store, p) for p in (TOPICS_PREFIX, GROUPS_PREFIX))):
        return f"{METADATA_PREFIX} holds no metadata of the cluster: they were deleted"
    if version < noted:
        return (
            f"{METADATA_PREFIX} ends with entry {version}, and had entry {noted}: what came after"
            " it was deleted"
        )
    return ""


def _has_any(store: ObjectStore, prefix: str) -> bool:
    return next(iter(store.list(prefix, limit=1)), None) is not None


def _before_damage(store: ObjectStore) -> Loaded:
    found = NO_HISTORY
    with contextlib.suppress(CorruptFile, ObjectCorrupt, ObjectNotFound):
        found = _read_snapshot(store)
        for entry, head_checksum, _ in _entries_after(store, found):
            delta = MetadataDelta(found.image)
            entry.replay(delta)
            found = replace(found, image=delta.image(), head_checksum=head_checksum)
    return found


def _numbered(store: ObjectStore, loaded: Loaded, cluster_id: str, version: int) -> Loaded:
    """Renumbers the history to the newest object that exists, or existed."""
    if not version:
        return loaded
    # Epochs of brokers are offsets, and those of lost entries are not given twice.
    lost = min(version - loaded.image.version, ENTRIES_MAX) * RECORDS_PER_ENTRY_MAX
    image = replace(
        loaded.image,
        version=version,
        next_offset=loaded.image.next_offset + lost,
        cluster_id=cluster_id,
    )
    head_checksum = ""
    with contextlib.suppress(CorruptFile, ObjectCorrupt):
        head_checksum = checksum_at(store, version)
    return replace(loaded, image=image, head_checksum=head_checksum)


def cluster_of(store: ObjectStore) -> str:
    """Returns the cluster id in the newest readable metadata object; empty if there is none.

    Raises UnsupportedFormat, TierError.
    """
    for prefix in (METADATA_SNAPSHOT_PREFIX, METADATA_LOG_PREFIX):
        for index in reversed(indexes(store, prefix)):
            key = f"{prefix}{index:020d}.json"
            with contextlib.suppress(CorruptFile, ObjectCorrupt, ObjectNotFound):
                return cluster_id_of(store.get(key), key=key)
    return ""


def _read_snapshot(store: ObjectStore) -> Loaded:
    versions = indexes(store, METADATA_SNAPSHOT_PREFIX)
    damage: CorruptFile | ObjectNotFound | None = None
    for version in reversed(versions):
        key = metadata_snapshot_key(version)
        try:
            content = store.get(key)
            snapshot = decode_snapshot(content, key=key, index=version)
        except ObjectNotFound as error:
            # Pruned since the listing.
            damage = damage or error
            continue
        except CorruptFile as error:
            # The entries since the snapshot before it are kept for this case.
            log.warning(
                "metadata snapshot damaged, trying the one before",
                extra={"fields": {"key": key, "error": str(error)}},
            )
            damage = damage or error
            continue
        head, is_old = snapshot.head_checksum, snapshot.is_old
        return Loaded(snapshot.image, head, version, is_old, snapshot_bytes=len(content))
    first = next(iter(indexes(store, METADATA_LOG_PREFIX, limit=1)), 1)
    if damage is not None and first != 1:
        raise damage
    return NO_HISTORY


def read_entries(store: ObjectStore, start: Loaded) -> Loaded:
    """Reads the entries after `start`. Raises NamesFreed if pruning may have freed their names.

    Reads them by name: a listing may lag, and only shows whether an entry in between is missing.
    """
    try:
        entries = list(_entries_after(store, start))
    except CorruptFile:
        _check_not_freed(store, start)
        raise
    if entries or start is NO_HISTORY:
        _check_not_freed(store, start)
    delta, head_checksum = MetadataDelta(start.image), start.head_checksum
    for entry, checksum, _ in entries:
        entry.replay(delta)
        head_checksum = checksum
    return replace(
        start,
        image=delta.image(),
        head_checksum=head_checksum,
        is_old=start.is_old or any(entry.old for entry, *_ in entries),
        entry_bytes=start.entry_bytes + sum(size_bytes for *_, size_bytes in entries),
    )


def _check_not_freed(store: ObjectStore, start: Loaded) -> None:
    freed_through = _freed_through_if_readable(store)
    if freed_through > start.image.version:
        raise NamesFreed(
            f"the metadata log in {store.url} was pruned up to entry {freed_through}, but its"
            f" newest snapshot is {start.image.version}: some are missing; restore them from a copy"
        )


def _entries_after(store: ObjectStore, start: Loaded) -> Iterator[tuple[Entry, str, int]]:
    """Yields each entry, its checksum and its bytes.

    Raises CorruptFile at a damaged or missing one.
    """
    head_checksum = start.head_checksum
    index = start.image.version
    while (content := _read_entry(store, index + 1)) is not None:
        index += 1
        key = metadata_log_key(index)
        entry = decode_entry(content, key=key, index=index)
        if entry.previous != head_checksum:
            raise CorruptFile(
                f"{key}: does not follow the entry before it; it belongs to another history"
            )
        head_checksum = entry_checksum(content)
        yield entry, head_checksum, len(content)


def _read_entry(store: ObjectStore, index: int) -> bytes | None:
    """Returns None behind the end of the log. Raises CorruptFile if an earlier entry is lost."""
    key = metadata_log_key(index)
    with contextlib.suppress(ObjectNotFound):
        return store.get(key)
    later = next(iter(indexes(store, METADATA_LOG_PREFIX, after=index - 1, limit=1)), None)
    if later is None:
        return None
    # The entry may have been written after the first read.
    with contextlib.suppress(ObjectNotFound):
        return store.get(key)
    raise CorruptFile(
        f"the metadata log in {store.url} has a gap: {key} is missing,"
        f" {metadata_log_key(later)} is there; restore it from a copy"
    )


def checksum_at(store: ObjectStore, version: int) -> str:
    """Returns the checksum of an entry, also of a pruned one if a snapshot has it; else empty."""
    with contextlib.suppress(ObjectNotFound):
        return entry_checksum(store.get(metadata_log_key(version)))
    key = metadata_snapshot_key(version)
    with contextlib.suppress(ObjectNotFound):
        return decode_snapshot(store.get(key), key=key, index=version).head_checksum
    return ""


def is_empty(store: ObjectStore) -> bool:
    """Whether a store holds no entry and no snapshot of a metadata log. Raises StorageError."""
    return not any(
        indexes(store, prefix, limit=1)
        for prefix in (METADATA_LOG_PREFIX, METADATA_SNAPSHOT_PREFIX)
    )


def indexes(
    store: ObjectStore, prefix: str, *, after: int = -1, limit: int | None = None
) -> list[int]:
    """Returns the numbers of the objects under `prefix`, ascending; skips foreign names."""
    start_after = f"{prefix}{after:020d}.json" if after >= 0 else ""
    found = (
        parse_metadata_key(info.key)
        for info in store.list(prefix, start_after=start_after, limit=limit)
    )
    return sorted(index for index in found if index is not None)


def prune(store: ObjectStore) -> None:
    """Deletes all but the newest snapshots, and the entries that the oldest kept one covers.

        1 raise the boundary   2 delete

    A crash in between leaves too much, which the next pruning deletes.
    """
    versions = indexes(store, METADATA_SNAPSHOT_PREFIX)
    superfluous = [metadata_snapshot_key(version) for version in versions[:-SNAPSHOTS_KEPT]]
    first = first_kept(versions)
    raise_boundary(store, first - 1)  # 1
    crash_point(METADATA_AFTER_BOUNDARY)
    superfluous += [
        metadata_log_key(index) for index in indexes(store, METADATA_LOG_PREFIX) if index < first
    ]
    if superfluous:
        store.delete(superfluous)  # 2


def first_kept(snapshots: Sequence[int]) -> int:
    """Returns the first entry that is needed beside these snapshots.

    The entry that a snapshot ends with stays: the mirror check compares it.
    """
    return snapshots[-SNAPSHOTS_KEPT] if len(snapshots) >= SNAPSHOTS_KEPT else 1


# --- the boundary ------------------------------------------------------------------------------


def freed_through(store: ObjectStore) -> int:
    """Returns the last entry whose name may be free again; 0 if none was ever pruned.

    Raises CorruptFile, ObjectCorrupt, UnsupportedFormat, or TierError.
    """
    try:
        return decode_boundary(store.get(METADATA_BOUNDARY_KEY))
    except ObjectNotFound:
        return 0


def _freed_through_if_readable(store: ObjectStore) -> int:
    """As `freed_through`; 0 if it is damaged: its writer repairs it, see `counts`."""
    with contextlib.suppress(CorruptFile, ObjectCorrupt):
        return freed_through(store)
    return 0


def counts(store: ObjectStore, index: int) -> bool:
    """Whether an entry that was created before this call is the first one of its name.

    If not, its name may have been freed by pruning, and the log has another entry of this number.
    Repairs a damaged boundary. Raises UnsupportedFormat, or TierError.
    """
    try:
        return freed_through(store) < index
    except (CorruptFile, ObjectCorrupt):
        write_boundary(store)
        return freed_through(store) < index


def write_boundary(store: ObjectStore) -> None:
    """Writes a boundary that is missing or damaged; logs of older releases have none.

    Raises as `raise_boundary`.
    """
    raise_boundary(store, first_kept(indexes(store, METADATA_SNAPSHOT_PREFIX)) - 1)


def raise_boundary(store: ObjectStore, index: int) -> None:
    """Raises the boundary to `index`, if it is lower, missing or damaged.

    Raises UnsupportedFormat, or TierError.
    """
    for attempt in range(1, PRUNED_MEANWHILE_MAX + 1):
        condition: PutCondition = IfAbsent()
        with contextlib.suppress(ObjectNotFound, CorruptFile, ObjectCorrupt):
            condition = IfMatches(store.head(METADATA_BOUNDARY_KEY).etag)
            if freed_through(store) >= index:
                return
        try:
            store.put(METADATA_BOUNDARY_KEY, encode_boundary(index), condition=condition)
            return
        except PreconditionFailed:
            if attempt == PRUNED_MEANWHILE_MAX:
                raise

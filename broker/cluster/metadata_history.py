"""What one store holds of the metadata log: reading it, and letting go of what is superfluous.

The newest whole snapshot, and all entries after it; metadata_log.py says what they are. The log and
its mirror are read alike.
"""

from __future__ import annotations

import contextlib
import logging

from strandline.broker.cluster.image import MetadataImage, replay
from strandline.broker.cluster.metadata_documents import (
    NO_ENTRY_CHECKSUM,
    decode_entry,
    decode_snapshot,
    entry_checksum,
)
from strandline.broker.cluster.records import MetadataRecord
from strandline.storage.errors import CorruptFile, ObjectNotFound
from strandline.storage.remote.keys import (
    METADATA_LOG_PREFIX,
    METADATA_SNAPSHOT_PREFIX,
    metadata_log_key,
    metadata_snapshot_key,
    parse_metadata_key,
)
from strandline.storage.remote.object_store import ObjectStore
from strandline.storage.values import dataclass

log = logging.getLogger(__name__)

# The newest and one in reserve, should the newest turn out damaged.
SNAPSHOTS_KEPT = 2


@dataclass(frozen=True, slots=True)
class Loaded:
    """A history up to its newest entry."""

    image: MetadataImage
    head_checksum: str
    snapshot_version: int


def read_history(store: ObjectStore, *, cluster_id: str) -> Loaded:
    """The newest image in `store`; version 0 if there is none.

    Raises CorruptFile (damaged, missing, or another cluster's), UnsupportedFormat, or TierError.
    """
    start = _read_snapshot(store)
    loaded = read_entries(store, start)
    if loaded.image.version and loaded.image.cluster_id != cluster_id:
        raise CorruptFile(
            f"the metadata in {store.url} belongs to cluster {loaded.image.cluster_id},"
            f" this is cluster {cluster_id}"
        )
    return loaded


def _read_snapshot(store: ObjectStore) -> Loaded:
    versions = indexes(store, METADATA_SNAPSHOT_PREFIX)
    damage: CorruptFile | ObjectNotFound | None = None
    for version in reversed(versions):
        key = metadata_snapshot_key(version)
        try:
            snapshot = decode_snapshot(store.get(key), key=key, index=version)
        except ObjectNotFound as error:
            # Pruned, and still listed.
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
        return Loaded(snapshot.image, snapshot.head_checksum, version)
    first = next(iter(indexes(store, METADATA_LOG_PREFIX, limit=1)), 1)
    if damage is not None and first != 1:
        raise damage
    return Loaded(MetadataImage(), NO_ENTRY_CHECKSUM, 0)


def read_entries(store: ObjectStore, start: Loaded) -> Loaded:
    """What follows `start`.

    By their names: a listing may lag, and only says whether one is missing between.
    """
    entries: list[tuple[MetadataRecord, ...]] = []
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
        entries.append(entry.records)
    return Loaded(replay(start.image, entries), head_checksum, start.snapshot_version)


def _read_entry(store: ObjectStore, index: int) -> bytes | None:
    """None behind the end of the log. Raises CorruptFile if it is lost before the end."""
    key = metadata_log_key(index)
    with contextlib.suppress(ObjectNotFound):
        return store.get(key)
    later = next(iter(indexes(store, METADATA_LOG_PREFIX, after=index - 1, limit=1)), None)
    if later is None:
        return None
    # It may have come after the look at it.
    with contextlib.suppress(ObjectNotFound):
        return store.get(key)
    raise CorruptFile(
        f"the metadata log in {store.url} has a gap: {key} is missing,"
        f" {metadata_log_key(later)} is there; restore it from a copy"
    )


def checksum_at(store: ObjectStore, version: int) -> str:
    """That of an entry, which may be pruned; empty if a snapshot does not tell it either."""
    with contextlib.suppress(ObjectNotFound):
        return entry_checksum(store.get(metadata_log_key(version)))
    key = metadata_snapshot_key(version)
    with contextlib.suppress(ObjectNotFound):
        return decode_snapshot(store.get(key), key=key, index=version).head_checksum
    return ""


def is_empty(store: ObjectStore) -> bool:
    """Whether a store has nothing of a metadata log, entry or snapshot. Raises StorageError."""
    return not any(
        indexes(store, prefix, limit=1)
        for prefix in (METADATA_LOG_PREFIX, METADATA_SNAPSHOT_PREFIX)
    )


def indexes(
    store: ObjectStore, prefix: str, *, after: int = -1, limit: int | None = None
) -> list[int]:
    """Numbers of the objects under `prefix`, ascending; names that are not ours left out."""
    start_after = f"{prefix}{after:020d}.json" if after >= 0 else ""
    found = (
        parse_metadata_key(info.key)
        for info in store.list(prefix, start_after=start_after, limit=limit)
    )
    return sorted(index for index in found if index is not None)


def prune(store: ObjectStore) -> None:
    """Deletes all but the newest snapshots, and the entries that the oldest kept one covers."""
    versions = indexes(store, METADATA_SNAPSHOT_PREFIX)
    superfluous = [metadata_snapshot_key(version) for version in versions[:-SNAPSHOTS_KEPT]]
    if len(versions) >= SNAPSHOTS_KEPT:
        oldest_kept = versions[-SNAPSHOTS_KEPT]
        # The entry that the snapshot ends with stays: the mirror check compares it.
        superfluous += [
            metadata_log_key(index)
            for index in indexes(store, METADATA_LOG_PREFIX)
            if index < oldest_kept
        ]
    if superfluous:
        store.delete(superfluous)

"""Rebuilds the `.meta` of an archived segment from the segment itself.

    1 read the segment once, every batch checked
    2 put a new .meta, under a name never used before          crash point repair.after-meta
    3 commit the manifest with it, by compare-and-swap; the    crash point repair.after-commit
      old object is marked for deletion

A crash after 2 leaves an orphan. If a broker or another repair commits in between, this one starts
over with the new manifest. A `.meta` that the manifest no longer names needs no repair: the segment
was merged, compacted, deleted or repaired meanwhile.

Only segments without transactions can be repaired, since the segment does not show all aborted
ones. It does not have the producers either; only a restore needs those, of the last segment, and it
reports their absence.

A damaged piece of the open segment cannot be rebuilt: `drop_pieces` removes it from the archive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strandline.storage.clock import Clock
from strandline.storage.crash_points import REPAIR_AFTER_COMMIT, REPAIR_AFTER_META, crash_point
from strandline.storage.errors import ManifestFenced, ObjectCorrupt, ObjectNotFound
from strandline.storage.model import Offset, TopicIdPartition
from strandline.storage.remote.keys import manifest_key, new_unique, segment_keys
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import ManifestPages
from strandline.storage.remote.object_store.interface import ObjectStore, checksum
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.tiering.audit.segment_download import SegmentDownloads
from strandline.storage.tiering.copy.inspection import Offsets, inspect_segment
from strandline.storage.tiering.copy.segment_sections import sections_of

# A busy partition commits every few seconds, and a repair downloads a segment meanwhile.
ATTEMPTS_MAX = 10


def drop_pieces(
    store: ObjectStore, partition: TopicIdPartition, *, damaged_key: str, clock: Clock
) -> bool:
    """Removes a damaged piece of the open segment and all later ones from the manifest; blocks.

    For the loss of both the piece and the disk: their records are lost, and the log continues after
    the kept pieces. A broker that has the records uploads them again. Returns False if the manifest
    does not name the piece any more.

    Raises ManifestFenced if others committed meanwhile every time, and what the store raises.
    """

    def without(manifest: Manifest) -> Manifest | None:
        keys = [part.key for part in manifest.tail]
        if damaged_key not in keys:
            return None
        kept = manifest.tail[: keys.index(damaged_key)]
        return manifest.with_tail(kept, marked_ms=clock.now_ms())

    return _commit(store, partition, without)


def _commit(
    store: ObjectStore,
    partition: TopicIdPartition,
    change: Callable[[Manifest], Manifest | None],
) -> bool:
    """Applies `change` to the newest manifest and commits the result; False if that is None.

    Raises ManifestFenced if others committed meanwhile every time.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        stored = manifest_store.load(store, partition)
        if stored is None:
            raise ObjectNotFound(manifest_key(partition), "repair", "no manifest")
        new = change(stored.manifest)
        if new is None:
            return False
        try:
            manifest_store.commit(store, stored, new)
        except ManifestFenced:
            if attempt == ATTEMPTS_MAX:
                raise
            continue
        return True
    raise AssertionError("the last attempt returns or raises")


def repair_meta(
    store: ObjectStore,
    partition: TopicIdPartition,
    base_offset: Offset,
    *,
    damaged_key: str,
    clock: Clock,
) -> str | None:
    """Rebuilds the `.meta` of the segment at `base_offset`; returns the new key. Blocks.

    Returns None if no segment has `damaged_key` any more. Raises ObjectCorrupt if the segment is
    damaged too, ManifestFenced if others committed meanwhile every time, and what the store raises.
    """
    made: SegmentEntry | None = None

    def repaired(manifest: Manifest) -> Manifest | None:
        nonlocal made
        old = ManifestPages(store, pages_max=1).find(manifest, base_offset)
        if old is None or old.meta_key != damaged_key:
            return None
        if old.has_transactions:
            raise ObjectCorrupt(
                damaged_key, "repair", "which transactions were aborted is not in the segment alone"
            )
        if made is None:
            made = _with_new_meta(store, partition, old)  # 1, 2
            crash_point(REPAIR_AFTER_META)
        run = manifest_store.Replacement(old=(old,), new=made)
        return manifest_store.with_replaced_runs(store, manifest, [run], marked_ms=clock.now_ms())

    if not _commit(store, partition, repaired):  # 3
        return None
    crash_point(REPAIR_AFTER_COMMIT)
    assert made is not None
    return made.meta_key


def _with_new_meta(
    store: ObjectStore, partition: TopicIdPartition, old: SegmentEntry
) -> SegmentEntry:
    with SegmentDownloads(store).file(old) as path:
        facts = inspect_segment(
            path,
            base_offset=old.base_offset,
            end_offset=old.end_offset,
            # Missing records show in the checksum.
            offsets=Offsets.SOME,
        )
    if facts.crc32c != old.log_crc32c:
        raise ObjectCorrupt(old.log_key, "repair", "the segment is not what the manifest says")
    meta = segment_meta.encode(
        sections_of(facts, leader_epochs=old.leader_epochs, aborted=(), producer_snapshot=None)
    )
    epoch = old.leader_epochs[-1].epoch if old.leader_epochs else 0
    keys = segment_keys(
        partition, base_offset=old.base_offset, leader_epoch=epoch, unique=new_unique()
    )
    store.put(keys.meta_key, meta)
    return replace(
        old, meta_key=keys.meta_key, meta_size_bytes=len(meta), meta_crc32c=checksum(meta)
    )

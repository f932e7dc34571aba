"""Makes the `.meta` of an archived segment again, from the segment itself.

    1 read the segment once, every batch checked
    2 put a new .meta, under a name never used before
    3 commit the manifest with it, by compare-and-swap; the old object is marked for deletion

A crash after 2 leaves an orphan. A broker that commits in between wins: the repair is then told
ManifestFenced and can be run again. Only for segments without transactions: which of them were
aborted is not in the segment alone. Producers are not in it either; only the last segment's are
ever asked for, by a restore, which says when it does without.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from strandline.storage.clock import Clock
from strandline.storage.errors import ObjectCorrupt, ObjectNotFound
from strandline.storage.model import Offset, TopicIdPartition
from strandline.storage.remote import manifest_store, segment_meta
from strandline.storage.remote.keys import manifest_key, new_unique, segment_keys
from strandline.storage.remote.manifest_entries import SegmentEntry
from strandline.storage.remote.manifest_store import ManifestPages
from strandline.storage.remote.object_store import ObjectStore, checksum
from strandline.storage.tiering.inspection import Offsets, inspect_segment
from strandline.storage.tiering.scrub import DOWNLOAD_BYTES
from strandline.storage.tiering.segment_sections import sections_of
from strandline.storage.tiering.segment_walk import AdaptiveWalk


def repair_meta(
    store: ObjectStore,
    partition: TopicIdPartition,
    base_offset: Offset,
    *,
    clock: Clock,
    scratch: Path | None = None,
) -> str:
    """Repairs the segment that begins at `base_offset`; the key of its new `.meta`. Blocks.

    Raises ObjectCorrupt if the segment itself is damaged, ManifestFenced if somebody else committed
    meanwhile, and what the store raises.
    """
    stored = manifest_store.load(store, partition)
    if stored is None:
        raise ObjectNotFound(manifest_key(partition), "repair", "no manifest")
    manifest = stored.manifest
    old = ManifestPages(store, pages_max=1).find(manifest, base_offset)
    if old is None or old.base_offset != base_offset or old.has_transactions:
        raise ObjectCorrupt(
            manifest_key(partition), "repair", f"{base_offset} is no segment that can be repaired"
        )
    new = _with_new_meta(store, partition, old, scratch)  # 1, 2
    run = manifest_store.Replacement(old=(old,), new=new)
    changed = manifest_store.with_replaced_runs(store, manifest, [run], marked_ms=clock.now_ms())
    manifest_store.commit(store, stored, changed)  # 3
    return new.meta_key


def _with_new_meta(
    store: ObjectStore, partition: TopicIdPartition, old: SegmentEntry, scratch: Path | None
) -> SegmentEntry:
    with tempfile.NamedTemporaryFile(dir=scratch, prefix="repair-") as file:
        for start in range(0, old.size_bytes, DOWNLOAD_BYTES):
            end = min(start + DOWNLOAD_BYTES, old.size_bytes)
            file.write(store.get(old.log_key, start=start, end=end))
        file.flush()
        facts = inspect_segment(
            Path(file.name),
            base_offset=old.base_offset,
            end_offset=old.end_offset,
            walk=AdaptiveWalk(),
            # What is missing shows in the checksum.
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
        old,
        meta_key=keys.meta_key,
        meta_size_bytes=len(meta),
        meta_crc32c=checksum(meta),
    )

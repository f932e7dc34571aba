"""Detects an older manifest: restored by hand, or backed up before the newest was written.

    named by the manifest    [ 0, 10) [10, 20)
    lies in the folder       [ 0, 10) [10, 20) [20, 30) [30, 40) ...    a newer manifest named them
    and later                [ 0, 10) [10, 20) [20,      35) [35, ...   others have their offsets

Two segments beyond the end may be copies that were in flight when their broker died. More of them
show that the manifest is an older one, as does a list of changes that names a later one.

Once the archive has grown, and new records have the offsets, leader epochs tell the histories
apart: records of one offset and one epoch are the same record. An object's name has the epoch of
its writer, and no record in it has a higher one. So where the archive has a higher epoch than the
name, within the object's offsets, the object holds other records than the archive. Leftovers of
merges, compactions and failed copies hold the archive's own records, and so pass this test.
A restore continues above every epoch in the folder's names, which keeps the test true.

Where the name alone does not tell the object's end offset, its last batches are read.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    UnsupportedFormat,
)
from strandline.storage.model import NO_EPOCH, Epoch, Offset
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.remote.keys import (
    CHANGES_KEY,
    LOG_SUFFIX,
    META_SUFFIX,
    ObjectKind,
    PartitionObject,
    manifest_key,
    parse_partition_object,
    partition_folder,
)
from strandline.storage.remote.manifest.change_list import ManifestOrder
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.object_store.interface import ObjectInfo, ObjectStore
from strandline.storage.remote.segment.meta import Section, SegmentStatistics, read_section
from strandline.storage.tiering.policy.lifecycle import COPIES_PER_PARTITION

# Objects of one partition whose last batches are read, two requests for each. The others stay, and
# the next search continues where this one has deleted.
READ_MAX = 1000


# Higher ones are ignored: Kafka clients know epochs of 32 bits, and the next start adds one.
EPOCH_MAX = 2**31 - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderState:
    """Facts that the object names in a partition's folder add to its manifest."""

    # Base offsets of the segments beyond its end; no more than copies in flight may leave.
    beyond: frozenset[Offset]
    # The highest leader epoch in a name.
    leader_epoch: Epoch


def compare_folder(
    store: ObjectStore, manifest: Manifest, *, newest: ManifestOrder | None = None
) -> FolderState:
    """Lists the objects from the root's first segment on; blocks.

    `newest` is the order of the last manifest announced for the partition. Raises CorruptFile if
    the manifest is an older one, and the store's errors.
    """
    first_offset = manifest.segments[0].base_offset if manifest.segments else manifest.end_offset
    folder = partition_folder(manifest.topic_id_partition)
    listed = {info.key for info in store.list(folder, start_after=f"{folder}{first_offset:020d}")}
    beyond = segments_beyond(listed, manifest)
    sign = ""
    if newest is not None and newest > manifest.order:
        sign = f"{CHANGES_KEY} tells of {_order_text(newest)}, it is {_order_text(manifest.order)}"
    elif len(beyond) > COPIES_PER_PARTITION:
        sign = f"{len(beyond)} segments from {min(beyond)} on lie beyond its end"
    else:
        sign = _replaced_segment(store, manifest, listed)
    if sign:
        raise CorruptFile(
            f"{manifest_key(manifest.topic_id_partition)}: ends at {manifest.end_offset} and is an"
            f" older one: {sign}. Records written behind it would take the offsets of others. Bring"
            " back the newest version of this object (a bucket with versioning still has it); if"
            " it is lost: strandline docs runbooks/older-manifest"
        )
    named = (parse_partition_object(key) for key in listed)
    epochs = [o.leader_epoch for o in named if o is not None and o.leader_epoch <= EPOCH_MAX]
    return FolderState(beyond=beyond, leader_epoch=max(epochs, default=NO_EPOCH))


def _order_text(order: ManifestOrder) -> str:
    epoch, _generation, revision = order
    return f"revision {revision} of leader epoch {epoch}"


def _replaced_segment(store: ObjectStore, manifest: Manifest, listed: set[str]) -> str:
    """A named segment that is missing because another begins there, as a merge leaves it."""
    gone = {entry.base_offset: entry.log_key for entry in manifest.segments}
    gone = {base: key for base, key in gone.items() if key not in listed}
    if not gone:
        return ""
    marked = {key for mark in manifest.deleting for key in mark.keys}
    for key in sorted(listed - marked):
        found = parse_partition_object(key)
        if found is None or found.kind is not ObjectKind.LOG or found.base_offset not in gone:
            continue
        lost_key = gone[found.base_offset]
        try:
            store.head(lost_key)
        except ObjectNotFound:
            return f"{lost_key} is gone, and {key} begins there"
    return ""


class ArchivedEpochs:
    """The archive's leader epoch at each offset, from its entries."""

    def __init__(self, entries: Iterable[SegmentEntry] = ()) -> None:
        self._offsets: list[Offset] = []
        self._epochs: list[Epoch] = []
        for entry in entries:
            self.add(entry)

    def add(self, entry: SegmentEntry) -> None:
        """Adds an entry; entries come in offset order."""
        for index, (epoch, start_offset) in enumerate(entry.leader_epochs):
            if not self._epochs or epoch != self._epochs[-1]:
                # Compaction may have removed a segment's first records, but not their offsets.
                self._offsets.append(start_offset if index else entry.base_offset)
                self._epochs.append(epoch)

    def at(self, offset: Offset) -> Epoch:
        """Returns the epoch at `offset`; NO_EPOCH for offsets before the archive."""
        index = bisect.bisect_right(self._offsets, offset)
        return self._epochs[index - 1] if index else NO_EPOCH

    def first_above(self, epoch: Epoch, offset: Offset) -> Offset | None:
        """Returns the first offset from `offset` on that has a higher epoch in the archive."""
        if self.at(offset) > epoch:
            return offset
        later = range(bisect.bisect_right(self._offsets, offset), len(self._offsets))
        return next((self._offsets[i] for i in later if self._epochs[i] > epoch), None)


def is_beyond(key: str, manifest: Manifest) -> bool:
    """Whether the object's records lie beyond the end of `manifest`, which cannot know them."""
    found = parse_partition_object(key)
    if found is None:
        return False
    if found.kind is ObjectKind.TAIL:
        return found.base_offset >= max(manifest.tail_end_offset, manifest.log_start_offset)
    is_segment = found.kind in (ObjectKind.LOG, ObjectKind.META)
    return is_segment and found.base_offset >= max(manifest.end_offset, manifest.log_start_offset)


def segments_beyond(keys: Iterable[str], manifest: Manifest) -> frozenset[Offset]:
    """Base offsets of the segments beyond the end of the archive."""
    found = (parse_partition_object(key) for key in keys if is_beyond(key, manifest))
    return frozenset(o.base_offset for o in found if o is not None and o.kind is ObjectKind.LOG)


def segments_of_others(
    keys: Iterable[str], manifest: Manifest, epochs: ArchivedEpochs
) -> frozenset[Offset]:
    """Base offsets of segments below the end whose names show that they hold other records.

    Counts the leader epoch with the most of them: each machine that was lost during an upload may
    have left some under its own.
    """
    bases: defaultdict[Epoch, set[Offset]] = defaultdict(set)
    for key in keys:
        found = parse_partition_object(key)
        if found is None or found.kind is not ObjectKind.LOG or is_beyond(key, manifest):
            continue
        if found.leader_epoch < epochs.at(found.base_offset):
            bases[found.leader_epoch].add(found.base_offset)
    return frozenset(max(bases.values(), key=len, default=()))


def with_other_records(
    store: ObjectStore, spare: Sequence[ObjectInfo], manifest: Manifest, epochs: ArchivedEpochs
) -> frozenset[str]:
    """Keys of objects that hold, or describe, other records than the archive; blocks.

    `spare` are unreferenced objects, none of them beyond the end. Raises the store's errors if it
    is unreachable.
    """
    infos = {info.key: info for info in spare}
    other: set[str] = set()
    bases: list[Offset] = []
    reads_left = READ_MAX
    for key in sorted(infos):
        found = parse_partition_object(key)
        if found is None or found.kind not in (ObjectKind.LOG, ObjectKind.TAIL):
            continue
        first = _first_foreign_offset(found, manifest, epochs)
        if first is None:
            continue
        if first > found.base_offset and reads_left:
            reads_left -= 1
            if not _reaches(store, infos, key, first):
                continue
        bases.append(found.base_offset)
        other |= {key, _meta_of(key)} & infos.keys()
    return frozenset(other | _pages_over(bases, infos))


def _first_foreign_offset(
    found: PartitionObject, manifest: Manifest, epochs: ArchivedEpochs
) -> Offset | None:
    """The first offset at which the object would differ from the archive; None if nowhere."""
    if found.leader_epoch >= manifest.leader_epoch:
        return None
    if found.base_offset >= manifest.end_offset:
        # It overlaps the parts of the open segment, which have no epochs until it is closed.
        return found.base_offset
    first = epochs.first_above(found.leader_epoch, found.base_offset)
    return manifest.end_offset if first is None else first


def _reaches(store: ObjectStore, infos: Mapping[str, ObjectInfo], key: str, offset: Offset) -> bool:
    """Returns whether the object holds `offset` or later ones; True if it is unreadable."""
    try:
        return _end_offset(store, infos, key) > offset
    except ObjectNotFound:
        # A segment gets into a manifest only after its `.meta` is written.
        return False
    except (CorruptFile, CorruptRecords, ObjectArchived, ObjectCorrupt, UnsupportedFormat):
        return True


def _end_offset(store: ObjectStore, infos: Mapping[str, ObjectInfo], key: str) -> Offset:
    size_bytes, start = infos[key].size_bytes, 0
    if key.endswith(LOG_SUFFIX):
        meta_key = _meta_of(key)
        meta = infos[meta_key] if meta_key in infos else store.head(meta_key)
        content = read_section(store, meta_key, meta.size_bytes, Section.STATISTICS)
        if content is None:
            raise CorruptFile(f"{meta_key}: no statistics")
        chunks = SegmentStatistics.decode(content, source=meta_key).chunks
        start = chunks[-1].position if chunks else 0
    ends = [b.header.next_offset for b in walk(store.get(key, start=start, end=size_bytes))]
    if not ends:
        raise CorruptFile(f"{key}: no batch ends in it")
    return ends[-1]


def _meta_of(key: str) -> str:
    return key.removesuffix(LOG_SUFFIX) + META_SUFFIX


def _pages_over(bases: Sequence[Offset], infos: Iterable[str]) -> set[str]:
    """Pages of a manifest that may name segments with base offsets in `bases`."""
    pages = ((key, parse_partition_object(key)) for key in infos)
    return {
        key
        for key, page in pages
        if page is not None
        and page.kind is ObjectKind.MANIFEST_PAGE
        and any(page.base_offset <= base < page.end_offset for base in bases)
    }

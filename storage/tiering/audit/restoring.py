"""Restores one partition from the bucket to a log folder that a broker can open.

    manifest.json   log start, end of the archive, leader epoch      one GET
    its pages       do they exist                                    one HEAD per page
    the folder      is the manifest the newest one                   one LIST
    last .meta      producers and lineage at that end                one GET
    .tail           pieces of the open segment                       one HEAD, one GET per piece

No archived segment is downloaded: the local log begins at the end of the archive with the pieces of
the open segment, and all earlier records are read cold. `read_partition` only reads, so the disk is
unchanged until the whole archive has proved readable. A lost piece is an error like a lost
manifest: otherwise the records after it would be lost silently, and their offsets reused.

Blocking throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from strandline.storage.errors import CorruptFile, ObjectCorrupt, ObjectNotFound, UnsupportedFormat
from strandline.storage.local.formats.producer_state import iter_snapshot
from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import NO_EPOCH, Epoch, EpochStart, Offset, TopicIdPartition
from strandline.storage.plurals import counted
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.change_list import ManifestOrder
from strandline.storage.remote.manifest.entries import PageRef, SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.remote.manifest.store import ManifestPages
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import Section
from strandline.storage.tiering.partition.older_manifest import FolderState, compare_folder
from strandline.storage.tiering.partition.open_segment_parts import (
    append_part,
    fault_of_part,
    read_part,
    usable_tail,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedState:
    """The archived state of a partition; `manifest` is None if nothing was archived.

    `producer_snapshot` and `leader_epochs` are as of `end_offset`; if the `.meta` is damaged there
    are none, and `problem` says so.
    """

    partition: TopicIdPartition
    manifest: Manifest | None
    producer_snapshot: bytes | None = None
    leader_epochs: tuple[EpochStart, ...] = ()
    producer_id_max: int = -1
    problem: str = ""
    # Lost pages of the manifest, each with the consequence.
    lost_pages: tuple[str, ...] = ()
    # The highest leader epoch in a name of the partition's objects.
    folder_epoch: Epoch = NO_EPOCH

    @property
    def log_start_offset(self) -> Offset:
        return 0 if self.manifest is None else self.manifest.log_start_offset

    @property
    def end_offset(self) -> Offset:
        """The offset of the next record."""
        tail = self.tail
        return tail[-1].end_offset if tail else self.begin_offset

    @property
    def tail(self) -> tuple[TailPart, ...]:
        """The usable pieces of the open segment."""
        return () if self.manifest is None else usable_tail(self.manifest)

    @property
    def begin_offset(self) -> Offset:
        """The first offset of the local log."""
        if self.manifest is None:
            return 0
        if self.tail:
            return self.tail[0].base_offset
        return max(self.manifest.end_offset, self.manifest.log_start_offset)

    @property
    def leader_epoch(self) -> Epoch:
        """The highest leader epoch in the archive; -1 if there is none."""
        lineage = self.leader_epochs[-1].epoch if self.leader_epochs else NO_EPOCH
        manifests = NO_EPOCH if self.manifest is None else self.manifest.leader_epoch
        return max(lineage, manifests, self.folder_epoch)


def read_partition(
    store: ObjectStore, partition: TopicIdPartition, *, newest: ManifestOrder | None = None
) -> ArchivedState:
    """Reads manifest and last `.meta`, and checks the pages and the pieces of the open segment.

    Raises CorruptFile or UnsupportedFormat if manifest or pieces are damaged or lost, or if the
    manifest is older than `newest` or than the folder shows, and what the store raises. Nothing was
    archived only if the manifest is a plain 404 and the folder is empty.
    """
    stored = manifest_store.load_or_refuse(store, partition)
    if stored is None:
        return ArchivedState(partition=partition, manifest=None)
    manifest = stored.manifest
    folder = compare_folder(store, manifest, newest=newest)
    _check_tail(store, manifest)
    state = ArchivedState(
        partition=partition,
        manifest=manifest,
        problem=_beyond_text(folder),
        lost_pages=tuple(_lost_pages(store, manifest)),
        folder_epoch=folder.leader_epoch,
    )
    return state if manifest.is_empty else _at_end(store, state, _last_entry(store, manifest))


def _last_entry(store: ObjectStore, manifest: Manifest) -> SegmentEntry:
    try:
        last = ManifestPages(store, pages_max=1).find(manifest, manifest.end_offset - 1)
    except (ObjectCorrupt, ObjectNotFound) as error:
        raise CorruptFile(f"the last page of the manifest cannot be read: {error}") from error
    if last is None:
        raise CorruptFile(f"{manifest.topic_id_partition}: no entry ends at {manifest.end_offset}")
    return last


def _beyond_text(folder: FolderState) -> str:
    if not folder.beyond:
        return ""
    return (
        f"{counted(len(folder.beyond), 'segment')} from {min(folder.beyond)} on, beyond the end,"
        " that no manifest names: of copies under way, or the manifest is an older one"
    )


def _lost_pages(store: ObjectStore, manifest: Manifest) -> Iterator[str]:
    for page in manifest.pages:
        fault = _fault_of_page(store, page)
        # Records below the log start cannot be read anyway.
        if fault and page.end_offset > manifest.log_start_offset:
            yield (
                f"{page.key}: {fault}: without this page of the manifest records from"
                f" {page.base_offset} to {page.end_offset - 1} cannot be read, and consumers stand"
                " there. Bring it back (a bucket with versioning still has it); or, to give them"
                f" up: DeleteRecords up to {page.end_offset}"
            )


def _fault_of_page(store: ObjectStore, page: PageRef) -> str:
    """Returns the fault that a HEAD shows; without a checksum in the store, damage needs a read."""
    try:
        info = store.head(page.key)
    except ObjectNotFound:
        return "is missing"
    except ObjectCorrupt as error:
        return str(error)
    return "" if info.crc32c in (None, page.crc32c) else "is not what the manifest says"


def _check_tail(store: ObjectStore, manifest: Manifest) -> None:
    for part in usable_tail(manifest):
        fault = fault_of_part(store, part)
        if fault:
            raise CorruptFile(
                f"{part.key}: {fault}: records from {part.base_offset} to"
                f" {manifest.tail_end_offset - 1} were in this piece of the open segment, or came"
                " after it. Bring it back (a bucket with versioning still has it); or, if they are"
                " to be given up: `strandline archive verify --drop-pieces`"
            )


def _at_end(store: ObjectStore, state: ArchivedState, last: SegmentEntry) -> ArchivedState:
    """Adds producers and lineage, without which the log is still readable."""
    reader = segment_meta.MetaReader(store, last.meta_key, last.meta_size_bytes)
    state = replace(state, leader_epochs=tuple(last.leader_epochs))
    try:
        found = reader.read(Section.LEADER_EPOCHS)
        if found is not None:
            epochs = segment_meta.decode_leader_epochs(found, source=last.meta_key)
            state = replace(state, leader_epochs=tuple(epochs))
        snapshot = reader.read(Section.PRODUCER_SNAPSHOT)
        rows = () if snapshot is None else iter_snapshot(snapshot)
        producer_id_max = max((row.producer_id for row in rows), default=-1)
    except (CorruptFile, UnsupportedFormat, ObjectCorrupt, ObjectNotFound) as error:
        problems = (f"producers are not known: {error}", state.problem)
        return replace(state, problem="; ".join(filter(None, problems)))
    return replace(state, producer_snapshot=snapshot, producer_id_max=producer_id_max)


def write_partition(store: ObjectStore, local: LocalLog, state: ArchivedState) -> None:
    """Makes an empty log continue the archive; the caller closes it, which syncs it.

    Raises DiskError, and as the store does if the open segment cannot be read.
    """
    assert local.end_offset == 0, local
    if state.begin_offset:
        local.reset_to(
            state.begin_offset,
            producer_snapshot=state.producer_snapshot,
            leader_epochs=state.leader_epochs,
        )
    for part in state.tail:
        append_part(local, read_part(store, part))

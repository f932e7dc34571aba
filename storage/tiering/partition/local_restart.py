"""Restarts the local log behind the archive, for a disk that lost records the archive has.

    archive   [ segment ][ segment ] part part        part: uploaded bytes of the log behind it
    disk      (ends below the archive)
    then                             [ empty log, starting here, with the archived producer state
                                       and leader epochs ][ and the parts, unchanged ]

Otherwise the log would assign archived offsets to new records. A disk that holds the first parts,
as an older image of it may, appends the remaining ones. A read-only replica's logs grow this way
too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from strandline.storage.model import EpochStart, Offset
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import Section
from strandline.storage.tiering.log.remote_log import RemoteLog
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.partition.open_segment_parts import (
    LogRun,
    append_part,
    log_from,
    read_part,
    usable_tail,
)
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads

log = logging.getLogger(__name__)


async def restart_behind(
    unified_log: UnifiedLog,
    remote: RemoteLog,
    manifest: Manifest,
    *,
    threads: MetadataThreads,
) -> None:
    """Restarts the local log if it ends below the archive, and appends the missing parts behind it.

    Raises StorageError; the caller starts over, and the log takes no appends until then.
    """
    await begin_anew(unified_log, remote, manifest, threads=threads)
    await _append_tail(unified_log, remote, manifest, threads=threads)


async def begin_anew(
    unified_log: UnifiedLog,
    remote: RemoteLog,
    manifest: Manifest,
    *,
    threads: MetadataThreads,
) -> None:
    """Restarts the local log behind the archive if it ends below it, without the missing parts.

    Raises StorageError.
    """
    local, tail = unified_log.local, usable_tail(manifest)
    offset = max(manifest.end_offset, manifest.log_start_offset)
    if tail and not local.size_bytes:
        offset = tail[0].base_offset
    if local.end_offset >= offset:
        return
    log.log(
        # A replica's log always ends below the archive: this is how it grows.
        logging.DEBUG if remote.life.is_followed else logging.WARNING,
        "local log ends before the archive, it restarts after the archive's end",
        extra={
            "fields": {
                "partition": str(unified_log.topic_partition),
                "local_end_offset": local.end_offset,
                "archive_end_offset": offset,
            }
        },
    )
    snapshot: bytes | None = None
    epochs: Sequence[EpochStart] = ()
    last = await remote.find_entry(offset - 1)
    if last is not None:
        snapshot, epochs = await threads.run(partial(_read_state_at_end, threads.store, last))
    if not remote.life.is_detached():
        unified_log.restart_at(offset, producer_snapshot=snapshot, leader_epochs=epochs)


async def _append_tail(
    unified_log: UnifiedLog, remote: RemoteLog, manifest: Manifest, *, threads: MetadataThreads
) -> None:
    """Appends the uploaded parts behind the archive that this disk lacks."""
    local = unified_log.local
    tail = usable_tail(manifest)
    if not tail or remote.life.is_detached() or local.end_offset < tail[0].base_offset:
        return
    if local.end_offset >= tail[-1].end_offset:
        return
    run = log_from(local, tail[0].base_offset)
    whole = [part for part in tail if part.end_offset <= local.end_offset]
    if not remote.life.is_followed and not await threads.run(partial(run.begins_with, whole)):
        _warn_of_another_past(unified_log, tail[-1].end_offset)
        return
    for part in tail:
        if part.end_offset > local.end_offset:
            content = await threads.run(partial(read_part, threads.store, part))
            if remote.life.is_detached():
                return
            is_begun = part.base_offset < local.end_offset
            if is_begun and not _has_head_of(run, part, content):
                _warn_of_another_past(unified_log, tail[-1].end_offset)
                return
            if local.size_bytes and local.end_offset == tail[0].base_offset:
                # The origin rolled a segment here: the one before is freed once it is archived.
                local.roll()
            append_part(local, content)


def _has_head_of(run: LogRun, part: TailPart, content: bytearray) -> bool:
    """Returns whether this disk ends with the beginning of `part`."""
    head = run.read(part.position, len(content))
    return 0 < len(head) < len(content) and head == content[: len(head)]


def _warn_of_another_past(unified_log: UnifiedLog, end_offset: Offset) -> None:
    log.warning(
        "the open segment in the bucket has another history, this disk's replaces it",
        extra={
            "fields": {
                "partition": str(unified_log.topic_partition),
                "local_end_offset": unified_log.local.end_offset,
                "open_segment_end_offset": end_offset,
            }
        },
    )


def _read_state_at_end(
    store: ObjectStore, entry: SegmentEntry
) -> tuple[bytes | None, tuple[EpochStart, ...]]:
    """Producer state and leader epochs at the end of an archived segment; blocks."""
    reader = segment_meta.MetaReader(store, entry.meta_key, entry.meta_size_bytes)
    epochs = reader.read(Section.LEADER_EPOCHS)
    return (
        reader.read(Section.PRODUCER_SNAPSHOT),
        entry.leader_epochs
        if epochs is None
        else segment_meta.decode_leader_epochs(epochs, source=entry.meta_key),
    )

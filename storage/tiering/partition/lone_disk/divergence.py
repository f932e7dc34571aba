"""Re-appends acknowledged records whose offsets diverged from the archive behind the archive.

A broker may start while its store is unreachable, and accept records. If its disk is an older
image, or lost its end in a power failure, the archive ends above the end of the disk, and both have
records under the same offsets:

    archive   [ before ............ archived )
    disk      [ before )[ own .......... )          own: acknowledged since, and of any length
    then      [ before ............ archived )[ own .......... )

The leader epochs tell: a manifest last written under epoch e names only records of epochs up to e,
and each start raises the epoch. So `own` begins where the disk's first epoch above e begins, and
the logs have diverged if the archive ends above that.

    1 set the diverged records aside, durably          give-back.after-note     diverged_records.py
    2 truncate the log to where they began             give-back.after-cut
    3 claim the manifest, restart the log behind it,
      with the archived parts of the open segment      give-back.after-restart  local_restart.py
    4 note the offset at which they will be appended   give-back.after-target
    5 append, with new offsets, under today's epoch    give-back.after-piece
    6 flush                                            give-back.after-append
    7 remove the set-aside files

From 1 to 7 the partition takes no other appends, across crashes too, unless the topic leaves the
archive; then step 2 is skipped, and step 1 is repeated when the topic is tiered again. After a
crash in 5 the log is compared, batch by batch, with the records that were to be appended there, and
step 5 continues with the first missing batch.
Keys, values, timestamps, producer ids and sequences stay as the producer sent them, so it may
continue unaware. Sequences are not checked: these batches were accepted once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from strandline.storage.crash_points import (
    GIVE_BACK_AFTER_APPEND,
    GIVE_BACK_AFTER_CUT,
    GIVE_BACK_AFTER_NOTE,
    GIVE_BACK_AFTER_PIECE,
    GIVE_BACK_AFTER_TARGET,
    crash_point,
)
from strandline.storage.local.log import diverged_records
from strandline.storage.local.log.diverged_records import NOT_KNOWN, SetAside
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.model import NO_EPOCH, Epoch, EpochStart, Offset
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import BatchHeader, read_header, stamp
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.tiering.log.unified_log import UnifiedLog
from strandline.storage.tiering.policy.archive_state import ArchiveLife
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads

log = logging.getLogger(__name__)

# Bytes appended at a time; the event loop serves other work in between.
PIECE_BYTES = 1024 * 1024


def bucket_end(manifest: Manifest) -> Offset:
    """Returns the end of the log as the bucket knows it, the open segment included."""
    return max(manifest.tail_end_offset, manifest.log_start_offset, manifest.end_offset)


def own_start(local: LocalLog, manifest: Manifest) -> EpochStart | None:
    """Start of the records that this disk has under offsets of other archived records, or None."""
    above = (one for one in local.leader_epochs.starts if one.epoch > manifest.leader_epoch)
    first = next(above, None)
    if first is None:
        return None
    start_offset = max(first.start_offset, local.start_offset)
    if start_offset >= min(bucket_end(manifest), local.end_offset):
        return None
    return EpochStart(first.epoch, start_offset)


async def take_away_own(
    unified_log: UnifiedLog,
    manifest: Manifest | None,
    *,
    threads: MetadataThreads,
    life: ArchiveLife,
) -> None:
    """Steps 1 and 2, unless they were done before a crash. No other append may run meanwhile.

    Raises StorageError; the caller retries.
    """
    local = unified_log.local
    note = await threads.run(partial(diverged_records.read_note, local))
    if note is None:
        own = None if manifest is None else own_start(local, manifest)
    elif note.target_offset == NOT_KNOWN and _is_uncut(local, note):
        # Step 1 is repeated: the log accepted more records while it was not tiered.
        own = EpochStart(note.leader_epoch, note.start_offset)
    else:
        return
    if own is None or life.is_detached():
        return
    note = SetAside(
        start_offset=own.start_offset, end_offset=local.end_offset, leader_epoch=own.epoch
    )
    _warn_of_own(unified_log, note, manifest)
    segments = [one for one in local.segments if one.end_offset > note.start_offset]
    await threads.run(partial(diverged_records.set_aside, local, note, segments))  # 1
    crash_point(GIVE_BACK_AFTER_NOTE)
    if life.is_detached():
        # The log takes appends again from here on, and a truncation would lose them.
        return
    _cut(local, note.start_offset)  # 2
    crash_point(GIVE_BACK_AFTER_CUT)


def _warn_of_own(unified_log: UnifiedLog, note: SetAside, manifest: Manifest | None) -> None:
    log.warning(
        "the archive is ahead of this disk, records accepted since the start get new offsets",
        extra={
            "fields": {
                "partition": str(unified_log.topic_partition),
                "start_offset": note.start_offset,
                "end_offset": note.end_offset,
                "archive_end_offset": -1 if manifest is None else bucket_end(manifest),
            }
        },
    )


def _is_uncut(local: LocalLog, note: SetAside) -> bool:
    return EpochStart(note.leader_epoch, note.start_offset) in local.leader_epochs.starts


def _cut(local: LocalLog, offset: Offset) -> None:
    local.truncate_to(offset)
    if local.end_offset > offset:
        # Compaction left no batch here, and the log cannot end in front of the next batch.
        local.reset_to(local.start_offset)


async def re_append(
    unified_log: UnifiedLog, *, threads: MetadataThreads, life: ArchiveLife
) -> None:
    """Steps 4 to 7, if records are set aside. No other append may run meanwhile.

    Raises StorageError; the caller starts over.
    """
    local = unified_log.local
    note = await threads.run(partial(diverged_records.read_note, local))
    if note is None or life.is_detached():
        return
    if note.target_offset == NOT_KNOWN:
        await threads.run(local.flush)
        note = replace(note, target_offset=local.end_offset)
        await threads.run(partial(diverged_records.write_note, local, note))  # 4
        crash_point(GIVE_BACK_AFTER_TARGET)
    appender = _Appender(local, note.target_offset, life.leader_epoch)
    pieces = diverged_records.read_pieces(local, note, bytes_max=PIECE_BYTES)
    while (piece := await threads.run(partial(_next, pieces))) is not None:
        if life.is_detached():
            return
        appender.append(piece)  # 5
        crash_point(GIVE_BACK_AFTER_PIECE)
    await threads.run(local.flush)  # 6
    crash_point(GIVE_BACK_AFTER_APPEND)
    await threads.run(partial(diverged_records.remove, local))  # 7
    log.warning(
        "records accepted while the archive was ahead have their new offsets",
        extra={
            "fields": {
                "partition": str(unified_log.topic_partition),
                "old_start_offset": note.start_offset,
                "old_end_offset": note.end_offset,
                "new_start_offset": note.target_offset,
                "new_end_offset": local.end_offset,
            }
        },
    )


def _next(pieces: Iterator[bytearray]) -> bytearray | None:
    return next(pieces, None)


class _Appender:
    """Appends the set-aside batches, skipping those that an earlier attempt appended."""

    def __init__(self, local: LocalLog, target_offset: Offset, leader_epoch: Epoch) -> None:
        self._local = local
        self._next_offset = target_offset
        self._leader_epoch = leader_epoch
        # An earlier attempt may have appended the first batches.
        self._may_be_there = True

    def append(self, piece: bytearray) -> None:
        """Called on the event loop. Raises CorruptRecords, DiskError."""
        local, view, begin = self._local, memoryview(piece), len(piece)
        end_offset = local.end_offset
        for batch in walk(piece):
            header = batch.header
            if self._may_be_there and self._is_there(header):
                self._next_offset += header.last_offset_delta + 1
                continue
            self._may_be_there = False
            begin = min(begin, batch.position)
            stamp(piece, batch.position, end_offset, self._leader_epoch)
            end_offset += header.last_offset_delta + 1
        if begin < len(piece):
            local.append(view[begin:], leader_epoch=NO_EPOCH, origin=AppendOrigin.REPLICATION)
            # A log that has diverged has no other replica.
            local.advance_high_watermark(local.end_offset)

    def _is_there(self, header: BatchHeader) -> bool:
        """Compares CRCs, which cover neither offset nor epoch and so survive the re-append."""
        local, offset = self._local, self._next_offset
        if offset >= local.end_offset:
            return False
        if offset < local.start_offset:
            # Retention deleted this offset since; the records behind it were appended after it.
            return True
        found = local.read(offset, bytes_max=1).range
        if found is None:
            return False
        there = read_header(found.read(), 0)
        return there.base_offset == offset and there.crc == header.crc

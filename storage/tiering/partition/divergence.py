"""Re-appends acknowledged records whose offsets diverged from the archive behind the archive.

A broker starts without its store, and takes records. If its disk is an older image of itself, or
lost its end with the power, the archive ends above where the disk did, and both have records of the
same offsets:

    archive   [ before ............ archived )
    disk      [ before )[ own .......... )          own: acknowledged since, and of any length
    then      [ before ............ archived )[ own .......... )

The lineage tells: a manifest that was last written under epoch e names records of epochs up to e
alone, and a start raises the epoch. So `own` begins where the disk's first epoch above e begins,
and there was another past if the archive ends above that.

    1 set aside what is own, durably                   give-back.after-note     diverged_records.py
    2 cut it off the log                               give-back.after-cut
    3 claim the manifest, begin the log anew behind it,
      with what the bucket has of the open segment     give-back.after-restart  local_restart.py
    4 note where the first one comes                   give-back.after-target
    5 append, with new offsets, under today's epoch    give-back.after-piece
    6 flush                                            give-back.after-append
    7 remove what was set aside

From 1 to 7 nobody else appends, over crashes too, unless the topic leaves the archive; then 2 is
not done any more, and 1 is done again when it is tiered again. After a crash in 5 the log is
compared with what was to come at that place, batch by batch, and goes on with the first that is
not there.
Keys, values, times, producers and sequences stay as they were sent: a producer that goes on is
answered as if nothing had been. Sequences are not checked: these batches were accepted once.
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

# What is appended at a time; the loop serves others in between.
PIECE_BYTES = 1024 * 1024


def bucket_end(manifest: Manifest) -> Offset:
    """Where what the bucket knows of the log ends, the open segment included."""
    return max(manifest.tail_end_offset, manifest.log_start_offset, manifest.end_offset)


def own_start(local: LocalLog, manifest: Manifest) -> EpochStart | None:
    """Where this disk's own records begin, if the archive has others under the same offsets."""
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
    """Steps 1 and 2, unless they were done before a crash. Nobody else may append meanwhile.

    Raises StorageError, to be tried again.
    """
    local = unified_log.local
    note = await threads.run(partial(diverged_records.read_note, local))
    if note is None:
        own = None if manifest is None else own_start(local, manifest)
    elif note.target_offset == NOT_KNOWN and _is_uncut(local, note):
        # 1 is done again: a log that was not tiered for a while has taken more since.
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
        # Others append from now on, and would be cut off.
        return
    _cut(local, note.start_offset)  # 2
    crash_point(GIVE_BACK_AFTER_CUT)


def _warn_of_own(unified_log: UnifiedLog, note: SetAside, manifest: Manifest | None) -> None:
    log.warning(
        "the archive is ahead of this disk, what it took since its start is given new offsets",
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
        # Compaction left no batch at this place, and the log cannot end in front of the next one.
        local.reset_to(local.start_offset)


async def re_append(
    unified_log: UnifiedLog,
    leader_epoch: Epoch,
    *,
    threads: MetadataThreads,
    life: ArchiveLife,
) -> None:
    """Steps 4 to 7, if something is set aside. Nobody else may append meanwhile.

    Raises StorageError, to be begun again.
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
    appender = _Appender(local, note.target_offset, leader_epoch)
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
        "records that were taken while the archive was ahead have their new offsets",
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
    """Appends what is not there yet from where the first one comes."""

    def __init__(self, local: LocalLog, target_offset: Offset, leader_epoch: Epoch) -> None:
        self._local = local
        self._next_offset = target_offset
        self._leader_epoch = leader_epoch
        # An earlier attempt may have appended the first ones.
        self._may_be_there = True

    def append(self, piece: bytearray) -> None:
        """On the loop. Raises CorruptRecords, DiskError."""
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

    def _is_there(self, header: BatchHeader) -> bool:
        """The CRC covers neither offset nor epoch, so it is that of the batch as it was sent."""
        local, offset = self._local, self._next_offset
        if offset >= local.end_offset:
            return False
        if offset < local.start_offset:
            # Retention was faster: what lies behind it came after it.
            return True
        found = local.read(offset, bytes_max=1).range
        if found is None:
            return False
        there = read_header(found.read(), 0)
        return there.base_offset == offset and there.crc == header.crc

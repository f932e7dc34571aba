"""Reopens the logs of a log folder that came back, with the recovery after an unclean stop.

    1 it is the folder that was locked at the start   2 it can be written   3 every log opens

Only if all three succeed, the new logs replace the old ones, which are stopped since the failure.
Records that were not synced when the folder failed may be lost.

After a failed sync the page cache may hold pages as clean that never reached the device. A read of
them finds no damage, and the next sync writes nothing. So unsynced files are read from the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.errors import DiskError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.log_dir import LogDir, probe


@dataclass(frozen=True, slots=True)
class RevivedLog:
    """A stopped log, and the reopened log that replaces it."""

    old: LocalLog
    new: LocalLog

    @property
    def lost_records(self) -> bool:
        """Whether the log ends below its earlier end offset."""
        return self.new.end_offset < self.old.end_offset


def reopen_logs(directory: LogDir, *, clock: Clock) -> list[RevivedLog]:
    """Opens every log of a folder that failed. Blocks. Raises DiskError if it is not usable yet."""
    directory.lock_again()
    probe(directory.path)
    return [
        RevivedLog(old, _reopen(directory, old, clock=clock))
        for old in list(directory.logs.values())
    ]


def _reopen(directory: LogDir, old: LocalLog, *, clock: Clock) -> LocalLog:
    if not old.directory.is_dir():
        raise DiskError(f"{old.directory} is gone")
    for segment in old.segments:
        if segment.is_active or segment.end_offset > old.recovery_point:
            files.forget_cached(segment.log_path)
    files.forget_cached(old.leader_epochs.path)
    opened = LocalLog.open(
        old.directory,
        topic_partition=old.topic_partition,
        topic_id=old.topic_id,
        config=old.config,
        clock=clock,
        recovery_point=old.recovery_point,
        log_start_offset=old.log_start_offset,
        clean_shutdown=False,
        was_compacted=old.topic_partition in directory.cleaned_offsets,
    )
    opened.on_segment_closed = old.on_segment_closed
    return opened

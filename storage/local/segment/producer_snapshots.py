"""Rebuilds the producers of a log from its producer snapshots and batches.

    snapshots        |           |                 |
    segments   [ s0      ][ s1        ][ s2 ...............
    producers at X:              +----- replayed --------> X

Without a usable snapshot, all batches from the log's beginning are replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import CorruptFile, CorruptRecords, UnsupportedFormat
from strandline.storage.local.formats.names import SNAPSHOT_SUFFIX, file_name
from strandline.storage.local.formats.producer_state import ProducerState
from strandline.storage.local.segment import partition_folder as folder
from strandline.storage.local.segment.recovery_report import RecoveryReport
from strandline.storage.local.segment.segment import LogSegment
from strandline.storage.records.batch.marker import marker_in


def reload_producers(
    directory: Path, segments: Sequence[LogSegment], end_offset: int
) -> ProducerState:
    """Returns the producers at the end of a truncated log; removes later snapshots."""
    snapshots = ProducerSnapshots(directory, RecoveryReport(clean_shutdown=True))
    snapshots.offsets = folder.snapshot_offsets(directory)
    snapshots.drop_from(end_offset + 1)
    return snapshots.producers_at(segments, end_offset)


class ProducerSnapshots:
    """The producer snapshots in a folder, at `offsets`; problems are noted in `report`."""

    __slots__ = ("_directory", "_report", "offsets")

    def __init__(self, directory: Path, report: RecoveryReport) -> None:
        self._directory = directory
        self._report = report
        self.offsets: set[int] = set()

    def producers_at(self, segments: Sequence[LogSegment], offset: int) -> ProducerState:
        """The producers at `offset`, from the last valid snapshot before it and the batches."""
        producers = ProducerState()
        replay_from = 0
        for snapshot_offset in sorted(self.offsets, reverse=True):
            if snapshot_offset <= offset and self._load(snapshot_offset, producers):
                replay_from = snapshot_offset
                break
        for segment in segments:
            if segment.end_offset > replay_from and segment.base_offset < offset:
                self._replay(segment, replay_from, offset, producers)
        return producers

    def drop_from(self, offset: int) -> None:
        """Removes the snapshots from `offset` on."""
        for dropped in [found for found in self.offsets if found >= offset]:
            self._drop(dropped)

    def drop_strays(self, segments: Sequence[LogSegment]) -> None:
        """Keeps the snapshots at segment borders and the newest one."""
        self.drop_from(segments[-1].end_offset + 1)
        borders = {segment.base_offset for segment in segments}
        for offset in sorted(self.offsets)[:-1]:
            if offset not in borders:
                self._drop(offset)

    def _load(self, offset: int, producers: ProducerState) -> bool:
        name = file_name(offset, SNAPSHOT_SUFFIX)
        try:
            producers.load_snapshot(files.read_whole(f"{self._directory}/{name}"))
        except (CorruptFile, UnsupportedFormat) as error:
            self._report.note_problem(self._directory, f"{name} is not used: {error}")
            self._drop(offset)
            return False
        return True

    def _replay(
        self, segment: LogSegment, start_offset: int, end_offset: int, producers: ProducerState
    ) -> None:
        try:
            start = segment.locate(start_offset)
            for batch in segment.scan(start.position if start else segment.size_bytes):
                if batch.header.base_offset >= end_offset:
                    return
                if batch.header.base_offset >= start_offset:
                    producers.replay(batch.header, marker_in(segment.file(), batch))
                    self._report.producer_batches_replayed += 1
        except (CorruptRecords, CorruptFile) as error:
            self._report.note_problem(
                self._directory,
                f"producers of segment {segment.base_offset} are incomplete: {error}",
            )

    def _drop(self, offset: int) -> None:
        self.offsets.remove(offset)
        files.remove(self._directory / file_name(offset, SNAPSHOT_SUFFIX))
        self._report.files_removed += 1

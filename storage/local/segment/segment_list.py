"""The segments of one log and their files: adding, removing and finding them.

    0          100        250    end
    [  sealed  )[ sealed  )[ active ...

The tuple of segments is replaced, never changed. A reader, on the loop or in a worker thread, takes
it once and keeps its view while the log rolls or retention removes segments. Only the active
segment, the last one, still grows.

Files of removed segments are renamed, and unlinked after file.delete.delay.ms (see trash.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.crash_points import (
    CLEAN_AFTER_DISCARD,
    CLEAN_AFTER_RENAME,
    crash_point,
)
from strandline.storage.files import OpenFile
from strandline.storage.local.formats.names import (
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    file_name,
)
from strandline.storage.local.segment import swap
from strandline.storage.local.segment.cleaned_segment import CleanedFacts
from strandline.storage.local.segment.segment import BatchPosition, LogSegment
from strandline.storage.local.segment.trash import Trash


class SegmentList:
    """The segments of one log in the order of their offsets; there is always an active one."""

    def __init__(
        self, directory: Path, segments: Sequence[LogSegment], *, config: LogConfig, clock: Clock
    ) -> None:
        self._directory = directory
        self._config = config
        self._clock = clock
        self.trash = Trash()
        # Grows with each change of the list.
        self.change_count = 0
        self._set(segments)

    def _set(self, segments: Sequence[LogSegment]) -> None:
        self.segments = tuple(segments)
        self.active = self.segments[-1]
        self.start_offset = self.segments[0].base_offset
        # One value, so that a reader in another thread sees both of the same moment.
        self._by_base = self.segments, [segment.base_offset for segment in self.segments]
        self.change_count += 1
        # The segments whose bytes were counted, and how many bytes; counted on first use.
        self._counted: tuple[tuple[LogSegment, ...], int] | None = None

    @property
    def size_bytes(self) -> int:
        segments, counted = self.segments, self._counted
        if counted is None or counted[0] is not segments:
            counted = segments, sum(segment.size_bytes for segment in segments[:-1])
            self._counted = counted
        return counted[1] + segments[-1].size_bytes

    def from_offset(self, offset: int) -> Sequence[LogSegment]:
        """Returns the segment that holds `offset`, and those behind it."""
        segments, bases = self._by_base
        if offset >= bases[-1]:
            return segments[-1:]
        return segments[max(0, bisect_right(bases, offset) - 1) :]

    def update_config(self, config: LogConfig) -> None:
        """Applies a changed topic configuration, to the active segment too."""
        self._config = config
        self.active.apply_config(config)

    def roll(self, offset: int) -> None:
        """Seals the active segment and begins a new one at `offset`. Raises DiskError."""
        opened = self._create(offset)
        # Only now, so that a full disk leaves the log as it was, with its active segment.
        self.active.seal()
        self._set((*self.segments, opened))

    def delete(self, segments: Sequence[LogSegment]) -> None:
        """Removes the oldest segments from the log, in order, without the active one."""
        count = len(segments)
        assert tuple(segments) == self.segments[:count], (segments, self.segments)
        assert count < len(self.segments), "the active segment stays"
        self._set(self.segments[count:])
        # The oldest first: a crash in between leaves a log without a hole.
        for segment in segments:
            self._discard(segment)

    def replace(
        self, sources: Sequence[LogSegment], opened: OpenFile, facts: CleanedFacts
    ) -> LogSegment:
        """Replaces neighbouring segments by the cleaned one: steps 4 to 6 of swap.py.

        The caller syncs the folder. Raises StorageError.
        """
        first = self.segments.index(sources[0])
        kept_before = self.segments[:first]
        kept_behind = self.segments[first + len(sources) :]
        assert self.segments[first : first + len(sources)] == tuple(sources), sources
        assert kept_behind, "the active segment stays"
        for segment in sources:
            self._discard(segment, with_snapshot=segment is not sources[0])  # 4
        crash_point(CLEAN_AFTER_DISCARD)
        swap.name_finally(self._directory, facts.base_offset)  # 5
        crash_point(CLEAN_AFTER_RENAME)
        segment = swap.replacement(self._directory, opened, facts, sources)
        segment.apply_config(self._config)
        self._set([*kept_before, segment, *kept_behind])  # 6
        return segment

    def truncate(self, end: BatchPosition) -> None:
        """Drops the segments after `end`, the last one first, and truncates the one that has it.

        This one becomes the active segment; see `LogSegment.reactivate`.
        """
        kept = [segment for segment in self.segments if segment.base_offset <= end.base_offset]
        for segment in reversed(self.segments[len(kept) :]):
            self._discard(segment)
        kept[-1].truncate(end.position, end.base_offset)
        self._set(kept)

    def restart(self, offset: int) -> None:
        """Drops all segments, the last one first, and restarts at `offset`. Raises DiskError."""
        for segment in reversed(self.segments):
            self._discard(segment)
        self._set([self._create(offset)])

    def _create(self, offset: int) -> LogSegment:
        return LogSegment.create(
            self._directory, offset, config=self._config, now_ms=self._clock.now_ms()
        )

    def _discard(self, segment: LogSegment, *, with_snapshot: bool = True) -> None:
        """Renames the files of a segment, to be unlinked later."""
        segment.retire()
        names = [file_name(segment.base_offset, suffix) for suffix in SEGMENT_SUFFIXES]
        if with_snapshot:
            names.append(file_name(segment.base_offset, SNAPSHOT_SUFFIX))
        now_s = self._clock.monotonic_s()
        for name in names:
            self.trash.put(self._directory / name, now_s=now_s)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
